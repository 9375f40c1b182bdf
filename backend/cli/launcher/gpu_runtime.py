"""Names the runtime that the hardware found would use, and installs it beside the running server.

`--gpu auto` and `--gpu NAME` install without a question, and without the flag a terminal is asked; `--gpu none`, or a
"no" there, is remembered until another `--gpu` is given.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request

from backend.cli.launcher import subprocesses
from backend.cli.launcher.console import say
from backend.cli.launcher.server import DIRECT

MEMORY = ".venv.gpu"  # beside .venv, which may be made again
NONE = "none"
_PROOFS_S = 60


def offer(root: Path, url: str, wanted: str | None, verb: Callable[..., list[str]], flags: Sequence[str]) -> None:
    """Does it in a thread of its own: the server serves meanwhile. `verb` makes the command line of a verb."""
    memory = root / MEMORY
    if wanted == NONE:
        memory.write_text("none\n", encoding="utf-8")
        return
    if wanted is None and memory.exists():
        return
    memory.unlink(missing_ok=True)

    def work() -> None:
        name = wanted if wanted not in (None, "auto") else _best(url, ask=wanted is None, memory=memory)
        if name:
            say(f"Installing the runtime {name}; the server serves meanwhile.")
            if subprocesses.run(verb("runtimes", "install", name, *flags)):
                say(f"The runtime {name} is not installed, as said above; the CPU serves.")

    threading.Thread(target=work, daemon=True).start()


def _best(url: str, ask: bool, memory: Path) -> str | None:
    """The name of the runtime that is to be installed, None if there is none or it is not wanted."""
    found = _get(f"{url.rstrip('/')}/api/devices?wait_s={_PROOFS_S}")
    if found is None:
        return None
    for line in _cards(found):
        say(line)
    said = _get(f"{url.rstrip('/')}/api/runtimes") or {}
    name: str | None = said.get("best")
    if name is None:
        return None
    say(str(said["best_reason"]))
    if not ask:
        return name
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        say(f"Install it with `runtimes install {name}`, or start with --gpu auto; --gpu none stops this hint.")
        return None
    sys.stderr.write(f"touchstone: Install {name} now, beside the running server? [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    if answer in ("y", "yes"):
        return name
    if answer in ("n", "no"):
        memory.write_text("none\n", encoding="utf-8")
        say(f"This will not be asked again; `runtimes install {name}` does it at any time.")
    return None


def _cards(found: dict[str, Any]) -> list[str]:
    """Each card with its driver, and which of its devices work."""
    ready = {device["id"] for device in found.get("devices", []) if device["state"] == "ready"}
    lines = []
    for card in found.get("hardware", []):
        if card["kind"] == "cpu":
            continue
        driver = f"driver {card['driver']}" if card.get("driver") else "no driver"
        dated = f" of {card['driver_date']}" if card.get("driver_date") else ""
        works = [id_ for id_ in card.get("devices", []) if id_ in ready]
        lines.append(f"Found {card['name']} ({driver}{dated}): {', '.join(works) or 'nothing here reaches it yet'}.")
    return lines


def _get(url: str) -> dict[str, Any] | None:
    """The answer, None where there is none for us."""
    token = os.environ.get("TOUCHSTONE_TOKEN")
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with DIRECT.open(request, timeout=_PROOFS_S + 10) as answer:
            found = json.load(answer)
            return found if isinstance(found, dict) else None
    except (URLError, OSError, ValueError):
        return None
