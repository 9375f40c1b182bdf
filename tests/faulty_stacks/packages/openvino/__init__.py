"""A stand-in for openvino 2026.4: one layer of attention with a state for each request, over NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

PLAN: dict[str, Any] = {}  # set by the test: `listed` devices, where it `runs`, whether it keeps `no_state`
INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")


class Core:
    """What the library lists, and models."""

    @property
    def available_devices(self) -> list[str]:
        return list(PLAN.get("listed", {"CPU": {}}))

    def get_property(self, device_name: str, property: str) -> Any:
        """A fact of a device."""
        return PLAN["listed"][device_name][property]

    def read_model(self, model: str) -> dict[str, Any]:
        """The sizes, from the folder's configuration."""
        if PLAN.get("fails"):
            raise RuntimeError(PLAN["fails"])
        sizes: dict[str, Any] = json.loads(Path(model).with_name("config.json").read_text(encoding="utf-8"))
        return sizes

    def compile_model(self, model: dict[str, Any], device_name: str, config: dict[str, Any]) -> CompiledModel:
        """A model for a device."""
        return CompiledModel(model, device_name)


class CompiledModel:
    """Weights, and where they are."""

    def __init__(self, sizes: dict[str, Any], device: str) -> None:
        random, width = np.random.default_rng(5), sizes["hidden_size"]
        shapes = {"tokens": (sizes["vocab_size"], width), "head": (width, sizes["vocab_size"])}
        shapes |= {"places": (sizes["max_position_embeddings"], width), **dict.fromkeys("qkvo", (width, width))}
        self.weights = {
            name: (random.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()
        }
        self._device = device

    @property
    def inputs(self) -> list[Any]:
        return [SimpleNamespace(get_any_name=lambda name=name: name) for name in PLAN.get("inputs", INPUTS)]

    def get_property(self, property: str) -> list[str]:
        """Where it runs."""
        return list(PLAN.get("runs", [self._device]))

    def create_infer_request(self) -> InferRequest:
        """A request with a state of its own."""
        return InferRequest(self)


class InferRequest:
    """One text's keys and values."""

    def __init__(self, other: CompiledModel) -> None:
        self._weights = other.weights
        self.reset_state()

    def reset_state(self) -> None:
        """Forgets all."""
        width = len(self._weights["q"])
        self._keys, self._values = np.zeros((2, 0, width), np.float32)

    def query_state(self) -> list[str]:
        """What it keeps."""
        return [] if PLAN.get("no_state") else ["key", "value"]

    def start_async(self, inputs: dict[str, Any], share_inputs: bool = False) -> None:
        """Computes."""
        weights, ids, places = self._weights, inputs["input_ids"][0], inputs["position_ids"][0]
        states = weights["tokens"][ids] + weights["places"][places + PLAN.get("shift", 0) * (len(ids) == 1)]
        self._keys = np.concatenate([self._keys, states @ weights["k"]])
        self._values = np.concatenate([self._values, states @ weights["v"]])
        scores = states @ weights["q"] @ self._keys.T / 4
        scores = np.where(np.arange(len(self._keys)) <= places[:, None], scores, -1e9)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        mixed = shares / shares.sum(1, keepdims=True) @ self._values
        self._logits = ((states + mixed @ weights["o"]) @ weights["head"])[None]

    def wait(self) -> None:
        """It is done."""

    def get_output_tensor(self, index: int = 0) -> Any:
        """The logits."""
        return SimpleNamespace(data=self._logits)
