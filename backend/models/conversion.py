"""Makes other engines' forms of a model: the environment for it as runtimes are made, the rest by a child process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from backend.child import handle
from backend.child.convert import FORMS, OWN_RUNTIME, Form, quantization, source_bytes
from backend.child.convert.quantization import KINDS
from backend.child.convert.step_runner import run_step
from backend.child.handle import ChildProcess
from backend.common.config.settings import Settings
from backend.common.errors import Validation, WorkerCrashed, from_code
from backend.common.formats.safetensors import is_checkpoint
from backend.common.types import Progress
from backend.models import Entry
from backend.runtimes.installer import RuntimeInstaller, buildable
from backend.runtimes.recipes import Recipe, costs, how_to, read_recipes, recipes
from backend.runtimes.store import RUNTIMES, InstalledRuntime, RuntimeStore

DATA = Path(__file__).parents[1] / "child" / "convert" / "data"
OnProgress = Callable[[Progress], Awaitable[None]]


def check(entry: Entry, form: str, settings: Settings) -> None:
    """Raises Validation for what cannot be converted, or not before a runtime is here."""
    if form not in FORMS:
        raise Validation(f"to: {form[:50]!r} is no form that models are converted to.", f"Forms: {', '.join(FORMS)}.")
    if entry.target.suffix.lower() != ".gguf" and not is_checkpoint(entry.target):
        raise Validation(
            f"{entry.id} is neither a GGUF file nor a folder of safetensors, and only such are converted.",
            "Choose such a model.",
        )
    wanted = FORMS[form]
    if not wanted.of_safetensors and entry.target.is_dir():
        raise Validation(f"{form} is made of GGUF files alone.", f"Take {_others(wanted)}, or fetch the model as GGUF.")
    if wanted.runtime != OWN_RUNTIME and _installed(settings, wanted.runtime) is None:
        raise Validation(
            f"{form} is made in the runtime {wanted.runtime}, which is not installed; the form runs in it, too.",
            how_to(recipes()[wanted.runtime]),
        )


async def convert(
    entry: Entry,
    form: str,
    settings: Settings,
    on_progress: OnProgress,
    turn: asyncio.Lock,
    spawn: handle.Spawn = handle.spawn,
) -> dict[str, Any]:
    """Converts a model and returns `{path, bytes, comparison}`; leaving it ends the child.

    `turn` is the one place for making environments. Raises what the children say (ModelIncompatible, DiskFull,
    RuntimeFailed …), WorkerCrashed if one says nothing.
    """
    order = {
        "op": "convert",
        "source": str(entry.target.absolute()),
        "model": entry.id,
        "form": form,
        "models_dir": str(settings.models_dir.absolute()),
    }
    await _run({**order, "op": "check"}, on_progress, spawn)  # what cannot be converted costs no environment
    check(entry, form, settings)  # the runtime may have gone while the job waited
    found = _installed(settings, FORMS[form].runtime)
    if found is None:
        if turn.locked():
            await on_progress(Progress("wait", 0, None, "bytes"))
        async with turn:
            found = await _python(settings, on_progress, spawn)
    order["python"] = found
    return await _run(order, on_progress, spawn)


async def _run(order: dict[str, Any], on_progress: OnProgress, spawn: handle.Spawn) -> dict[str, Any]:
    child = ChildProcess(spawn(sys.executable, ["convert"]), asyncio.get_running_loop())
    child.send(order)
    try:
        while frame := await child.receive():
            if frame["op"] == "progress":
                await on_progress(Progress(frame["phase"], frame["done"], frame["total"], frame["unit"]))
            elif frame["op"] == "failed":
                raise from_code(frame["code"], frame["detail"], frame["remedy"])
            elif frame["op"] == "done":
                return {name: frame[name] for name in ("path", "bytes", "comparison") if name in frame}
        raise WorkerCrashed(
            f"The converting program ended early: {child.exit_summary()}.", "Start it again: it goes on."
        )
    finally:
        child.kill()
        await child.ended()


async def _python(settings: Settings, on_progress: OnProgress, spawn: handle.Spawn) -> str:
    """The interpreter of the environment, which is made if it is not there. Raises RuntimeFailed, DiskFull."""
    if found := _installed(settings, OWN_RUNTIME):
        return found
    rules, shelf, recipe = settings.runtimes.get(OWN_RUNTIME), _shelf(settings), _recipe()
    await asyncio.to_thread(shelf.sweep, OWN_RUNTIME)
    maker = RuntimeInstaller(shelf, settings.data_dir / "tools", spawn)
    lock, about = await maker.lock(recipe, on_progress, None, rules.index if rules else None)
    made = shelf.made(OWN_RUNTIME, lock.digest) or await maker.make(recipe, lock, about, on_progress)
    shelf.finish(OWN_RUNTIME, made)
    shelf.switch(OWN_RUNTIME, made.version)
    await asyncio.to_thread(shelf.sweep, OWN_RUNTIME)
    return made.python


async def quantize(
    source: Path, target: Path, kind: str, samples: Sequence[str], settings: Settings, on_progress: OnProgress
) -> dict[str, Any]:
    """Writes a smaller ONNX graph, by the environment for conversions; how far it is apart (`convert/quantization.py`).

    `samples` are `NAME=FILE.npy`. Raises Validation, Configuration, RuntimeFailed, DiskFull.
    """
    if kind not in KINDS:
        raise Validation(f"to: {kind[:50]!r} is nothing that graphs are made into.", f"There is {', '.join(KINDS)}.")
    python = await _python(settings, on_progress, handle.spawn)
    command = [python, "-I", str(Path(quantization.__file__)), str(source), str(target), kind, *samples]
    failing = f"the graph {source.name} could not be made into {kind}"
    printed = await asyncio.to_thread(run_step, command, failing)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def first_cost(settings: Settings) -> str | None:
    """What has to be made first, in words, or nothing."""
    if _installed(settings, OWN_RUNTIME):
        return None
    return f"The first time, an environment with torch is made: {costs(buildable(_recipe()))}."


def cost(settings: Settings, form: str, source: Path) -> str:
    """What a conversion takes, in words."""
    room, here = FORMS[form].room * source_bytes(source), FORMS[form].runtime != OWN_RUNTIME
    work = f"Converting takes {'a minute' if here else 'some minutes'} and about {room / 1e6:.0f} MB for a while."
    first = None if here else first_cost(settings)
    return f"{work} {first}" if first else work


def _others(form: Form) -> str:
    return " or ".join(other.name for other in FORMS.values() if other.of_safetensors and other is not form)


def _recipe() -> Recipe:
    return read_recipes(DATA)[OWN_RUNTIME]


def _shelf(settings: Settings) -> RuntimeStore:
    return RuntimeStore(settings.data_dir / RUNTIMES)


def _installed(settings: Settings, runtime: str) -> str | None:
    """The interpreter of an environment that is here: the user's own, or one that Touchstone made."""
    rules = settings.runtimes.get(runtime)
    if rules and rules.python:
        return str(rules.python)
    shelf = _shelf(settings)
    made = _current(shelf, _recipe()) if runtime == OWN_RUNTIME else shelf.current(runtime)
    return made.python if made else None


def _current(shelf: RuntimeStore, recipe: Recipe) -> InstalledRuntime | None:
    """The environment, if it is there and holds what this version asks for."""
    made = shelf.current(OWN_RUNTIME)
    if made is None:
        return None
    held = {f"{name}=={version.partition('+')[0]}" for name, version in made.packages.items()}
    return made if set(recipe.lines()) <= held else None


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
