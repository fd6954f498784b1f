"""What all tests share: a skipped test fails the run in CI, where everything must be able to run."""

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", ()))
    if skipped and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{skipped} tests were skipped, and in CI none may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
