"""`kvarter config`: what the settings are, where each comes from, and their JSON schema."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kvarter.cli.output import AsJson, fail, readable
from kvarter.config import Config, disabled
from kvarter.errors import ConfigError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _config() -> None:
    """Show the settings that an engine started here would get.

    Each layer over the one before: defaults, a TOML or YAML file, the environment (KVARTER_DRAM,
    KVARTER_FAULTS__DELAY), the engine's extra config. The file is what KVARTER_CONFIG or `config` in the engine's
    extra config names, else kvarter/config.toml below XDG_CONFIG_HOME. KVARTER_DISABLE=1 turns Kvarter off.
    """


@app.command()
def show(
    as_json: AsJson = False,
    file: Annotated[
        Path | None, typer.Option("--config", help="As if the engine's extra config named this file.")
    ] = None,
    engine: Annotated[str, typer.Option(help="The engine's extra config, as JSON.")] = "{}",
) -> None:
    """Print every setting, and where its value comes from."""
    try:
        extra = msgspec.json.decode(engine, type=dict[str, object])
        settings = Config.load({**extra, **({"config": str(file)} if file else {})}).explain()
    except msgspec.MsgspecError as error:
        fail(f"--engine {engine!r} is no JSON object: {error}", status=2)
    except ConfigError as error:
        fail(str(error), status=2)
    if as_json:
        found = {name: {"value": value, "source": source} for name, value, source in settings}
        print(msgspec.json.encode({"disabled": disabled(), "settings": found}, enc_hook=int).decode())
        return
    table = Table("setting", "value", "from", box=None, header_style="bold", pad_edge=False)
    for name, value, source in settings:
        table.add_row(name, readable(value), source)
    Console().print(table, highlight=False)
    if disabled():
        typer.echo("KVARTER_DISABLE is set: Kvarter does nothing.")


@app.command()
def schema() -> None:
    """Print the JSON schema of the settings; the engine's extra config may say `config` besides."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    print(msgspec.json.format(msgspec.json.encode(schema)).decode())
