"""Compile a model's layers for decode steps, in a separate thread, while other step modes serve.

All layers of a model share one code, so one of them is compiled and serves all: seconds instead of minutes. The
replacement of a layer's `forward` passes the layer's own part of the KV cache, and no layer number that would differ.
torch keeps the compiled code on disk (TORCHINDUCTOR_CACHE_DIR), for this card and these versions.
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

_OPTIONS = {"coordinate_descent_tuning": True}  # matrix-vector products as one reduction, at memory bandwidth
_TURN_S = 2.0  # timeout of the next compilation while it waits for a recording
_RECOMPILE_LIMIT = 4096  # torch's default is 8 shapes


_Shape = tuple[int, int]  # rows and window of a step


@dataclass
class _Sample:
    """The arguments of a part in one step."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Compiler:
    """The compiler of one model's layers, and the steps they are compiled for. Called from one thread at a time."""

    def __init__(self, torch: Any, cache: Any, layers: list[Layer], wanted: bool) -> None:
        self._torch, self._cache, self._layers = torch, cache, layers
        self._why_not: str | None = None if wanted else "disabled by request"
        self._seen: dict[_Shape, tuple[Any, dict[_Part, _Sample]]] = {}  # place of a step, arguments of its parts
        self._shapes: dict[_Shape, bool] = {}  # requested shapes, and whether they are ready
        self._jobs: queue.SimpleQueue[_Shape] = queue.SimpleQueue()
        self._busy = threading.Lock()  # held during a compilation, which must not overlap with a recording
        self._turn = threading.Event()  # cleared while a recording waits for that lock
        self._turn.set()
        self.samples: dict[_Part, _Sample] | None = None
        self.on = False

    def install(self, model: Any, check: Callable[[], None]) -> None:
        """Replace the layers' `forward` if the model's output stays the same: the callback `check` raises otherwise."""
        if self._why_not is None and importlib.util.find_spec("triton") is None:
            self._why_not = "Triton, which torch needs to compile, is not installed in this runtime"
        parts = [] if self._why_not else self._found(model)
        if self._why_not:
            return
        for part in parts:
            part.enter()
        try:
            check()
        except Exception as error:  # noqa: BLE001 (a model may do anything with its layers; it runs uncompiled)
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
        """Queue the compilation of steps with so many rows and this window, once."""
        shape = (rows, window)
        if self._why_not is None and shape not in self._shapes and shape in self._seen:
            self._shapes[shape] = False
            self._jobs.put(shape)

    @property
    def gave_up(self) -> bool:
        """Whether no further step will be compiled."""
        return self._why_not is not None

    def has(self, rows: int, window: int) -> bool:
        """Return whether steps with so many rows and this window are compiled."""
        return self._shapes.get((rows, window), False)

    def describe(self, used: bool) -> str:
        """Return why steps were not compiled, as a sentence after a space; empty if they were."""
        if used:
            return ""
        return f" Not compiled: {self._why_not}." if self._why_not else " Not yet compiled."

    def give_up(self, error: Exception) -> None:
        """Stop compiling for good."""
        message = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        self._why_not, self._shapes = message[:300], {}

    @contextlib.contextmanager
    def watching(self, rows: int, window: int) -> Iterator[None]:
        """Record the arguments of the layers in a step that runs kernel by kernel. `window` 0: not a decode step."""
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
        """Yield whether no compilation is running; if so, the model uses compiled layers within the block."""
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
        """Return whether a value is the KV cache of all layers."""
        return value is self._cache

    def _work(self) -> None:
        while self._why_not is None:
            shape = self._jobs.get()
            self._turn.wait(_TURN_S)
            with self._busy:
                try:
                    self._compile(*self._seen[shape])
                    self._shapes[shape] = True
                except Exception as error:  # noqa: BLE001 (a compiler may raise anything; other step modes remain)
                    self.give_up(error)

    def _compile(self, place: Any, samples: dict[_Part, _Sample]) -> None:
        """Call each part with its recorded arguments and an unused KV cache; the first call compiles."""
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
        """Return the layers of a model, and the other modules with weights except the embedding."""
        lists = [one for one in model.modules() if type(one).__name__ == "ModuleList" and len(one) == len(self._layers)]
        if not lists:
            self._why_not = "its layers are not in the usual place"
            return []
        blocks = list(lists[0])
        parts = [_Part(self, block, layer) for block, layer in zip(blocks, self._layers, strict=True)]
        owner = next(one for one in model.modules() if any(child is lists[0] for child in one.children()))
        beside = [one for one in owner.children() if type(one).__name__ not in ("ModuleList", "Embedding", "Dropout")]
        head = model.get_output_embeddings()
        return [*parts, *(_Part(self, one, None) for one in [*beside, *([] if head is None else [head])])]


class _Part:
    """The replacement of a module's `forward`."""

    def __init__(self, owner: Compiler, module: Any, layer: Layer | None) -> None:
        self._owner, self._module, self.layer = owner, module, layer
        self._numbered = [one for one in module.modules() if isinstance(getattr(one, "layer_idx", None), int)]
        self._numbers = [one.layer_idx for one in self._numbered]
        self.compiled: Any = None

    def enter(self) -> None:
        """Replace the module's `forward`."""
        self._module.forward = self
        for one in self._numbered:
            one.layer_idx = 0

    def leave(self) -> None:
        """Restore the module's `forward`."""
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
        """Run the compiled code. The first call with arguments of a kind compiles it."""
        return self.compiled(self._module, args, self._named(layer, kwargs))

    def _named(self, layer: Layer | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, with the layer's KV cache instead of that of all layers."""
        return {name: layer if self._owner.of(value) else value for name, value in kwargs.items()}


def _part_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return type(module).forward(module, *args, **kwargs)
