"""Key derivation, layouts, ranks and failures, with SGLang's own classes: in its environment, without a server."""

import subprocess
from pathlib import Path

from sglang_words import environment


def test_what_needs_sglangs_own_classes_holds_in_its_environment(sglang_python: str, tmp_path: Path) -> None:
    here = Path(__file__).parent
    run = subprocess.run(
        [sglang_python, "-m", "pytest", "-p", "no:cacheprovider", str(here / "inside")],
        cwd=here.parent.parent,
        env=environment(tmp_path / "path"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
