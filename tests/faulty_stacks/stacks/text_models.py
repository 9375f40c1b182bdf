"""Text models on devices that pass their proof and compute models wrongly, and on sound ones: what the load says.

Each stack is a worker of the service, in an interpreter with stand-ins, that loads a model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.child.handle import spawn
from backend.common.errors import TouchstoneError
from backend.engines import LoadRequest
from backend.scheduling.worker import Limits, Worker, WorkerKey
from tests.faulty_stacks.cases.case import CARD
from tests.faulty_stacks.environments import make
from tests.faulty_stacks.stack import Category, Stack
from tests.test_transformers import PACKAGES, write_model

SHARPNESS = 6  # the logits of models that were trained lie further apart than those of random weights
LIMITS = Limits(silence_s=30, load_s=120, step_s=60, cancel_s=5)
Check = Callable[[Path], Coroutine[Any, Any, None]]
REMEDY = "Update the driver of .* and the runtime, then refresh the devices; until then use another device"


async def load(python: Path, engine: str, request: LoadRequest) -> str:
    """Load a model in a worker; return the evidence of its placement. Raises what the worker reports."""
    worker = Worker(WorkerKey(request.device, "r", engine, "m"), str(python), LIMITS, spawn)
    try:
        return (await worker.load(engine, request)).placement.evidence
    finally:
        await worker.close()


def prepare(folder: Path, plan: dict[str, Any], device: str = "cuda:0", **more: Any) -> tuple[Path, LoadRequest]:
    """Return an interpreter with torch and transformers, and the request to load a model there."""
    python = make(folder / "env", {"cards": [CARD], **plan}, PACKAGES)
    model = write_model(folder / "model", sharpness=SHARPNESS)
    facts = {"check_bytes": 10**9, "verdict_dir": str(folder / "verdicts"), **more}
    return python, LoadRequest(device, str(model), 400, 1, 2, **facts)


def wrong(how: str, reason: str, slots: int = 2) -> Check:
    """A card that computes the model wrongly: the load fails with the reason and numbers."""

    async def check(folder: Path) -> None:
        python, request = prepare(folder, {"text": how})
        error = await failure(python, "transformers", replace(request, slots=slots))
        assert error.code == "device_wrong" and error.falls_back, error.detail
        assert re.search(reason, error.detail) and error.detail.startswith("cuda:0 computes model wrongly"), (
            error.detail
        )
        assert re.search(REMEDY, error.remedy), error.remedy
        assert not (folder / "verdicts").exists(), "a wrong result is never remembered"

    return check


async def failure(python: Path, engine: str, request: LoadRequest) -> TouchstoneError:
    """Return the error of a load."""
    try:
        evidence = await load(python, engine, request)
    except TouchstoneError as error:
        return error
    raise AssertionError(f"it was loaded: {evidence}")


def sound(plan: dict[str, Any], evidence: str, device: str = "cuda:0", **more: Any) -> Check:
    """A device that computes the model well."""

    async def check(folder: Path) -> None:
        found = await load(*_with_engine(prepare(folder, plan, device, **more)))
        assert re.search(evidence, found), found

    return check


def _with_engine(prepared: tuple[Path, LoadRequest]) -> tuple[Path, str, LoadRequest]:
    return prepared[0], "transformers", prepared[1]


async def remembered(folder: Path) -> None:
    """The second load takes the verdict of the first; another driver, or another file, is checked again."""
    python, request = prepare(folder, {})
    first = await load(python, "transformers", request)
    again = await load(python, "transformers", request)
    assert "Checked at" not in first and re.search(r"of the processor's .*Checked at 20", again), again
    assert "Checked at" not in await load(python, "transformers", replace(request, driver="580.1"))


async def replaced(folder: Path) -> None:
    """A model whose file was replaced is checked again, on a device that fails meanwhile."""
    python, request = prepare(folder, {})
    await load(python, "transformers", request)
    os.utime(Path(request.model_path) / "model.safetensors", ns=(1, 1))
    plan = next(python.parents[1].rglob("site-packages")) / "torch" / "plan.json"
    plan.write_text(plan.read_text().replace("{", '{"text": "garbage", ', 1))
    assert (await failure(python, "transformers", request)).code == "device_wrong"


async def lost(folder: Path) -> None:
    """A device that is lost during the check is lost, not wrong."""
    python, request = prepare(folder, {"text": "lost"})
    error = await failure(python, "transformers", request)
    assert error.code in ("device_lost", "model_load_failed") and "illegal memory access" in error.detail, error.detail


WITHIN = r"Over 18 tokens its log probabilities were within [\d.e-]+ of the processor's"
_ALL: list[tuple[str, Category, Check]] = [
    ("products halved in the worker alone", "numbers", wrong("halved", "not the processor's. Log prob.*is allowed")),
    ("garbage from the load on", "numbers", wrong("garbage", "after the short prompt, .*not the processor's")),
    ("NaN from the load on", "numbers", wrong("nan", "NaN or infinite")),
    ("NaN after the fifth step", "numbers", wrong("late", "further tokens, .*not finite. They are NaN", slots=1)),
    ("right for small shapes only", "numbers", wrong("large", "after the long prompt, .*not the processor's")),
    ("garbage from the KV cache", "numbers", wrong("cache", "(one by one|1 further tokens|not the processor's)")),
    ("wrong where prompts are read at once", "numbers", wrong("prefill", "prompt.*not (the processor's|those of)")),
    ("wrong in the second row of a batch", "numbers", wrong("second row", "after the long prompt and 1 further")),
    ("right in the first pass only", "numbers", wrong("second pass", "probabilities of the next token are not")),
    ("lost during the check", "numbers", lost),
    ("replaced model on a device that fails meanwhile", "numbers", replaced),
    ("exact", "control", sound({}, WITHIN)),
    ("healthy rounding to bfloat16", "control", sound({"text": "rounded"}, WITHIN)),
    ("float16 by DirectML", "control", sound({"adapters": ["AMD Radeon RX 6800"]}, WITHIN, "directml:0")),
    ("copy larger than the limit", "control",
     sound({}, r"not compared with the processor's: a copy there needs .*more than text.check_memory", check_bytes=1)),
    ("remembered verdict", "control", remembered),
]  # fmt: skip
STACKS = [Stack(f"text model: {name}", category, check) for name, category, check in _ALL]
