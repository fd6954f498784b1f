"""The layers of the configuration: which one wins, what each refuses, and that every value says where it is from."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarter.config import Config
from kvarter.errors import ConfigError

ENGINE = "the engine's extra config"


pytestmark = pytest.mark.usefixtures("nothing_set")


@pytest.fixture
def file(nothing_set: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``file("dram = 5")``: a file with that text, which KVARTER_CONFIG names."""

    def write(text: str, name: str = "settings.toml") -> Path:
        path = nothing_set / name
        path.write_text(text)
        monkeypatch.setenv("KVARTER_CONFIG", str(path))
        return path

    return write


def given(engine: dict[str, Any] | None = None) -> dict[str, tuple[Any, str]]:
    """The settings that some layer has set."""
    settings = Config.load(engine).explain()
    return {name: (value, source) for name, value, source in settings if source != "default"}


def refusal(engine: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(engine)
    return str(caught.value)


def test_where_nothing_is_set_everything_is_default() -> None:
    assert given() == {}
    assert Config.load() == Config()


def test_each_layer_wins_over_the_one_before(
    file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(
        "copy_threads = 1\nhold_seconds = 1\nload_seconds = 1\n[faults]\ndelay = 1\nfail_every = 1\nflip_every = 1"
    )
    monkeypatch.setenv("KVARTER_HOLD_SECONDS", "2")
    monkeypatch.setenv("KVARTER_LOAD_SECONDS", "2")
    monkeypatch.setenv("KVARTER_FAULTS__FAIL_EVERY", "2")
    monkeypatch.setenv("KVARTER_FAULTS__FLIP_EVERY", "2")
    assert given({"load_seconds": 3, "faults": {"flip_every": 3}}) == {
        "copy_threads": (1, str(path)),
        "hold_seconds": (2, "KVARTER_HOLD_SECONDS"),
        "load_seconds": (3, ENGINE),
        "faults.delay": (1, str(path)),
        "faults.fail_every": (2, "KVARTER_FAULTS__FAIL_EVERY"),
        "faults.flip_every": (3, ENGINE),
    }


def test_the_file_is_the_engines_or_the_environments_or_the_users_own(
    nothing_set: Path, file: Callable[..., Path]
) -> None:
    own = nothing_set / "kvarter" / "config.toml"
    own.parent.mkdir()
    own.write_text("copy_threads = 1")
    assert given() == {"copy_threads": (1, str(own))}
    named = file("copy_threads = 2")
    assert given() == {"copy_threads": (2, str(named))}
    engines = nothing_set / "engine.toml"
    engines.write_text("copy_threads = 3")
    assert given({"config": str(engines)}) == {"copy_threads": (3, str(engines))}


@pytest.mark.parametrize(
    "text", ["dram: 8GiB\nfaults: {delay: 0.5}\n", '# "dram" below\n"dram": "8GiB"\nfaults:\n  delay: 0.5\n']
)
def test_a_file_may_be_yaml(file: Callable[..., Path], text: str) -> None:
    path = str(file(text, "settings.yaml"))
    assert given() == {"dram": (8 << 30, path), "faults.delay": (0.5, path)}


def test_an_empty_file_says_nothing(file: Callable[..., Path]) -> None:
    file("")
    assert given() == {}


def test_yaml_without_pyyaml_is_refused_with_what_to_do(
    file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = file("dram: 8GiB", "settings.yml")
    assert (
        refusal()
        == f"{path}, named by KVARTER_CONFIG, needs PyYAML to be read: pip install pyyaml, or write it as TOML"
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("settings.toml", "dram = ", "cannot be understood: Invalid value (at end of document)"),
        (
            "settings.yaml",
            "dram",
            "cannot be understood: a table of settings was expected at the top, found 'dram'",
        ),
        ("settings.yaml", "[", "cannot be understood: while parsing a flow node expected the node content"),
        ("settings.json", "{}", "is of an unknown kind '.json'; expected .toml, .yaml or .yml"),
        ("settings", "", "is of an unknown kind ''; expected .toml, .yaml or .yml"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused(
    file: Callable[..., Path], name: str, text: str, sentence: str
) -> None:
    path = file(text, name)
    assert refusal().startswith(f"{path}, named by KVARTER_CONFIG, {sentence}")


def test_a_file_that_was_named_must_be_there(nothing_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARTER_CONFIG", "/no/such.toml")
    assert refusal() == "/no/such.toml, named by KVARTER_CONFIG, cannot be read: No such file or directory"
    message = refusal({"config": str(nothing_set / "neither.toml")})
    assert message.endswith(
        f"neither.toml, named by 'config' in {ENGINE}, cannot be read: No such file or directory"
    )
    assert refusal({"config": 3}) == f"'config' in {ENGINE} is 3; expected the path of a TOML or YAML file"


def test_an_unknown_setting_is_named_as_its_layer_spells_it_with_the_nearest_known(
    file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("drma = 1\nfaults.delya = 1\nconfig = 'other.toml'")
    monkeypatch.setenv("KVARTER_DRMA", "1")
    monkeypatch.setenv("KVARTER_FAULTS__DELYA", "1")
    monkeypatch.setenv("KVARTER_DRAM__SIZE", "1")
    monkeypatch.setenv("KVARTER_DISABEL", "1")
    message = refusal({"drma": 1, "_env_file": 1})
    for place, *sentences in (
        (
            path,
            "unknown setting 'drma'; did you mean 'dram'?",
            "unknown setting 'faults.delya'; did you mean 'faults.delay'?",
            "unknown setting 'config'; known are dram, max_blocks",
        ),
        (
            "environment",
            "unknown setting 'KVARTER_DRMA'; did you mean 'KVARTER_DRAM'?",
            "unknown setting 'KVARTER_FAULTS__DELYA'; did you mean 'KVARTER_FAULTS__DELAY'?",
            "unknown setting 'KVARTER_DRAM__SIZE'; did you mean 'KVARTER_DRAM'?",
            "unknown setting 'KVARTER_DISABEL'; did you mean 'KVARTER_DISABLE'?",
        ),
        (
            ENGINE,
            "unknown setting 'drma'; did you mean 'dram'?",
            "unknown setting '_env_file'; known are dram, max_blocks",
        ),
    ):
        _, found, message = message.partition(f"{place}: ")
        assert found
        for sentence in sentences:
            assert sentence in message


def test_a_wrong_value_is_refused_also_where_a_higher_layer_overrides_it(
    file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("copy_threads = 65")
    monkeypatch.setenv("KVARTER_COPY_THREADS", "many")
    monkeypatch.setenv("KVARTER_FAULTS", "delay")
    message = refusal({"copy_threads": 1})
    assert f"{path}: copy_threads=65: input should be less than or equal to 64" in message
    assert "environment: KVARTER_COPY_THREADS='many': input should be a valid integer" in message
    assert "KVARTER_FAULTS='delay': input should be a valid dictionary" in message


@pytest.mark.parametrize(
    "variable",
    ["DISABLE", "COPY", "SHA256", "XXH3", "SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP_ADDR"],
)
def test_variables_that_are_no_settings_are_left_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KVARTER_{variable}", "1")
    assert given() == {}


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("KVARTER_DRAM", "KVARTER_CONFIG", "KVARTER_NO_SUCH"):
        monkeypatch.setenv(variable, "")
    assert given() == {}


def test_the_callers_mapping_is_left_as_it_was(file: Callable[..., Path]) -> None:
    engine = {"config": str(file("copy_threads = 3")), "faults": {"delay": 1}}
    Config.load(engine)
    assert set(engine) == {"config", "faults"}
