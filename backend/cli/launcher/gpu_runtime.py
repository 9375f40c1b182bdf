"""Recommends a runtime for the hardware, and installs it while the server runs.

`--gpu auto` and `--gpu NAME` install without a question. Without the flag, the user is asked on a terminal.
`--gpu none`, or the answer "no", is remembered until another `--gpu` is given.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import Request

from backend.cli.launcher import subprocesses
from backend.cli.launcher.console import say
from backend.cli.launcher.declined_offer import is_to_be_made
from backend.cli.launcher.server import DIRECT
from backend.common.commands import command

DECLINED = ".venv.gpu"  # outside .venv, which may be recreated
_PROBE_TIMEOUT_S = 60


def offer(root: Path, url: str, wanted: str | None, verb: Callable[..., list[str]], flags: Sequence[str]) -> None:
    """Recommend and install a runtime. `verb` returns the command line of a verb."""
    declined = root / DECLINED
    if not is_to_be_made(declined, wanted):
        return
    name = wanted if wanted not in (None, "auto") else _best(url, must_ask=wanted is None, declined=declined)
    if name:
        say(f"Installing the runtime {name}; the server already serves.")
        if subprocesses.run(verb("runtimes", "install", name, *flags)):
            say(f"The runtime {name} could not be installed; see above. The CPU works.")


def _best(url: str, must_ask: bool, declined: Path) -> str | None:
    """Return the name of the runtime to install. Optional: None if there is none, or the user declines."""
    listing = get_json(f"{url.rstrip('/')}/api/devices?wait_s={_PROBE_TIMEOUT_S}")
    if listing is None:
        return None
    for line in _describe_cards(listing):
        say(line)
    runtimes = get_json(f"{url.rstrip('/')}/api/runtimes") or {}
    name: str | None = runtimes.get("best")
    if name is None:
        return None
    say(str(runtimes["best_reason"]))
    if not must_ask:
        return name
    install = command(f"runtimes install {name}")
    hint = f"Install it with `{install}`, or start with --gpu auto; --gpu none turns this hint off."
    answer = ask(f"Install {name} now, while the server runs? [y/N] ", hint)
    if answer == "no":
        declined.write_text("none\n", encoding="utf-8")
        say(f"You will not be asked again. Install it later with `{install}`.")
    return name if answer == "yes" else None


def ask(question: str, hint: str) -> Literal["yes", "no"] | None:
    """Ask on the terminal. Returns None for another answer, and without a terminal, where the hint is printed."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        say(hint)
        return None
    sys.stderr.write(f"touchstone: {question}")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    return "yes" if answer in ("y", "yes") else "no" if answer in ("n", "no") else None


def _describe_cards(listing: dict[str, Any]) -> list[str]:
    """Return one line for each GPU or NPU: name, driver, and its devices that work."""
    ready = {device["id"] for device in listing.get("devices", []) if device["state"] == "ready"}
    lines = []
    for card in listing.get("hardware", []):
        if card["kind"] == "cpu":
            continue
        driver = f"driver {card['driver']}" if card.get("driver") else "no driver"
        dated = f" of {card['driver_date']}" if card.get("driver_date") else ""
        works = [id_ for id_ in card.get("devices", []) if id_ in ready]
        lines.append(
            f"Found {card['name']} ({driver}{dated}): {', '.join(works) or 'no installed runtime supports it yet'}."
        )
    return lines


def get_json(url: str) -> dict[str, Any] | None:
    """Return the JSON answer of the server. Optional: None if there is none."""
    token = os.environ.get("TOUCHSTONE_TOKEN")
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with DIRECT.open(request, timeout=_PROBE_TIMEOUT_S + 10) as answer:
            content = json.load(answer)
            return content if isinstance(content, dict) else None
    except (URLError, OSError, ValueError):
        return None
