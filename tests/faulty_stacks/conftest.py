"""Prints the result of the matrix after its tests: how many stacks were judged, and how many wrongly."""

from __future__ import annotations

from typing import Any

_TESTS = ("test_matrix.py::test_stack[", "test_own_stacks.py::test_stack_of_its_own[")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write "N stacks, W wrong". A stack counts as wrong if its check failed, or could not run."""
    judged: dict[str, bool] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            if any(test in report.nodeid for test in _TESTS):
                judged[report.nodeid] = judged.get(report.nodeid, True) and outcome == "passed"
    if judged:
        terminalreporter.write_line(f"{len(judged)} stacks, {list(judged.values()).count(False)} wrong")
