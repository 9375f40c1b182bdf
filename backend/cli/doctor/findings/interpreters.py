"""The Python interpreters of the server and of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.cli.doctor.pip_commands import BASE

OLDEST = (3, 10)  # supported by the programs in child processes


def cannot_be_asked(facts: Facts) -> Iterator[Finding]:
    """An interpreter that is missing, does not start, or is not a Python."""
    for runtime in facts.runtimes:
        if runtime.trouble:
            detail = f"The Python of this runtime, {runtime.python}, could not be queried: {runtime.trouble}."
            if _is_store(runtime.python):
                detail += (
                    " It is the Microsoft Store's placeholder, which works only after a Python is installed there."
                )
            step = Step(f"Correct `runtimes.{runtime.name}.python` in config.yaml, or recreate that environment.")
            yield Finding("no-interpreter", "broken", "runtime package", f"runtime:{runtime.name}", detail, (step,))


def unfit(facts: Facts) -> Iterator[Finding]:
    """A Python that is 32-bit, too old, or from the Microsoft Store, which hides its files from other programs."""
    for runtime in facts.runtimes:
        interpreter = runtime.interpreter
        if interpreter is None or runtime.name == BASE:  # the system's checks cover the server's own
            continue
        subject = f"runtime:{runtime.name}"
        if interpreter.bits == 32:
            detail = f"Python {interpreter.version} of this runtime is 32-bit: no engine has packages for it."
            step = Step("Install the 64-bit Python 3.12 and recreate the environment.")
            yield Finding("python-32-bit", "broken", "runtime package", subject, detail, (step,))
        if tuple(int(part) for part in interpreter.version.split(".")[:2]) < OLDEST:
            detail = f"Python {interpreter.version} of this runtime is too old: 3.10 is the oldest supported version."
            step = Step("Recreate the environment with a newer Python.")
            yield Finding("python-too-old", "broken", "runtime package", subject, detail, (step,))
        if _is_store(interpreter.base):
            detail = (
                f"Python {interpreter.version} of this runtime is from the Microsoft Store: Windows gives it a private "
            )
            detail += "copy of AppData, so other programs do not find what it writes there."
            step = Step("If files seem to disappear, install Python from python.org and recreate the environment.")
            yield Finding("python-store", "advice", "runtime package", subject, detail, (step,))


def _is_store(path: str) -> bool:
    return "\\windowsapps\\" in path.lower().replace("/", "\\") + "\\"


FINDINGS = (cannot_be_asked, unfit)
