"""The commands that mend an environment, as its own system's shell takes them."""

from __future__ import annotations

from backend.cli.doctor.facts import Facts, RuntimeFacts
from backend.cli.doctor.finding import Step

BASE = "base"  # the server's own environment, which the launcher makes


def pip(facts: Facts, runtime: RuntimeFacts, arguments: str) -> str:
    """`python -m pip …` of the runtime's own interpreter."""
    if facts.platform.system == "win32":
        return f'& "{runtime.python}" -m pip {arguments}'
    python = f'"{runtime.python}"' if " " in runtime.python else runtime.python
    return f"{python} -m pip {arguments}"


def remade(facts: Facts, runtime: RuntimeFacts) -> tuple[Step, ...]:
    """How an environment that Touchstone keeps is made anew; none for the user's own, which is repaired with pip.

    What it holds is fixed by its requirements or its lock, so nothing in it is repaired by hand.
    """
    windows = facts.platform.system == "win32"
    launcher = ".\\launch.ps1" if windows else "./launch_wsl.sh"
    if runtime.name == BASE:
        remove = "Remove-Item -Recurse -Force .venv;" if windows else "rm -rf .venv &&"
        return (Step("Make the server's environment anew.", f"{remove} {launcher}"),)
    if runtime.kept:
        return (
            Step("Remove the runtime.", f"{launcher} runtimes remove {runtime.name}"),
            Step("Make it anew.", f"{launcher} runtimes install {runtime.name}"),
        )
    return ()
