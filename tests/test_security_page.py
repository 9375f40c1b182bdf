"""Each threat in docs/security.md names the tests of its mitigation, and these tests exist."""

from __future__ import annotations

import re

from tests.service import ROOT


def test_every_threat_names_tests_that_there_are() -> None:
    rows = [line for line in (ROOT / "docs" / "security.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, f"no test in the row: {row}"
        assert set(named) <= defined, f"no such test: {set(named) - defined}"
