"""Commands that repair an environment, for the shell of its system."""

from __future__ import annotations

from backend.cli.doctor.facts import Facts, RuntimeFacts
from backend.cli.doctor.finding import Step
from backend.common.commands import BASH_LAUNCHER, WINDOWS_LAUNCHER, command
from backend.common.installation import is_installed

BASE = "base"  # the server's own environment, which the launcher creates


def pip(facts: Facts, runtime: RuntimeFacts, arguments: str) -> str:
    """Return the command `python -m pip …` for the runtime's own interpreter."""
    if facts.platform.system == "win32":
        return f'& "{runtime.python}" -m pip {arguments}'
    python = f'"{runtime.python}"' if " " in runtime.python else runtime.python
    return f"{python} -m pip {arguments}"


def recreate(facts: Facts, runtime: RuntimeFacts) -> tuple[Step, ...]:
    """Return the steps that recreate an environment that Touchstone installed; none for the user's own.

    The requirements or the lock file determine its content, so it is not repaired by hand.
    """
    windows = facts.platform.system == "win32"
    launcher = WINDOWS_LAUNCHER if windows else BASH_LAUNCHER
    if runtime.name == BASE:
        remove = "Remove-Item -Recurse -Force .venv;" if windows else "rm -rf .venv &&"
        if is_installed():
            return (
                Step("Install the package again, with pip install --force-reinstall and the folder of its source."),
            )
        return (Step("Recreate the server's environment.", f"{remove} {launcher}"),)
    if runtime.kept:
        return (
            Step("Remove the runtime.", command(f"runtimes remove {runtime.name}")),
            Step("Install it again.", command(f"runtimes install {runtime.name}")),
        )
    return ()
