"""Memory and speed of a long separation: `python -m tests.slow.stems_long MODEL_FOLDER [--hours 2] [--chunks N]`.

Makes a file of that length (16 bits, stereo) in a temporary folder, separates it on the processor and prints how much
memory was resident at most, before and after, and the speed. With `--chunks N` the network computes the first N chunks
alone and what it gave last is taken for the others, which tells of memory and not of speed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from backend.child.process import peak_bytes, reset_peak, resident_bytes
from backend.engines import LoadRequest, RunRequest, load_engine

RATE, BLOCK_S = 44_100, 10


def main() -> None:
    """Prints a few lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sound = _made(folder / "long.wav", round(asked.hours * 3600 / BLOCK_S))
        session: Any = load_engine("onnxruntime").load(LoadRequest("cpu", asked.model, 0, asked.threads))
        if asked.chunks is not None:
            _cheapen(session.separator, asked.chunks)
        options = {"stems": None, "format": "wav", "chunk_seconds": None}
        inputs = {"audio": {"path": str(sound), "name": sound.name, "media_type": "audio/wav"}}
        before = resident_bytes()
        reset_peak()
        began = time.perf_counter()
        result = session.run(
            RunRequest(None, None, options, 1, False, str(folder), inputs=inputs), lambda event, data: False
        )
        spent_s = time.perf_counter() - began
        print(f"{result.audio_s:.0f} s of sound in {spent_s:.0f} s: {result.audio_s / spent_s:.1f} × real time")
        print(f"phases: {result.phases}")
        print(f"resident before {_mb(before)}, most {_mb(peak_bytes())}, after {_mb(resident_bytes())}")
        print({file.name: file.stat().st_size for file in folder.iterdir()})


def _made(path: Path, blocks: int) -> Path:
    dice = np.random.default_rng(1)
    block = (dice.normal(0, 0.1, (BLOCK_S * RATE, 2)) * 32767).clip(-32768, 32767).astype(np.int16)
    with soundfile.SoundFile(path, "w", RATE, 2, "PCM_16") as file:
        for _ in range(blocks):
            file.write(block)
    return path


def _cheapen(separator: Any, chunks: int) -> None:
    compute = separator._masks
    kept: list[Any] = []

    def masks(magnitudes: Any, stop: Any) -> Any:
        if len(kept) < chunks:
            kept.append(compute(magnitudes, stop))
        return kept[-1]

    separator._masks = masks


def _mb(count: int | None) -> str:
    return "not known" if count is None else f"{count / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
