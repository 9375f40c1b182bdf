"""ONNX Runtime: the built-in music model, on every device that one of its execution providers reaches."""

from __future__ import annotations

from pathlib import Path

from backend.devices import backends, backends_of, onnx_place
from backend.engines import Engine, LoadRequest
from backend.engines._step_graphs import GRAPH, choose
from backend.engines._tunes import (
    COPIED_RUNS,
    LIBRARY_BYTES,
    WEIGHTS,
    TuneSession,
    check_music,
    file_bytes,
    read_model,
)

_BACKENDS = backends_of("onnxruntime")
ENGINE = Engine(
    name="onnxruntime",
    library="onnxruntime",
    runtimes=tuple(dict.fromkeys(runtime for name in _BACKENDS for runtime in backends()[name].runtimes)),
    backends=_BACKENDS,
    tasks=("music",),
    suffixes=(),
    files=(WEIGHTS, COPIED_RUNS, GRAPH),
    makes_files=True,
)


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """The graph twice, for the library's own copy of the weights, the embeddings, and the libraries."""
    return 2 * file_bytes(model_path, GRAPH) + 2 * file_bytes(model_path, WEIGHTS) + LIBRARY_BYTES


def check() -> dict[str, str]:
    """Imports the library, and those that make files of the music."""
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, **check_music()}


def load(request: LoadRequest) -> TuneSession:
    """Loads the model of a folder on the device. Raises ModelBroken, ModelLoadFailed, DeviceNotReady, and the rest."""
    weights, guard = read_model(request.model_path)
    place = onnx_place(request.device, request.found)
    chosen = choose(place, weights, Path(request.model_path), request.threads)
    return TuneSession(chosen.decoder, guard, chosen.placement, request.threads, check(), chosen.file)
