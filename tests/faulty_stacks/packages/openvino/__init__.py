"""A stand-in for openvino 2026.4: one layer of attention with a state for each request, over NumPy.

Rewritten for a cache of blocks (`_offline_transformations.py`) it computes the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

# Set by the test: `listed` devices, where it `runs`, whether it keeps `no_state` or its `own_state`, and whether its
# attention is of the kind that can be `rewritten`.
PLAN: dict[str, Any] = {}
BLOCK = 4
INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")


class Core:
    """What the library lists, and models."""

    @property
    def available_devices(self) -> list[str]:
        return list(PLAN.get("listed", {"CPU": {}}))

    def get_property(self, device_name: str, property: str) -> Any:
        """A fact of a device."""
        return PLAN["listed"][device_name][property]

    def read_model(self, model: str) -> Model:
        """The sizes, from the folder's configuration."""
        if PLAN.get("fails"):
            raise RuntimeError(PLAN["fails"])
        return Model(json.loads(Path(model).with_name("config.json").read_text(encoding="utf-8")))

    def compile_model(self, model: Model, device_name: str, config: dict[str, Any]) -> CompiledModel:
        """A model for a device."""
        return CompiledModel(model, device_name)


class Model:
    """A graph: its sizes, its inputs, and how it ends."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        self.sizes = sizes
        self.names = list(PLAN.get("inputs", INPUTS))
        self.product = Node("MatMul")

    @property
    def inputs(self) -> list[Any]:
        return [SimpleNamespace(get_any_name=lambda name=name: name) for name in self.names]

    def get_ops(self) -> list[Node]:
        """All of its operations that matter here."""
        return [self.product, *([Node("ScaledDotProductAttention")] if PLAN.get("rewritten") else [])]

    def get_results(self) -> list[Node]:
        """What it gives: the product, in another type of number."""
        return [Node("Result", Node("Convert", self.product))]

    def add_parameters(self, parameters: list[Any]) -> None:
        """One more input."""
        self.names += [parameter.name for parameter in parameters]

    def validate_nodes_and_infer_types(self) -> None:
        """It is whole."""


class Node:
    """An operation, and what comes into it."""

    def __init__(self, kind: str, before: Node | None = None) -> None:
        self._kind, self._before = kind, before

    def get_type_name(self) -> str:
        """Its kind."""
        return self._kind

    def input_value(self, index: int) -> Any:
        """Where a value comes from."""
        return SimpleNamespace(get_node=lambda: self._before)

    def input(self, input_index: int) -> Any:
        """A place for a value."""
        return SimpleNamespace(replace_source_output=lambda output: None)


class Shape(tuple):  # type: ignore[type-arg]
    """Sizes."""


class Tensor:
    """Room for numbers, with something in it."""

    def __init__(self, type: Any, shape: Shape) -> None:
        self.data = np.full(shape, np.nan, type)


class CompiledModel:
    """Weights, and where they are."""

    def __init__(self, model: Model, device: str) -> None:
        self._names, sizes = list(model.names), model.sizes
        random, width = np.random.default_rng(5), sizes["hidden_size"]
        shapes = {"tokens": (sizes["vocab_size"], width), "head": (width, sizes["vocab_size"])}
        shapes |= {"places": (sizes["max_position_embeddings"], width), **dict.fromkeys("qkvo", (width, width))}
        self.weights = {
            name: (random.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()
        }
        self._device = device

    @property
    def inputs(self) -> list[Any]:
        return [self._input(name) for name in self._names]

    def _input(self, name: str) -> Any:
        sizes = [Dimension(None), Dimension(1), Dimension(BLOCK), Dimension(len(self.weights["q"]))]
        asked = {
            "get_any_name": lambda: name,
            "get_partial_shape": lambda: sizes,
            "get_element_type": lambda: np.float32,
        }
        return SimpleNamespace(**asked)

    def get_property(self, property: str) -> list[str]:
        """Where it runs."""
        return list(PLAN.get("runs", [self._device]))

    def create_infer_request(self) -> InferRequest:
        """A request with a state of its own."""
        return InferRequest(self)


class Dimension:
    """A size, or that it is open."""

    def __init__(self, length: int | None) -> None:
        self._length = length

    @property
    def is_dynamic(self) -> bool:
        return self._length is None

    def get_length(self) -> int:
        """The size."""
        assert self._length is not None
        return self._length


class InferRequest:
    """One text's keys and values."""

    def __init__(self, other: CompiledModel) -> None:
        self._weights = other.weights
        self._device = other._device
        self.reset_state()

    def set_tensor(self, name: str, tensor: Tensor) -> None:
        """A cache."""
        self._caches = {**getattr(self, "_caches", {}), name: tensor.data}

    def infer(self, inputs: dict[str, Any], share_outputs: bool = False) -> None:
        """Computes texts that lie one behind the other."""
        logits = []
        begins, lists = inputs["subsequence_begins"], inputs["block_indices_begins"]
        for text, past in enumerate(inputs["past_lens"]):
            tokens = slice(begins[text], begins[text + 1])
            places = inputs["position_ids"][tokens]
            blocks = inputs["block_indices"][lists[text] : lists[text + 1]]
            states = self._states(inputs["input_ids"][tokens], places)
            kept = []
            for name, kind in (("key_cache.0", "k"), ("value_cache.0", "v")):
                cache = self._caches[name]
                for number, vector in enumerate(states @ self._weights[kind], start=int(past)):
                    cache[blocks[number // BLOCK], 0, number % BLOCK] = vector
                kept.append(np.concatenate(cache[blocks, 0])[: past + len(states)])
            logits.append(self._attended(states, places, *kept))
        self._logits = np.concatenate(logits)[inputs["last_tokens"]][:, None]

    def reset_state(self) -> None:
        """Forgets all."""
        width = len(self._weights["q"])
        self._keys, self._values = np.zeros((2, 0, width), np.float32)

    def query_state(self) -> list[str]:
        """What it keeps."""
        return [] if PLAN.get("no_state") else ["key", "value"]

    def start_async(self, inputs: dict[str, Any], share_inputs: bool = False) -> None:
        """Computes."""
        states = self._states(inputs["input_ids"][0], inputs["position_ids"][0])
        self._keys = np.concatenate([self._keys, states @ self._weights["k"]])
        self._values = np.concatenate([self._values, states @ self._weights["v"]])
        self._logits = self._attended(states, inputs["position_ids"][0], self._keys, self._values)[None]

    def _states(self, ids: Any, places: Any) -> Any:
        return self._weights["tokens"][ids] + self._weights["places"][places + PLAN.get("shift", 0) * (len(ids) == 1)]

    def _attended(self, states: Any, places: Any, keys: Any, values: Any) -> Any:
        weights = self._weights
        scores = states @ weights["q"] @ keys.T / 4
        scores = np.where(np.arange(len(keys)) <= places[:, None], scores, -1e9)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        mixed = shares / shares.sum(1, keepdims=True) @ values
        logits = (states + mixed @ weights["o"]) @ weights["head"]
        if self._device == PLAN.get("wrong_on") and len(states) >= PLAN.get("wrong_from", 1):
            return -8 * logits
        return logits

    def wait(self) -> None:
        """It is done."""

    def get_output_tensor(self, index: int = 0) -> Any:
        """The logits."""
        return SimpleNamespace(data=self._logits)
