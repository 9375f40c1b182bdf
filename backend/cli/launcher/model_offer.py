"""Recommends a text model for the memory of this machine, and downloads it while the server runs.

`--model auto` and `--model NAME` download without a question. Without the flag, the user is asked on a terminal while
only the test model is here. `--model none`, or the answer "no", is remembered until another `--model` is given.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.cli.launcher import subprocesses
from backend.cli.launcher.console import say
from backend.cli.launcher.declined_offer import is_to_be_made
from backend.cli.launcher.gpu_runtime import ask, get_json
from backend.common.byte_sizes import gb
from backend.common.commands import command

DECLINED = ".venv.model"  # outside .venv, which may be recreated
AUTO = "auto"


def offer(root: Path, url: str, wanted: str | None, verb: Callable[..., list[str]], flags: Sequence[str]) -> None:
    """Recommend and download a model. `verb` returns the command line of a verb."""
    declined = root / DECLINED
    if not is_to_be_made(declined, wanted):
        return
    name = wanted if wanted not in (None, AUTO) else _chosen(url, must_ask=wanted is None, declined=declined)
    if name is None:
        return
    if subprocesses.run(verb("models", "fetch", name, *flags)):
        retry = command(f"models fetch {name}")
        say(f"The model {name} could not be downloaded; see above. `{retry}` resumes; the test model works.")
    else:
        say(f"The model {name} is ready. Select it on the page, or: `{command(f'generate --model {name} PROMPT')}`")


def _chosen(url: str, must_ask: bool, declined: Path) -> str | None:
    """Return the recommended model; None if there is none, if another one is here, or if the user declines."""
    get_json(f"{url.rstrip('/')}/api/devices?wait_s=60")  # the card decides which model fits
    found = (get_json(f"{url.rstrip('/')}/api/models") or {}).get("recommended")
    if not isinstance(found, dict) or found.get("state") != "downloadable" or (must_ask and not found.get("offer")):
        return None
    name = str(found["model"])
    say(f"Only a small test model is here, whose answers are often wrong. Recommended: {_described(found)}")
    if not must_ask:
        return name
    fetch = command(f"models fetch {name}")
    hint = f"Download it with `{fetch}`, or start with --model auto; --model none turns this hint off."
    answer = ask(f"Download {name} now, while the server runs? [y/N] ", hint)
    if answer == "no":
        declined.write_text("none\n", encoding="utf-8")
        say(f"You will not be asked again. Download it later with `{fetch}`.")
    return name if answer == "yes" else None


def _described(found: dict[str, Any]) -> str:
    size = f", {gb(found['bytes'])}" if found.get("bytes") else ""
    minutes = f", {max(1, round(found['download_s'] / 60))} min at 100 Mbit/s" if found.get("download_s") else ""
    return f"{found['name']}{size}{minutes}, licence {found['licence']}. {found['reason']}"
