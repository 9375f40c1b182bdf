"""A pytest plugin of the runner `test` (`-p tests.reporting`): progress, failures at once, and a count of the tests.

Instead of dots it prints each failure when it happens, and now and then the share of tests done with the time left. A
run fails if fewer tests ended than were collected: a scheduler that joins tests of one name would hide them.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

PROGRESS_INTERVAL_S = 15.0
USUAL_TEST_S = 0.5  # assumed for a test that has not run yet


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", type=Path, help="seconds of each test in the last run; updated at the end")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # in the process that reports, not in the workers of xdist
        config.pluginmanager.register(Reporting(config), "reporting")


class Reporting:
    """Counts and times the tests of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file: Path | None = config.getoption("--durations-file")
        self._expected_s: dict[str, float] = _read(self._file)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.collected: list[str] = []
        self.ended: list[str] = []
        self._started_s = self._printed_s = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = self.collected or [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.collected = list(ids)  # every worker collects the same tests

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        category, _, _ = yield
        return category, "", ""  # no dots

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._print(f"FAILED {report.nodeid} ({report.when}): {_reason(report)}")
        if report.when == "teardown":
            self.ended.append(report.nodeid)
        if time.monotonic() - self._printed_s >= PROGRESS_INTERVAL_S:
            self._print(self.progress())

    def progress(self) -> str:
        """Return the share of tests done and an estimate of the time left."""
        total = max(len(self.collected), 1)
        elapsed_s = time.monotonic() - self._started_s
        expected_s = sum(self._expected_s.get(test, USUAL_TEST_S) for test in self.collected) or 1.0
        done_s = sum(self._expected_s.get(test, USUAL_TEST_S) for test in self.ended)
        share = min(1.0, done_s / expected_s)
        left = f", about {elapsed_s / share * (1 - share):.0f} s left" if share > 0.02 else ""
        return f"{share:4.0%}  {len(self.ended)} of {total} tests, {elapsed_s:.0f} s{left}"

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        interrupted = session.shouldfail or session.shouldstop or session.exitstatus == pytest.ExitCode.INTERRUPTED
        if not interrupted and len(self.ended) != len(self.collected) and not self._config.option.collectonly:
            self._print(
                f"FAILED: {len(self.collected)} tests were collected, but {len(self.ended)} ended.{self._repeated()}"
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._file and not interrupted:
            self._file.write_text(json.dumps(self._expected_s | dict(self._seconds)), encoding="utf-8")
        return (yield)

    def _repeated(self) -> str:
        ids = [f"{test} ({count} times)" for test, count in Counter(self.collected).items() if count > 1]
        return f" Tests with the same id run once: {', '.join(ids)}." if ids else ""

    def _print(self, line: str) -> None:
        self._printed_s = time.monotonic()
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.ensure_newline()
            reporter.write_line(line)
            reporter.flush()


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    return lines[0] if lines else ""


def _read(file: Path | None) -> dict[str, float]:
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
