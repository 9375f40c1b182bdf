"""A comparison of the tunes that ONNX Runtime and torch compose on a CPU in float32, and of the decoders' speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from backend.tasks.music.composer import compose_rows
from backend.tasks.music.decoder import Decoder
from backend.tasks.music.decoder_onnx import HostDecoder
from backend.tasks.music.decoder_torch import TorchDecoder
from backend.tasks.music.grid import TuneGrid
from backend.tasks.music.network import graph_name
from backend.tasks.music.plan import FORMS, MODES, Plan
from backend.tasks.music.weights import Weights


def onnx_decoder(weights: Weights, folder: Path, threads: int = 1, half: bool = False) -> HostDecoder:
    """Return a decoder that runs in ONNX Runtime on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    file = str(folder / graph_name(half, device=False))
    return HostDecoder(weights, ort.InferenceSession(file, options, providers=["CPUExecutionProvider"]))


def count_equal_tunes(weights: Weights, folder: Path, tunes: int) -> dict[str, int]:
    """Count the tunes, sampled and greedy, that are equal with both engines. Forms, meters and modes vary."""
    engines = (onnx_decoder(weights, folder), TorchDecoder(weights, "cpu"))
    random = np.random.default_rng(11)
    counts = {"sampled": 0, "sampled, same": 0, "greedy": 0, "greedy, same": 0}
    each = min(50, tunes)
    for _ in range(0, tunes, each):
        form = str(random.choice(list(FORMS)))
        meter = FORMS[form][int(random.integers(len(FORMS[form])))]
        mode, bars = str(random.choice(MODES)), int(random.integers(8, 40))
        seeds = [int(seed) for seed in random.integers(2**31, size=each)]
        for kind, temperature, seeds_of_kind in (("sampled", 1.0, seeds), ("greedy", 0.0, seeds[:5])):
            plan = Plan(form, meter, mode, "D", bars, temperature=temperature)
            left, right = (
                _tokens(compose_rows(engine, [plan] * len(seeds_of_kind), seeds_of_kind), len(seeds_of_kind))
                for engine in engines
            )
            counts[kind] += len(seeds_of_kind)
            counts[f"{kind}, same"] += sum(tune == other for tune, other in zip(left, right, strict=True))
    return counts


def _tokens(rows: Sequence[TuneGrid], seeds: int) -> list[Any]:
    """Return the events for each seed. A set may have several tunes."""
    each = len(rows) // seeds
    return [[row.events for row in rows[at : at + each]] for at in range(0, len(rows), each)]


def measure_speed(weights: Weights, folder: Path, device: str, variations: int = 16) -> dict[str, dict[str, float]]:
    """Return the seconds for 32-bar jigs after a warm-up: one tune, `variations` in sequence and as a batch."""
    decoders: dict[str, Decoder] = {
        f"torch {device}": TorchDecoder(weights, device),
        "torch cpu, 1 thread": TorchDecoder(weights, "cpu"),
        "onnxruntime cpu, 1 thread": onnx_decoder(weights, folder, 1),
        "onnxruntime cpu, 2 threads": onnx_decoder(weights, folder, 2),
    }
    plan = Plan("jig", (6, 8), "major", "G", 32)
    results = {}
    for name, decoder in decoders.items():
        compose_rows(decoder, [plan], [0])
        times = []
        for batches in ([[1]], [[1]], [[1]], [[seed] for seed in range(variations)], [list(range(variations))]):
            started = time.perf_counter()
            for seeds in batches:
                compose_rows(decoder, [plan] * len(seeds), seeds)
            times.append(time.perf_counter() - started)
        results[name] = {
            "one": min(times[:3]),
            f"{variations} in turn": times[3],
            f"{variations} as one batch": times[4],
        }
    return results
