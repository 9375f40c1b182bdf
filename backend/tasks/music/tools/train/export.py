"""Export of a model for the service: weights, ONNX graphs, tokenizer names, and the table of the copy guard."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from backend.common.types import JsonObject
from backend.tasks.music import tokens
from backend.tasks.music.grid import ECHO_BARS, SIDES
from backend.tasks.music.network import Shape
from backend.tasks.music.originality import run_hashes
from backend.tasks.music.tools.train.fit import Config
from backend.tasks.music.tools.train.graph import write_graphs


def export(checkpoint: Path, data: Path, folder: Path) -> JsonObject:
    """Write the model's files and return their sizes in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    state = torch.load(checkpoint, map_location="cpu")
    config = Config(**state["config"])
    write_weights(state["weights"], config.shape, folder / "weights.safetensors")
    (folder / "tokeniser.json").write_text(json.dumps(_tokeniser(), indent=1) + "\n", "utf-8")
    np.save(folder / "copied-runs.npy", _runs(data))
    write_graphs(folder / "weights.safetensors")
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}


def write_weights(weights: dict[str, torch.Tensor], shape: Shape, path: Path) -> None:
    """Write the weights as float16 by their names in network.py."""
    arrays = {name: weights[f"weights.{name.replace('.', '/')}"].half().numpy() for name in shape.weights()}
    # A single metadata entry, since the library writes several in random order and the file must be reproducible.
    save_file(arrays, path, metadata={"shape": json.dumps(asdict(shape))})


def _tokeniser() -> JsonObject:
    return {
        "ticks_per_whole_note": 96,
        "tokens": tokens.token_names(),
        "sides": [
            "tick in bar", "bars to go", "last pitch", "section",
            *(f"echo of {back} bars ago" for back in ECHO_BARS), "echo of the section before",
        ],
        "side_sizes": list(SIDES),
    }  # fmt: skip


def _runs(data: Path) -> np.ndarray[Any, np.dtype[np.uint32]]:
    arrays = np.load(data)
    ids, start, split, made = arrays["ids"], arrays["start"], arrays["split"], arrays["made"]
    hashes: set[int] = set()
    for number in np.flatnonzero((split == 0) & ~made):
        tune = ids[start[number] : start[number + 1]]
        hashes.update(run_hashes([int(token) for token in tune if tokens.PITCH <= token < tokens.TIE]))
    return np.array(sorted(hashes), np.uint32)
