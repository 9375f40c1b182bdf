"""Makes other engines' forms of a model by a child process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from backend import children
from backend.catalogue import Entry
from backend.children import Child
from backend.convert import ENVIRONMENT_BYTES, FORMS, environment, work_bytes
from backend.errors import Validation, WorkerCrashed, from_code
from backend.settings import Settings
from backend.types import Progress

RUNTIME = "convert"
OnProgress = Callable[[Progress], Awaitable[None]]


def check(entry: Entry, form: str) -> None:
    """Raises Validation for what cannot be converted."""
    if form not in FORMS:
        raise Validation(f"to: {form[:50]!r} is no form that models are converted to.", f"Forms: {', '.join(FORMS)}.")
    if entry.target.suffix.lower() != ".gguf":
        raise Validation(f"{entry.id} is no GGUF file, and only such are converted.", "Choose a GGUF model.")


async def convert(
    entry: Entry, form: str, settings: Settings, on_progress: OnProgress, spawn: children.Spawn = children.spawn
) -> dict[str, Any]:
    """Converts a model and returns `{path, bytes, comparison}`; leaving it ends the child.

    Raises what the child says (ModelIncompatible, DiskFull, Configuration …), WorkerCrashed if it says nothing.
    """
    own = settings.runtimes.get(RUNTIME)
    order = {
        "op": "convert",
        "source": str(entry.target.absolute()),
        "model": entry.id,
        "form": form,
        "models_dir": str(settings.models_dir.absolute()),
        "home": str(_home(settings)),
        "python": str(own.python) if own and own.python else None,
    }
    child = Child(spawn(sys.executable, ["convert"]), asyncio.get_running_loop())
    child.send(order)
    try:
        while frame := await child.receive():
            if frame["op"] == "progress":
                await on_progress(Progress(frame["phase"], frame["done"], frame["total"], frame["unit"]))
            elif frame["op"] == "failed":
                raise from_code(frame["code"], frame["detail"], frame["remedy"])
            elif frame["op"] == "done":
                return {name: frame[name] for name in ("path", "bytes", "comparison")}
        raise WorkerCrashed(f"The converting program ended early: {child.ending()}.", "Start it again: it goes on.")
    finally:
        child.kill()
        await child.ended()


def cost(settings: Settings, source: Path) -> str:
    """What a conversion takes, in words."""
    work = f"Converting takes some minutes and about {work_bytes(source.stat().st_size) / 1e6:.0f} MB for a while."
    own = settings.runtimes.get(RUNTIME)
    if (own and own.python) or environment.ready(_home(settings)):
        return work
    return (
        f"{work} The first time, an environment is made under {_home(settings)}: {ENVIRONMENT_BYTES / 1e9:.1f} GB if "
        "pip finds torch for processors. On Linux the usual torch is one for CUDA and takes over 5 GB; with "
        "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu pip takes the small one."
    )


def _home(settings: Settings) -> Path:
    return (settings.storage.data_dir / "runtimes" / RUNTIME).absolute()


def said(form: str, made: dict[str, Any]) -> str:
    """The outcome as text: how far the new form says what its source says."""
    found = made["comparison"]
    lines = [
        f"{form}: {made['bytes'] / 1e6:.0f} MB. Compared with its source on {found['prompts']} prompts, taking the "
        f"likeliest token each time: {found['tokens_alike']} of {found['tokens']} tokens before the first difference, "
        f"{found['first_alike']} first tokens and {found['texts_alike']} whole texts alike; "
        f"{found['prompts_tokenized_alike']} prompts had as many tokens."
    ]
    for difference in found["differences"]:
        lines += [f"- {difference['prompt']}", f"  source: {difference['source']}", f"  {form}: {difference['made']}"]
    return "\n".join(lines)
