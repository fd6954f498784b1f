"""The README's snippets run, and its commands exist."""

import re
import shlex
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_stores_snippet_runs_and_prints_what_it_says(capsys) -> None:
    (snippet,) = [code for code in snippets() if "kvarter import" in code]
    exec(compile(snippet, "README.md", "exec"), {})
    said = re.search(r"# (\d+ \d+):", snippet)
    assert said is not None
    assert capsys.readouterr().out.strip() == said.group(1)


def test_the_engines_snippet_names_the_connector_as_it_registers() -> None:
    from kvarter.connectors.plugin import NAME

    (snippet,) = [code for code in snippets() if "vllm import" in code]
    compile(snippet, "README.md", "exec")
    assert f'kv_connector="{NAME}"' in snippet


def test_the_example_of_a_policy_replays() -> None:
    from kvarter.trace import generate, replay

    page = Path(__file__).parent.parent / "python" / "kvarter" / "policy" / "README.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(snippet, page.name, "exec"), names)
    trace = generate("chat", sessions=20)
    assert 0 < replay(trace, names["Mine"](500), 500).hit_rate < 100


def test_every_file_that_the_readme_names_exists() -> None:
    root = Path(__file__).parent.parent
    named = re.findall(
        r"`?((?:csrc|connectors|policy|bench)/[\w/.]+|(?:store|geometry|keys|sequence)\.py)", README
    )
    for name in {n.rstrip(".") for n in named}:
        assert (root / name).exists() or (root / "python" / "kvarter" / name).exists(), name


def test_the_flags_for_sglang_are_those_that_the_command_prints() -> None:
    from kvarter.cli.sglang_args import flags

    (snippet,) = re.findall(r"```sh\n([^`]*sglang.launch_server.*?)```", README, re.DOTALL)
    words = shlex.split(snippet.partition("&\n")[2].replace("\\\n", ""))
    assert words[words.index("--enable-hierarchical-cache") :] == flags(
        "unix:///run/user/1000/kvarter/node.sock"
    )
