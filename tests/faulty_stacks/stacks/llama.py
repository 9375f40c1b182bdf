"""Cards on which llama.cpp computes a model wrongly although ggml's operations are right, and sound ones.

The engine loads a tiny model by the real library, twice on the processor: as the card's, whose logits are spoiled after
each step, and as the copy that it is compared with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend.common.errors import DeviceWrong
from backend.engines import LoadRequest
from backend.engines import llama_cpp as engine
from backend.engines._llama import fit
from backend.engines._llama.batch_model import LlamaBatchModel
from backend.engines._llama.loaded_model import LoadedModel, load_model
from tests.faulty_stacks.stack import Category, Stack
from tests.faulty_stacks.stacks.text_models import REMEDY, WITHIN
from tests.service import ROOT

TINY = ROOT / "tests" / "cases" / "gguf" / "tiny_no_template.gguf"
LONG, LATE = 100, 4
# Changes the logits of one output in place. Takes them, its position in the sequence, and how many steps were computed.
Spoil = Callable[["np.ndarray[Any, Any]", int, int], None]


class SpoiledModel(LlamaBatchModel):
    """A model whose logits are changed after each step."""

    spoil: Spoil
    steps = 0

    def _decode(self) -> None:
        super()._decode()
        self.steps += 1
        batch: Any = self._batch
        for output in range(batch.count):
            if batch._outputs[output]:
                address = self._llama.llama_get_logits_ith(self._context, output)
                floats: Any = self._sampling._floats.from_address(address)
                self.spoil(np.frombuffer(floats, np.float32), batch._positions[output], self.steps)


def _load(spoil: Spoil | None, folder: Path) -> str:
    """Load the model as a card's; return the evidence. Raises DeviceWrong."""
    loaded: list[LoadedModel] = []
    rows = LoadedModel.rows

    def noted(*arguments: Any) -> LoadedModel:
        loaded.append(load_model(*arguments))
        return loaded[-1]

    def spoiled_rows(self: LoadedModel) -> LlamaBatchModel:
        model = rows(self)
        if spoil and self is loaded[0]:  # the second one is the copy
            model.__class__ = type("Spoiled", (SpoiledModel,), {"spoil": staticmethod(spoil)})
        return model

    request = LoadRequest("vulkan:0", str(TINY), 900, 1, 1, check_bytes=10**9, verdict_dir=str(folder / "v"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "ggml_place", lambda device, detected: SimpleNamespace(handle=0))
        patch.setattr(engine, "choose_devices", lambda library, request, handle: [])
        for module in (fit, engine):  # the first one loads the card's model, the second one the copy
            patch.setattr(module, "load_model", noted)
        patch.setattr(LoadedModel, "rows", spoiled_rows)
        return engine.load(request).placement.evidence


def _refused(spoil: Spoil, expected: str, folder: Path) -> None:
    with pytest.raises(DeviceWrong) as caught:
        _load(spoil, folder)
    assert re.search(expected, caught.value.detail), caught.value.detail
    assert re.search(REMEDY, caught.value.remedy)
    assert not (folder / "v").exists(), "a wrong result is never remembered"


def _offered(spoil: Spoil | None, folder: Path) -> None:
    assert re.search(WITHIN, _load(spoil, folder))


def _flatten(logits: np.ndarray[Any, Any], position: int, steps: int) -> None:
    logits *= 0.25


def _turn_long(logits: np.ndarray[Any, Any], position: int, steps: int) -> None:
    if position > LONG:
        logits *= -1


def _turn_late(logits: np.ndarray[Any, Any], position: int, steps: int) -> None:
    if steps > LATE:
        logits *= -1


def _not_a_number(logits: np.ndarray[Any, Any], position: int, steps: int) -> None:
    logits[:] = np.nan


def _round(logits: np.ndarray[Any, Any], position: int, steps: int) -> None:
    logits[:] = logits.astype(np.float16)


_ALL: list[tuple[str, Category, Callable[[Path], None]]] = [
    ("exact", "control", partial(_offered, None)),
    ("healthy rounding", "control", partial(_offered, _round)),
    ("probabilities too flat", "numbers", partial(_refused, _flatten, "not the processor.s. Log probabilities differ")),
    ("wrong for long prompts", "numbers", partial(_refused, _turn_long, "after the long prompt")),
    ("wrong after some tokens", "numbers", partial(_refused, _turn_late, "further tokens|one by one|long prompt")),
    ("not a number", "numbers", partial(_refused, _not_a_number, "NaN or infinite")),
]
STACKS = [Stack(f"llama.cpp's model on a card: {name}", category, check) for name, category, check in _ALL]
