"""The same weights with every decoder: torch, ONNX Runtime with its two graphs, float32 and float16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from backend.tasks.music import tokens
from backend.tasks.music.composer import compose
from backend.tasks.music.decoder import Decoder, RowByRow
from backend.tasks.music.decoder_onnx import DeviceDecoder, HostDecoder, fixed_shapes
from backend.tasks.music.grid import SIDES
from backend.tasks.music.network import graph_name
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.plan import Plan
from backend.tasks.music.weights import DATA, WEIGHTS, Weights, read_weights

PLANS = [Plan("jig", (6, 8), "major", "G", 5), Plan("hornpipe", (4, 4), "minor", "A", 6)]


HOST = ("cpu", 0, 0)  # its memory, as if it were a device's


def session(half: bool, device: bool, fixed: bool = False) -> ort.InferenceSession:
    """On the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for name, size in fixed_shapes(300).items() if fixed else ():
        options.add_free_dimension_override_by_name(name, size)
    return ort.InferenceSession(str(DATA / graph_name(half, device)), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def weights() -> Weights:
    return read_weights()


@pytest.fixture(scope="module")
def reference(weights: Weights) -> HostDecoder:
    return HostDecoder(weights, session(False, False))


def forced(decoder: Decoder, steps: int, batch: int = 2) -> NDArray[np.float32]:
    """Return logits [steps, batch, vocabulary] for fixed random tokens and side ids."""
    random = np.random.default_rng(3)
    decoder.start(batch, 300)
    found = []
    for _ in range(steps):
        ids = random.integers(tokens.VOCABULARY, size=batch)
        sides = np.stack([random.integers(size, size=batch) for size in SIDES], axis=1)
        found.append(decoder.step(ids, sides))
    return np.stack(found)


def fixed_host(weights: Weights) -> Decoder:
    of_one_row = session(False, False, fixed=True)
    return RowByRow(lambda: HostDecoder(weights, of_one_row, fixed=True))


def fixed_device(weights: Weights) -> Decoder:
    of_one_row = session(False, True, fixed=True)
    return RowByRow(lambda: DeviceDecoder(weights, of_one_row, HOST, fixed=True))


OTHERS: dict[str, tuple[Callable[[Weights], Decoder], float]] = {
    "kept on the device": (lambda w: DeviceDecoder(w, session(False, True), HOST), 1e-4),
    "float16": (lambda w: HostDecoder(w, session(True, False)), 0.1),
    "float16 on the device": (lambda w: DeviceDecoder(w, session(True, True), HOST), 0.1),
    "fixed shapes": (fixed_host, 1e-4),
    "fixed shapes on the device": (fixed_device, 1e-4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_logits_agree(name: str, weights: Weights, reference: HostDecoder) -> None:
    make, tolerance = OTHERS[name]
    steps = 140  # more than the room that is made first
    assert np.abs(forced(make(weights), steps) - forced(reference, steps)).max() < tolerance


def test_torch_composes_the_same_tunes_as_onnx_runtime(weights: Weights, reference: HostDecoder) -> None:
    pytest.importorskip("torch", reason="torch is no requirement of the tests; its own runtime brings it")
    from backend.tasks.music.decoder_torch import TorchDecoder

    decoder = TorchDecoder(weights, "cpu")
    assert np.abs(forced(decoder, 140) - forced(reference, 140)).max() < 1e-3
    for plan in PLANS:
        assert compose(decoder, plan, [1, 2]) == compose(reference, plan, [1, 2])


def test_a_variation_is_the_same_alone_and_in_a_batch(reference: HostDecoder) -> None:
    guard = CopyGuard.read()
    together = compose(reference, PLANS[0], [1, 2], guard=guard)
    assert [compose(reference, PLANS[0], [seed], guard=guard)[0] for seed in (1, 2)] == together


def test_the_weights_refuse_a_file_that_is_not_theirs(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "page").write_bytes(b"<html>" * 100)
    (folder / "cut").write_bytes(WEIGHTS.read_bytes()[:5000])
    for name in ("page", "cut"):
        with pytest.raises(ValueError, match=name):
            read_weights(folder / name)
    with pytest.raises(OSError):
        read_weights(folder / "none")
