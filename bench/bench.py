"""Kvarter's benchmark: named workloads, each row beside a limit or a plain baseline of the same run.

    python bench/bench.py WORKLOAD... [--json FILE] [--compare FILE] [--check] [--quick] [--trace FILE]
                             [--peer PYTHON]

With --check every byte that moves is verified and every store audited: then it is the soak test, and fails
when anything is wrong. A goal that is missed is shown and never changes the exit status.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import report
from workloads import WORKLOADS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "workloads", nargs="+", metavar="WORKLOAD", choices=sorted(WORKLOADS), help=", ".join(WORKLOADS)
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and machine here")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="show the ratios of this earlier --json beside"
    )
    parser.add_argument(
        "--check", action="store_true", help="verify every byte; exit status 1 when one is wrong"
    )
    parser.add_argument("--quick", action="store_true", help="small and short; the numbers mean little")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="replay this trace (admit)")
    parser.add_argument(
        "--peer",
        type=Path,
        metavar="PYTHON",
        help="an interpreter with LMCache: measure its server too (node)",
    )
    args = parser.parse_args()

    run = report.Run(quick=args.quick, check=args.check, trace=args.trace, peer=args.peer)
    before = (
        {row["case"]: row for row in json.loads(args.compare.read_text())["rows"]} if args.compare else {}
    )
    where = report.machine()
    rows = [row for name in args.workloads for row in WORKLOADS[name](run)]
    report.show(rows, where, before)
    if args.json:
        report.write_json(args.json, rows, where)
    for finding in run.wrong[:20]:
        print(f"WRONG: {finding}")
    if args.check:
        print(f"checked: {len(run.wrong)} findings")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
