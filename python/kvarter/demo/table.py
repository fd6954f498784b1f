"""The demonstration's table, for people."""

from collections.abc import Callable, Sequence

from rich.table import Table

from kvarter.demo.run import Another, Report, Restart

_ROWS: dict[str, Callable[[Report], str]] = {
    "cache groups": lambda report: str(report.groups),
    "tokens asked": lambda report: f"{report.prompt_tokens:,}",
    "served from DRAM": lambda report: f"{report.external_hit_tokens:,}",
    "recomputed": lambda report: f"{report.recomputed_tokens:,}",
    "time without Kvarter": lambda report: f"{report.seconds_cold:.2f} s",
    "time with Kvarter": lambda report: f"{report.seconds_hit:.2f} s",
    "time of the engine's own local hit": lambda report: f"{report.seconds_local_hit:.2f} s",
    "tokens identical": lambda report: "yes" if report.same else "NO",
}
_RESTARTED: dict[str, Callable[[Restart], str]] = {
    "restarted, served from disk": lambda restart: f"{restart.disk_hit_tokens:,}",
    "time when restarted": lambda restart: f"{restart.seconds:.2f} s",
}
_ANOTHER: dict[str, Callable[[Another], str]] = {
    "another engine, the first one killed": lambda another: f"{another.node_hit_tokens:,}",
    "time of the other engine": lambda another: f"{another.seconds:.2f} s",
}


def table(reports: Sequence[Report]) -> Table:
    """One column for each model; times are sums over the prompts, to the first token."""
    result = Table("model", title="Prompts whose prefix the engine had dropped", title_justify="left")
    for report in reports:
        result.add_column(report.model, justify="right")
    for heading, show in _ROWS.items():
        result.add_row(heading, *map(show, reports))
    restarts = [report.restart for report in reports if report.restart is not None]
    for heading, show_restart in _RESTARTED.items() if restarts else ():
        result.add_row(heading, *map(show_restart, restarts))
    others = [report.another for report in reports if report.another is not None]
    for heading, show_another in _ANOTHER.items() if others else ():
        result.add_row(heading, *map(show_another, others))
    return result
