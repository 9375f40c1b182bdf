"""Regenerate the table of packages in docs/licences.md from the installed packages: `python -m tests.licences`."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.service import ROOT

PAGE = ROOT / "docs" / "licences.md"
BEGIN, END = "<!-- packages -->\n", "<!-- end of packages -->\n"


def closure(requirements: str) -> dict[str, Distribution]:
    """What the lines of a requirements file bring on this system, by name, with all that these need in turn."""
    found: dict[str, Distribution] = {}
    lines = [line.partition(" #")[0].strip() for line in requirements.splitlines()]
    waiting = [(Requirement(line), "") for line in lines if line and not line.startswith(("#", "-"))]
    while waiting:
        wanted, extra = waiting.pop()
        name = canonicalize_name(wanted.name)
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        if name not in found:
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                continue  # of another system
        for text in found[name].requires or ():
            inner = Requirement(text)
            waiting += [(inner, each) for each in (wanted.extras or {""}) if canonicalize_name(inner.name) not in found]
    return found


def licence_of(package: Distribution) -> str:
    """Its licence in the words of its metadata: the expression, else the classifiers, else the text's first line."""
    facts: Any = package.metadata  # its type has no `get` before Python 3.12
    if expression := facts.get("License-Expression"):
        return str(expression)
    classes = [str(line).rpartition(":: ")[2] for line in facts.get_all("Classifier") or () if "License ::" in line]
    told = classes or [(str(facts.get("License") or "").strip().splitlines() or ["not told"])[0]]
    return ", ".join(sorted(set(told)))


def table() -> str:
    """The table as it should be here."""
    found = closure((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    rows = [f"| {name} | {licence_of(package)} |\n" for name, package in sorted(found.items())]
    return "| package | licence |\n|---|---|\n" + "".join(rows)


def listed(page: str) -> dict[str, str]:
    """The packages of the page and their licences."""
    inside = page.partition(BEGIN)[2].partition(END)[0]
    return dict(re.findall(r"^\| ([a-z0-9._-]+) \| (.+) \|$", inside.partition("|---|---|\n")[2], re.M))


def main() -> int:
    """Writes the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
