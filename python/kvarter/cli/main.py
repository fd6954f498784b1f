"""The command `kvarter`. Exit status: 0 well, 1 a check failed, 2 usage or environment."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvarter import __version__
from kvarter.cli import config, disk
from kvarter.cli.doctor import doctor
from kvarter.cli.node import audit, drain, invalidate, status
from kvarter.cli.operate import dashboard, unit
from kvarter.cli.output import AsJson, fail
from kvarter.cli.plan import plan
from kvarter.cli.replay import replay
from kvarter.cli.serve import serve
from kvarter.cli.sglang_args import sglang_args
from kvarter.cli.top import top
from kvarter.cli.vllm_args import vllm_args
from kvarter.demo import run
from kvarter.demo.models import DEMONSTRATED, MODELS
from kvarter.demo.nodes import RunFailed
from kvarter.demo.scenario import Note
from kvarter.demo.scenario import Progress as Done
from kvarter.demo.table import table
from kvarter.errors import UnsupportedEngine

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.add_typer(config.app, name="config")
app.add_typer(disk.app, name="disk")
app.command()(doctor)
app.command()(replay)
app.command()(plan)
app.command()(vllm_args)
app.command()(sglang_args)
app.command()(serve)
for command in (status, top, audit, drain, invalidate, dashboard, unit):
    app.command()(command)
_stderr = Console(stderr=True)

_STEPS = {
    "model": "making the model",
    "engine": "starting the engine",
    "cold": "filling its cache past its size",
    "again": "sending the prompts again, its cache dropped",
}


def main() -> None:
    """The console script."""
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Kvarter keeps an inference engine's KV blocks in host memory and gives them back exactly."""
    if version:
        print(f"kvarter {__version__}")
        raise typer.Exit


@app.command()
def demo(
    as_json: AsJson = False,
    model: Annotated[
        list[str], typer.Option(help="May be given several times; small ones: llama, gptoss, qwen3next.")
    ] = list(DEMONSTRATED),  # noqa: B006
    prompts: Annotated[int, typer.Option(min=2, max=64)] = run.Options().prompts,
    tokens: Annotated[
        int, typer.Option(min=256, max=4096, help="Length of each prompt.")
    ] = run.Options().tokens,
    dram: Annotated[str, typer.Option(help="Size of Kvarter's pool.")] = run.Options().dram,
    disk_dir: Annotated[
        Path | None,
        typer.Option("--disk", metavar="DIR", help="Also show a restart, over a log in this directory."),
    ] = None,
    served: Annotated[
        bool,
        typer.Option(
            "--served", help="Over `kvarter serve`: the engine is killed, and another one gets its blocks."
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Two nodes: the engine at one is killed, and one at the other gets its blocks."
        ),
    ] = False,
) -> None:
    """Run a real vLLM engine without Kvarter and one with it on the same prompts, for each model, and compare.

    The models are small ones with random weights, made on the spot, shaped like llama, GPT-OSS (sliding windows) and
    Qwen3-Next (recurrent states); nothing is downloaded. Fails when a token differs or when nothing was served from
    Kvarter's memory.
    """
    if served + peers + (disk_dir is not None) > 1:
        fail("--served, --peers and --disk show different things; one at a time", status=2)
    for name in model:
        if name not in MODELS:
            fail(f"no model {name!r}: there are {', '.join(MODELS)}", status=2)
    reports: list[run.Report] = []
    told: set[str] = set()
    try:
        run.check_engine()
        for name in model:
            reports.append(
                _compare(
                    run.Options(
                        name,
                        prompts,
                        tokens,
                        dram,
                        disk=str(disk_dir) if disk_dir else None,
                        served=served,
                        peers=peers,
                    ),
                    told,
                )
            )
    except UnsupportedEngine as error:
        fail(str(error), status=2)
    except RunFailed as error:
        fail(str(error), status=1)
    if as_json:
        print(msgspec.json.encode({"models": reports}).decode())
    else:
        Console().print(table(reports))
    for report in reports:
        if not report.same:
            fail(
                f"{report.model}: tokens differ between the engine with Kvarter and the one without", status=1
            )
        if not report.served:
            fail(f"{report.model}: nothing was served from Kvarter's memory", status=1)


def _compare(options: run.Options, told: set[str]) -> run.Report:
    second = (
        ["restarted with"] if options.disk else ["another with"] if options.served or options.peers else []
    )
    columns = (TextColumn("{task.description:<77}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_stderr) as bars:
        tasks = {
            name: bars.add_task(
                f"{options.model} {name} Kvarter",
                total=(1 if name in second else 3) * options.prompts,
                start=False,
            )
            for name in ("with", *second, "without")
        }

        def show(name: str, event: Note | Done) -> None:
            if isinstance(event, Note):
                if event.text not in told:  # each run has the same to say
                    told.add(event.text)
                    _stderr.print(event.text, highlight=False)
                return
            bars.start_task(tasks[name])
            description = f"{options.model} {name} Kvarter: {_STEPS[event.step]}"
            bars.update(tasks[name], completed=event.done, description=description)

        return run.compare(options, show)


if __name__ == "__main__":
    main()
