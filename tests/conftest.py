"""What all tests share: a skipped test fails the run in CI, where everything must be able to run."""

import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", ()))
    if skipped and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{skipped} tests were skipped, and in CI none may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has set nothing yet: no variable KVARTER_*, no file in this directory for configuration."""
    for name in [name for name in os.environ if name.upper().startswith("KVARTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path
