"""The choice of the ONNX graph for a device, by its placement and its results, with a fake device on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from backend.common.device_api import OnnxProvider
from backend.common.errors import ModelLoadFailed
from backend.common.types import Placement, PlacementPart
from backend.devices._mechanisms.onnx_placement import OnnxPlace
from backend.engines._onnx.music_step_graphs import choose_graph
from backend.tasks.music.agreement import check_agreement
from backend.tasks.music.composer import compose
from backend.tasks.music.decoder import RowByRow
from backend.tasks.music.plan import Plan
from backend.tasks.music.thread_tuning import fastest_thread_count, thread_counts
from backend.tasks.music.weights import DATA, Weights, read_weights

PROVIDER = OnnxProvider(names=("played",))
ALL = frozenset({"device-fp32", "host-fp32", "device-fp16", "host-fp16"})


@dataclass
class Device(OnnxPlace):
    """`whole` are the graphs that it runs completely; `fixed`: it needs fixed shapes for that."""

    whole: frozenset[str] = ALL
    fixed: bool = False
    memory_of_its_own: bool = True
    off: float = 0.0  # added to what it computes
    refuses: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    last: tuple[str, bool] = ("", False)

    @property
    def is_processor(self) -> bool:
        return self.device == "cpu"

    @property
    def memory(self) -> tuple[str, int, int] | None:
        return ("cpu", 0, 0) if self.memory_of_its_own else None

    def session(self, model: Any, *args: Any, dimensions: Mapping[str, int] | None = None, **kwargs: Any) -> Any:
        if self.is_processor:
            return super().session(model, 1)
        name = Path(model).stem.removeprefix("step-")
        self.asked.append(name + (" fixed" if dimensions else ""))
        self.last = (name, bool(dimensions))
        if name in self.refuses:
            raise RuntimeError(f"{name} needs what this driver lacks")
        processor = OnnxPlace(onnxruntime, "cpu", "CPUExecutionProvider", None, PROVIDER)
        made = processor.session(model, 1, dimensions=dimensions)
        return SimpleNamespace(
            get_inputs=made.get_inputs,
            get_outputs=made.get_outputs,
            run=lambda *asked: [made.run(*asked)[0] + self.off, *made.run(*asked)[1:]],
            io_binding=made.io_binding,
            run_with_iobinding=made.run_with_iobinding,
        )

    def placement(self, sessions: Any) -> Placement:
        name, fixed = self.last
        share = 1.0 if name in self.whole and (fixed or not self.fixed) else 0.4
        return Placement(share, [PlacementPart(self.device, share)], "Played.")


def device(provider_facts: OnnxProvider = PROVIDER, **traits: Any) -> Device:
    return Device(onnxruntime, "onnx-npu:0", "Played", None, provider_facts, **traits)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return read_weights()


@pytest.mark.parametrize(
    ("traits", "file", "asked"),
    [
        ({}, "step-device-fp32.onnx", ["device-fp32"]),
        ({"memory_of_its_own": False}, "step-host-fp32.onnx", ["host-fp32"]),
        ({"refuses": {"device-fp32"}}, "step-host-fp32.onnx", ["device-fp32", "host-fp32"]),
        ({"memory_of_its_own": False, "fixed": True}, "step-host-fp32.onnx", ["host-fp32", "host-fp32 fixed"]),
        (
            {"memory_of_its_own": False, "provider_facts": replace(PROVIDER, compiles_shapes=True)},
            "step-host-fp32.onnx",
            ["host-fp32 fixed"],
        ),
        (
            {"memory_of_its_own": False, "whole": {"host-fp16"}},
            "step-host-fp16.onnx",
            ["host-fp32", "host-fp32 fixed", "host-fp16"],
        ),
        (
            {"memory_of_its_own": False, "fixed": True, "whole": {"host-fp16"}},
            "step-host-fp16.onnx",
            ["host-fp32", "host-fp32 fixed", "host-fp16", "host-fp16 fixed"],
        ),
    ],
)
def test_the_first_graph_that_it_computes_whole(
    traits: dict[str, Any], file: str, asked: list[str], weights: Weights
) -> None:
    place = device(**traits)
    chosen = choose_graph(place, weights, DATA, 1)
    assert (chosen.file, place.asked, chosen.placement.on_device) == (file, asked, 1.0)
    assert "its logits were within" in chosen.placement.evidence
    made = compose(chosen.decoder, Plan("jig", (6, 8), "major", "G", 2), [1, 2])
    assert [tune.bars for tune in made] == [2, 2]


def test_with_none_whole_it_gets_the_one_with_most_on_the_device(weights: Weights) -> None:
    chosen = choose_graph(device(memory_of_its_own=False, whole=frozenset()), weights, DATA, 1)
    assert (chosen.file, chosen.placement.on_device) == ("step-host-fp32.onnx", 0.4)


def test_a_device_that_computes_something_else_is_refused(weights: Weights) -> None:
    with pytest.raises(ModelLoadFailed, match=r"differ from the CPU's by 0\.5"):
        choose_graph(device(memory_of_its_own=False, off=0.5), weights, DATA, 1)
    rounding = replace(PROVIDER, rounds_inputs=True)
    assert (
        "within 0.1 of"
        in choose_graph(device(rounding, memory_of_its_own=False, off=0.1), weights, DATA, 1).placement.evidence
    )
    with pytest.raises(ModelLoadFailed, match=r"0\.2 is allowed"):
        choose_graph(device(rounding, memory_of_its_own=False, off=0.3), weights, DATA, 1)
    with pytest.raises(ModelLoadFailed, match="by inf"):
        choose_graph(device(memory_of_its_own=False, off=np.nan), weights, DATA, 1)


def test_a_device_that_takes_no_graph_says_why(weights: Weights) -> None:
    with pytest.raises(RuntimeError, match="device-fp32 needs what this driver lacks"):
        choose_graph(device(refuses=ALL), weights, DATA, 1)


def test_a_slow_device_is_asked_for_fewer_tokens(weights: Weights) -> None:
    place = OnnxPlace(onnxruntime, "cpu", "CPUExecutionProvider", None, PROVIDER)
    decoder = choose_graph(place, weights, DATA, 1).decoder
    late = iter(range(0, 100, 2))
    other = RowByRow(lambda: choose_graph(place, weights, DATA, 1).decoder)
    assert "Over 4 tokens" in check_agreement(decoder, other, 0.01, clock=lambda: next(late))
    assert "Over 24 tokens" in check_agreement(decoder, other, 0.01, clock=lambda: 0.0)


class Paced:
    """A decoder whose steps take a given time on a fake clock."""

    def __init__(self, clock: list[float], step_s: float) -> None:
        self._clock, self._step_s = clock, step_s

    def start(self, batch: int, tokens: int) -> None:
        pass

    def step(self, ids: Any, sides: Any) -> Any:
        self._clock[0] += self._step_s


def test_the_fewest_threads_that_are_as_fast_as_the_best_are_chosen() -> None:
    clock = [0.0]
    steps = {2: 0.0034, 4: 0.0033, 8: 0.0035, 32: 0.0052}
    count, said = fastest_thread_count(
        {count: Paced(clock, step_s) for count, step_s in steps.items()}, lambda: clock[0]
    )
    assert count == 2 and "5.2 ms with 32" in said
    count, _ = fastest_thread_count({2: Paced(clock, 0.0050), 8: Paced(clock, 0.0035)}, lambda: clock[0])
    assert count == 8


@pytest.mark.parametrize(("most", "tried"), [(1, [1]), (4, [4]), (6, [2, 4, 6]), (8, [2, 4, 8]), (32, [2, 4, 8, 32])])
def test_a_processor_of_few_cores_is_not_measured(most: int, tried: list[int]) -> None:
    assert list(thread_counts(most)) == tried


def test_the_number_of_threads_is_chosen_at_the_load_and_changes_no_tune(weights: Weights) -> None:
    place = OnnxPlace(onnxruntime, "cpu", "CPUExecutionProvider", None, PROVIDER)
    many = choose_graph(place, weights, DATA, 6)
    assert many.threads in (2, 4, 6) and "chosen by measurement" in many.placement.evidence
    one = choose_graph(place, weights, DATA, 1)
    assert one.threads == 1 and "chosen by measurement" not in one.placement.evidence
    plan = Plan("jig", (6, 8), "major", "D", 2)
    assert compose(many.decoder, plan, [3, 4]) == compose(one.decoder, plan, [3, 4])
