"""The demonstration's table, for people."""

from collections.abc import Iterable

from rich.table import Table

from kvarter.demo.run import Report


def table(reports: Iterable[Report]) -> Table:
    """One row for each model; times are sums over the prompts, to the first token."""
    result = Table(title="Prompts whose prefix the engine had dropped")
    for heading in ("model", "groups", "tokens asked", "served from DRAM", "recomputed"):
        result.add_column(heading, justify="left" if heading == "model" else "right")
    for heading in ("without Kvarter", "with Kvarter", "engine's own hit"):
        result.add_column(heading, justify="right")
    result.add_column("tokens identical")
    for report in reports:
        result.add_row(
            report.model,
            str(report.groups),
            f"{report.prompt_tokens:,}",
            f"{report.external_hit_tokens:,}",
            f"{report.recomputed_tokens:,}",
            f"{report.seconds_cold:.2f} s",
            f"{report.seconds_hit:.2f} s",
            f"{report.seconds_local_hit:.2f} s",
            "yes" if report.identical else "NO",
        )
    return result
