"""Convert models to other engines' forms: install the environment for it as a runtime, then run a child process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from backend.child import handle
from backend.child.convert import FORMS, OWN_RUNTIME, Form, quantization, source_bytes
from backend.child.convert.comparison import TOKENS, Comparison, ConvertedModel
from backend.child.convert.quantization import KINDS
from backend.child.convert.step_runner import run_step
from backend.child.handle import ChildStartError
from backend.child.spawner import spawn_child
from backend.child.wire_protocol import FailedFrame, Frame, HelloFrame
from backend.common.clean_text import restore_path
from backend.common.config.frame_schema import FrameSchema
from backend.common.config.settings import Settings
from backend.common.errors import TouchstoneError, Validation, WorkerCrashed, from_child
from backend.common.formats.safetensors import is_checkpoint
from backend.common.types import Progress
from backend.models import Entry
from backend.runtimes.installer import RuntimeInstaller, buildable
from backend.runtimes.recipes import Recipe, costs, how_to, read_recipes, recipes
from backend.runtimes.store import RUNTIMES, InstalledRuntime, RuntimeStore
from backend.tasks.options import fill_defaults

log = logging.getLogger(__name__)

DATA = Path(__file__).parents[1] / "child" / "convert" / "data"
# Greedy decoding, with the text of each token.
_GREEDY = {"max_tokens": TOKENS, "temperature": 0, "top_p": 1.0, "top_k": 0, "logprobs": 0}
OnProgress = Callable[[Progress], Awaitable[None]]


class _ProgressFrame(TypedDict):
    op: Literal["progress"]
    phase: str
    done: float
    total: float | None
    unit: str


class _DoneFrame(TypedDict):
    op: Literal["done"]


class _ConvertedFrame(_DoneFrame, total=False):
    """A ConvertedModel; without fields after `check`."""

    path: str
    bytes: int
    comparison: Comparison


_SCHEMA = FrameSchema(HelloFrame, _ProgressFrame, _ConvertedFrame, FailedFrame)


def check(entry: Entry, form: str, settings: Settings) -> None:
    """Raises Validation for an unsupported conversion, or one that needs a runtime first."""
    if form not in FORMS:
        raise Validation(f"to: {form[:50]!r} is not a known form.", f"Forms: {', '.join(FORMS)}.")
    if entry.target.suffix.lower() != ".gguf" and not is_checkpoint(entry.target):
        raise Validation(
            f"{entry.id} is neither a GGUF file nor a folder of safetensors; only such models are converted.",
            "Choose another model.",
        )
    wanted = FORMS[form]
    if not wanted.of_safetensors and entry.target.is_dir():
        raise Validation(
            f"{form} is made from GGUF files only.", f"Choose {_others(wanted)}, or download the model as GGUF."
        )
    if wanted.runtime != OWN_RUNTIME and _installed(settings, wanted.runtime) is None:
        raise Validation(
            f"{form} needs the runtime {wanted.runtime}, which is not installed.",
            how_to(recipes()[wanted.runtime]),
        )


async def convert(
    entry: Entry,
    form: str,
    settings: Settings,
    on_progress: OnProgress,
    turn: asyncio.Lock,
    spawn: handle.Spawn = handle.spawn,
) -> ConvertedModel:
    """Convert a model and return the new form. Cancelling it ends the child.

    `turn` is the lock for installing environments. Raises what the children report (ModelIncompatible, DiskFull,
    RuntimeFailed …), WorkerCrashed if one exits without a report.
    """
    order = {
        "op": "convert",
        "source": str(entry.target.absolute()),
        "model": entry.id,
        "form": form,
        "models_dir": str(settings.models_dir.absolute()),
        "options": fill_defaults("text", _GREEDY),
    }
    await _run({**order, "op": "check"}, on_progress, spawn)  # before an environment is installed in vain
    check(entry, form, settings)  # the runtime may have been removed while the job waited
    python = _installed(settings, FORMS[form].runtime)
    if python is None:
        if turn.locked():
            await on_progress(Progress("wait", 0, None, "bytes"))
        async with turn:
            python = await _python(settings, on_progress, spawn)
    order["python"] = python
    fields = {"model": entry.id, "form": form}
    log.info("conversion started", extra={**fields, "source_bytes": await asyncio.to_thread(_size, entry)})
    started_at = time.monotonic()
    try:
        frame = await _run(order, on_progress, spawn)
    except TouchstoneError as error:
        log.warning("conversion failed", extra={**fields, "code": error.code, "reason": error.detail})
        raise
    seconds = round(time.monotonic() - started_at, 1)
    log.info("conversion finished", extra={**fields, "bytes": frame["bytes"], "seconds": seconds})
    return {"path": restore_path(frame["path"]), "bytes": frame["bytes"], "comparison": frame["comparison"]}


def _size(entry: Entry) -> int | None:
    with contextlib.suppress(OSError):
        return source_bytes(entry.target)
    return None


async def _run(order: Mapping[str, object], on_progress: OnProgress, spawn: handle.Spawn) -> Frame:
    """Run a child and return its `done` frame. Raises the error that it reports, WorkerCrashed without a report."""
    try:
        child = await spawn_child(spawn, sys.executable, ["convert"], _SCHEMA)
    except ChildStartError as error:
        raise WorkerCrashed(f"The conversion process could not be started: {error}.", "Retry.") from error
    child.send(order)
    try:
        while frame := await child.receive():
            if frame["op"] == "progress":
                await on_progress(Progress(frame["phase"], frame["done"], frame["total"], frame["unit"]))
            elif frame["op"] == "failed":
                raise from_child(frame)
            elif frame["op"] == "done":
                if order["op"] != "check" and not {"path", "bytes", "comparison"} <= set(frame):
                    raise WorkerCrashed("The conversion process reported no result.", "Retry; the conversion resumes.")
                return frame
        raise WorkerCrashed(
            f"The conversion process exited early: {child.exit_summary()}.", "Retry; the conversion resumes."
        )
    finally:
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await child.ended()


async def _python(settings: Settings, on_progress: OnProgress, spawn: handle.Spawn) -> str:
    """Return the interpreter of the environment, installed if it does not exist. Raises RuntimeFailed, DiskFull."""
    if installed := _installed(settings, OWN_RUNTIME):
        return installed
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
) -> quantization.Report:
    """Write a smaller ONNX graph in the environment for conversions; return its difference (`convert/quantization.py`).

    `samples` are `NAME=FILE.npy`. Raises Validation, Configuration, RuntimeFailed, DiskFull.
    """
    if kind not in KINDS:
        raise Validation(f"to: {kind[:50]!r} is not a known kind of quantisation.", f"Kinds: {', '.join(KINDS)}.")
    python = await _python(settings, on_progress, handle.spawn)
    command = [python, "-I", str(Path(quantization.__file__)), str(source), str(target), kind, *samples]
    failing = f"the graph {source.name} could not be converted to {kind}"
    printed = await asyncio.to_thread(run_step, command, failing)
    report: quantization.Report = json.loads(printed.splitlines()[-1])
    return report


def first_cost(settings: Settings) -> str | None:
    """Return what must be installed first, as a sentence. None if all is installed."""
    if _installed(settings, OWN_RUNTIME):
        return None
    return f"The first conversion installs an environment with torch: {costs(buildable(_recipe()))}."


def cost(settings: Settings, form: str, source: Path) -> str:
    """Return what a conversion costs, as sentences."""
    room, here = FORMS[form].room * source_bytes(source), FORMS[form].runtime != OWN_RUNTIME
    work = f"Converting takes {'a minute' if here else 'some minutes'} and about {room / 1e6:.0f} MB temporarily."
    first = None if here else first_cost(settings)
    return f"{work} {first}" if first else work


def _others(form: Form) -> str:
    return " or ".join(other.name for other in FORMS.values() if other.of_safetensors and other is not form)


def _recipe() -> Recipe:
    return read_recipes(DATA)[OWN_RUNTIME]


def _shelf(settings: Settings) -> RuntimeStore:
    return RuntimeStore(settings.data_dir / RUNTIMES)


def _installed(settings: Settings, runtime: str) -> str | None:
    """Return the interpreter of an installed environment: the user's, or one that Touchstone installed."""
    rules = settings.runtimes.get(runtime)
    if rules and rules.python:
        return str(rules.python)
    shelf = _shelf(settings)
    made = _current(shelf, _recipe()) if runtime == OWN_RUNTIME else shelf.current(runtime)
    return made.python if made else None


def _current(shelf: RuntimeStore, recipe: Recipe) -> InstalledRuntime | None:
    """Return the environment, if it exists and has the packages that this version needs."""
    made = shelf.current(OWN_RUNTIME)
    if made is None:
        return None
    installed = {f"{name}=={version.partition('+')[0]}" for name, version in made.packages.items()}
    return made if set(recipe.lines()) <= installed else None


def said(form: str, made: ConvertedModel) -> str:
    """Return the outcome as text: how far the output of the new form matches that of its source."""
    comparison = made["comparison"]
    tokens = f"{comparison['tokens_alike']} of {comparison['tokens']} tokens before the first difference"
    lines = [
        f"{form}: {made['bytes'] / 1e6:.0f} MB. Compared with its source on {comparison['prompts']} prompts with "
        f"greedy decoding: {tokens}, {comparison['first_alike']} first tokens and {comparison['texts_alike']} complete "
        f"texts alike; {comparison['prompts_tokenized_alike']} prompts had the same number of tokens."
    ]
    for difference in comparison["differences"]:
        lines += [f"- {difference['prompt']}", f"  source: {difference['source']}", f"  {form}: {difference['made']}"]
    return "\n".join(lines)
