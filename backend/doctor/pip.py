"""The commands that mend an environment, as its own system's shell takes them."""

from __future__ import annotations

from backend.doctor.facts import Facts, RuntimeFacts
from backend.doctor.finding import Step

BASE = "base"  # the server's own environment, which the launcher makes


def pip(facts: Facts, runtime: RuntimeFacts, arguments: str) -> str:
    """`python -m pip …` of the runtime's own interpreter."""
    if facts.platform.system == "win32":
        return f'& "{runtime.python}" -m pip {arguments}'
    python = f'"{runtime.python}"' if " " in runtime.python else runtime.python
    return f"{python} -m pip {arguments}"


def remake_base(facts: Facts) -> tuple[Step, ...]:
    """How the server's own environment is made anew: its requirements are fixed, so nothing is repaired by hand."""
    if facts.platform.system == "win32":
        return (Step("Make the server's environment anew.", "Remove-Item -Recurse -Force .venv; .\\launch.ps1"),)
    return (Step("Make the server's environment anew.", "rm -rf .venv && ./launch_wsl.sh"),)
