"""The layers of the configuration: each is read and checked alone, so that an error names where it stands."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from .config import Config
from .errors import ConfigError

PREFIX = "KVARTER_"
RESERVED = ("CONFIG", "DISABLE", "COPY", "SHA256", "XXH3", "WALK_STEPS")  # variables that are no settings
# What Kubernetes puts into every container beside a service called kvarter.
_KUBERNETES = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")


class Layer(NamedTuple):
    """What one place says."""

    place: str
    values: dict[str, Any]
    variables: bool = False  # each setting stands in a variable of its own

    def label(self, name: str) -> str:
        """A setting's dotted name as the place spells it."""
        return PREFIX + name.upper().replace(".", "__") if self.variables else name

    def source(self, name: str) -> str:
        """What a person would edit to change it."""
        return self.label(name) if self.variables else self.place


class _Environment(BaseSettings, Config):
    """The settings as environment variables; never instantiated."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, enable_decoding=False
    )


def merged(engine: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of all layers, nested, and by dotted name where each that was given comes from."""
    named = engine.pop("config", None)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    wrong: list[str] = []
    layers = [*_file(named), _environment(), Layer("the engine's extra config", engine)]
    for layer in layers:
        try:
            given = Config.model_validate(layer.values)
        except ValidationError as error:
            wrong.append(f"{layer.place}: " + "; ".join(_sentence(layer, dict(e)) for e in error.errors()))
            continue
        for name, value in leaves(given, given_only=True):
            *tables, last = name.split(".")
            into = values
            for table in tables:
                into = into.setdefault(table, {})
            into[last] = value
            sources[name] = layer.source(name)
    if wrong:
        raise ConfigError("; ".join(wrong))
    return values, sources


def leaves(model: BaseModel, prefix: str = "", given_only: bool = False) -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each setting that is not itself a table of settings."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if given_only and name not in model.model_fields_set:
            continue
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{prefix}{name}.", given_only)
        else:
            yield prefix + name, value


def default_file() -> Path:
    """The user's own file, read if it exists and no other is named."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111  never raises
    return Path(home, "kvarter", "config.toml")


def _file(named: Any) -> list[Layer]:
    where = "'config' in the engine's extra config"
    if named is None:
        named, where = os.environ.get("KVARTER_CONFIG") or None, "KVARTER_CONFIG"
    if named is None:
        path = default_file()
        return [Layer(str(path), _read(path, str(path)))] if os.access(path, os.F_OK) else []
    if not isinstance(named, str | Path):
        raise ConfigError(f"{where} is {named!r}; expected the path of a TOML or YAML file")
    return [Layer(str(named), _read(Path(named), f"{named}, named by {where},"))]


def _read(path: Path, what: str) -> dict[str, Any]:
    parsers: dict[str, Callable[[str], dict[str, Any]]] = {
        ".toml": tomllib.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    if path.suffix not in parsers:
        raise ConfigError(f"{what} is of an unknown kind {path.suffix!r}; expected .toml, .yaml or .yml")
    try:
        return parsers[path.suffix](path.read_text())
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}") from None
    except ModuleNotFoundError:
        raise ConfigError(
            f"{what} needs PyYAML to be read: pip install pyyaml, or write it as TOML"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{what} cannot be understood: {error}") from None


def _yaml(text: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"a table of settings was expected at the top, found {found!r}")
    return found or {}


def _environment() -> Layer:
    values = EnvSettingsSource(_Environment)()
    tables = tuple(f"{name}__" for name, value in Config() if isinstance(value, BaseModel))
    for variable, value in os.environ.items():
        name = variable.upper().removeprefix(PREFIX)
        if not value or name == variable.upper() or name in RESERVED or _KUBERNETES.fullmatch(name):
            continue
        if not name.lower().startswith(tables):
            values.setdefault(name.lower(), value)  # one that is no setting would go unnoticed otherwise
    return Layer("environment", values, variables=True)


def _sentence(layer: Layer, error: dict[str, Any]) -> str:
    *tables, last = map(str, error["loc"])
    name = layer.label(".".join([*tables, last]))
    if error["type"].startswith("byte_size"):
        return f"{name}={error['input']!r}: expected a number of bytes, or a size such as '4GiB'"
    if error["type"] != "extra_forbidden":
        return f"{name}={error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"
    model: Any = Config
    for table in tables:
        model = model.model_fields[table].annotation
    known = {field: layer.label(".".join([*tables, field])) for field in model.model_fields}
    reserved = {word.lower(): PREFIX + word for word in RESERVED if layer.variables and not tables}
    near = difflib.get_close_matches(last, [*known, *reserved], n=1, cutoff=0.5)
    return f"unknown setting {name!r}; " + (
        f"did you mean {(known | reserved)[near[0]]!r}?" if near else f"known are {', '.join(known.values())}"
    )
