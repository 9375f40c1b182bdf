"""The Pythons: the server's own, and those that the configuration names."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.cli.doctor.pip_commands import BASE

OLDEST = (3, 10)  # what the programs inside the children are written for


def cannot_be_asked(facts: Facts) -> Iterator[Finding]:
    """An interpreter that is not there, does not start, or is no Python."""
    for runtime in facts.runtimes:
        if runtime.trouble:
            detail = f"The Python of this runtime, {runtime.python}, could not be asked: {runtime.trouble}."
            if _is_store(runtime.python):
                detail += (
                    " It is the Microsoft Store's placeholder, which runs nothing until Python is installed there."
                )
            step = Step(f"Correct `runtimes.{runtime.name}.python` in config.yaml, or make that environment again.")
            yield Finding("no-interpreter", "broken", "runtime package", f"runtime:{runtime.name}", detail, (step,))


def unfit(facts: Facts) -> Iterator[Finding]:
    """A 32-bit Python, one that is too old, or the Store's, whose files lie where others do not see them."""
    for runtime in facts.runtimes:
        found = runtime.interpreter
        if found is None or runtime.name == BASE:  # the server's own is the system's check
            continue
        subject = f"runtime:{runtime.name}"
        if found.bits == 32:
            detail = f"Python {found.version} of this runtime is a 32-bit one: no engine has packages for it."
            step = Step("Install the 64-bit Python 3.12 and make the environment again.")
            yield Finding("python-32-bit", "broken", "runtime package", subject, detail, (step,))
        if tuple(int(part) for part in found.version.split(".")[:2]) < OLDEST:
            detail = f"Python {found.version} of this runtime is too old: 3.10 is the oldest that can be used."
            step = Step("Make the environment again with a newer Python.")
            yield Finding("python-too-old", "broken", "runtime package", subject, detail, (step,))
        if _is_store(found.base):
            detail = (
                f"Python {found.version} of this runtime comes from the Microsoft Store: Windows gives it a private "
            )
            detail += "copy of AppData, so other programs do not find what it writes there."
            step = Step("If files seem to vanish, install Python from python.org and make the environment again.")
            yield Finding("python-store", "advice", "runtime package", subject, detail, (step,))


def _is_store(path: str) -> bool:
    return "\\windowsapps\\" in path.lower().replace("/", "\\") + "\\"


FINDINGS = (cannot_be_asked, unfit)
