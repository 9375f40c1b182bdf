"""Layers of a model compiled for steps, in a thread of their own, while other ways serve.

A model's layers have one code, so one of them is compiled and serves all: seconds instead of minutes. What takes the
place of a layer's `forward` gives it the layer's own part of the cache, and no number by which it would differ.
What was compiled is kept on disk by torch (TORCHINDUCTOR_CACHE_DIR), for this card and these versions.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.engines._text.kv_cache import Layer

_OPTIONS = {"coordinate_descent_tuning": True}  # matrix times vector as one reduction, at the memory's speed
_TURN_S = 2.0  # how long what is to be compiled next waits for a recording that had to wait
_RECOMPILE_LIMIT = 4096  # torch gives up after 8 shapes unless told otherwise


_Shape = tuple[int, int]  # rows and window of a step


@dataclass
class _Sample:
    """What a part was called with in a step."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Compiler:
    """The layers of one model, and for which steps they are compiled. Called from one thread at a time."""

    def __init__(self, torch: Any, cache: Any, layers: list[Layer], wanted: bool) -> None:
        self._torch, self._cache, self._layers = torch, cache, layers
        self._why_not: str | None = None if wanted else "disabled by request"
        self._seen: dict[_Shape, tuple[Any, dict[_Part, _Sample]]] = {}  # where a step was, and what its parts got
        self._shapes: dict[_Shape, bool] = {}  # those that were asked for, and whether they are ready
        self._jobs: queue.SimpleQueue[_Shape] = queue.SimpleQueue()
        self._busy = threading.Lock()  # held while something is compiled, which no recording may meet
        self._turn = threading.Event()  # not set while a recording waits for that
        self._turn.set()
        self.samples: dict[_Part, _Sample] | None = None
        self.on = False

    def install(self, model: Any, check: Callable[[], None]) -> None:
        """Puts its parts into the model, if it then says what it said. `check` raises where it does not."""
        if self._why_not is None and importlib.util.find_spec("triton") is None:
            self._why_not = "Triton, which torch compiles with, is not in this runtime"
        parts = [] if self._why_not else self._found(model)
        if self._why_not:
            return
        for part in parts:
            part.enter()
        try:
            check()
        except Exception as error:  # noqa: BLE001 (whatever a model does with its layers; it runs as it is)
            for part in parts:
                part.leave()
            self.give_up(error)
        if self._why_not:
            return
        dynamo = importlib.import_module("torch._dynamo")
        limit = "recompile_limit" if hasattr(dynamo.config, "recompile_limit") else "cache_size_limit"
        setattr(dynamo.config, limit, _RECOMPILE_LIMIT)
        compiled = self._torch.compile(_part_forward, dynamic=False, options=_OPTIONS)
        for part in parts:
            part.compiled = compiled
        threading.Thread(target=self._work, daemon=True).start()

    def ask(self, rows: int, window: int) -> None:
        """Has steps of so many rows and that window compiled, if it was not asked before."""
        shape = (rows, window)
        if self._why_not is None and shape not in self._shapes and shape in self._seen:
            self._shapes[shape] = False
            self._jobs.put(shape)

    @property
    def gave_up(self) -> bool:
        """Whether nothing will be compiled any more."""
        return self._why_not is not None

    def has(self, rows: int, window: int) -> bool:
        """Whether steps of so many rows and that window are compiled."""
        return self._shapes.get((rows, window), False)

    def describe(self, used: bool) -> str:
        """Why steps were not compiled, in a sentence after a space, or nothing."""
        if used:
            return ""
        return f" Not compiled: {self._why_not}." if self._why_not else " Not yet compiled."

    def give_up(self, error: Exception) -> None:
        """Nothing is compiled from now on."""
        told = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        self._why_not, self._shapes = told[:300], {}

    @contextlib.contextmanager
    def watching(self, rows: int, window: int) -> Iterator[None]:
        """A step that runs now kernel by kernel shows what would be compiled; `window` 0 is no step."""
        if self._why_not or not window or (rows, window) in self._seen:
            yield
            return
        samples: dict[_Part, _Sample] = {}
        self.samples = samples
        try:
            yield
        finally:
            self.samples = None
        self._seen[rows, window] = (self._layers[0].place, samples)

    @contextlib.contextmanager
    def using(self, compiled: bool = True) -> Iterator[bool]:
        """Gives whether nothing is being compiled just now; if so the model computes with what is compiled."""
        if not self._busy.acquire(blocking=False):
            self._turn.clear()
            yield False
            return
        self._turn.set()
        self.on = compiled
        try:
            yield True
        finally:
            self.on = False
            self._busy.release()

    def of(self, value: Any) -> bool:
        """Whether it is the cache of all layers."""
        return value is self._cache

    def _work(self) -> None:
        while self._why_not is None:
            shape = self._jobs.get()
            self._turn.wait(_TURN_S)
            with self._busy:
                try:
                    self._compile(*self._seen[shape])
                    self._shapes[shape] = True
                except Exception as error:  # noqa: BLE001 (a compiler may raise anything; the other ways go on)
                    self.give_up(error)

    def _compile(self, place: Any, samples: dict[_Part, _Sample]) -> None:
        """Calls each part as it was called, with keys and values that nobody reads; the first call compiles."""
        cuda = self._torch.cuda
        own = self._layers[0]
        spare = Layer(*own.shape)
        spare.place = place
        spare.arrays = tuple(self._torch.zeros_like(array) for array in own.arrays or ())
        with self._torch.no_grad(), cuda.stream(cuda.Stream()):
            cuda.current_stream().wait_stream(cuda.default_stream())
            for part, sample in samples.items():
                part.call(spare if part.layer else None, sample.args, sample.kwargs)
            cuda.current_stream().synchronize()

    def _found(self, model: Any) -> list[_Part]:
        """The layers of a model, and what stands beside them with weights of its own but the embedding."""
        lists = [one for one in model.modules() if type(one).__name__ == "ModuleList" and len(one) == len(self._layers)]
        if not lists:
            self._why_not = "its layers are not where they usually are"
            return []
        blocks = list(lists[0])
        parts = [_Part(self, block, layer) for block, layer in zip(blocks, self._layers, strict=True)]
        owner = next(one for one in model.modules() if any(child is lists[0] for child in one.children()))
        beside = [one for one in owner.children() if type(one).__name__ not in ("ModuleList", "Embedding", "Dropout")]
        head = model.get_output_embeddings()
        return [*parts, *(_Part(self, one, None) for one in [*beside, *([] if head is None else [head])])]


class _Part:
    """What takes the place of a module's `forward`."""

    def __init__(self, owner: Compiler, module: Any, layer: Layer | None) -> None:
        self._owner, self._module, self.layer = owner, module, layer
        self._numbered = [one for one in module.modules() if isinstance(getattr(one, "layer_idx", None), int)]
        self._numbers = [one.layer_idx for one in self._numbered]
        self.compiled: Any = None

    def enter(self) -> None:
        """Takes the place."""
        self._module.forward = self
        for one in self._numbered:
            one.layer_idx = 0

    def leave(self) -> None:
        """Leaves it as it was."""
        del self._module.forward
        for one, number in zip(self._numbered, self._numbers, strict=True):
            one.layer_idx = number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._owner.samples is not None:
            self._owner.samples[self] = _Sample(args, kwargs)
        if self._owner.on:
            return self.call(self.layer, args, kwargs)
        return _part_forward(self._module, args, self._named(self.layer, kwargs))

    def call(self, layer: Layer | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Computes with what is compiled, which the first call of its kind does first."""
        return self.compiled(self._module, args, self._named(layer, kwargs))

    def _named(self, layer: Layer | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with this layer's cache in the place of that of all."""
        return {name: layer if self._owner.of(value) else value for name, value in kwargs.items()}


def _part_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return type(module).forward(module, *args, **kwargs)
