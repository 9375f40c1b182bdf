"""ONNX Runtime: the music model, stems and any other graph, on every device that one of its providers reaches."""

from __future__ import annotations

from pathlib import Path

from backend.common.formats.onnx.data_types import data_types
from backend.common.formats.onnx.graph import read_graph
from backend.devices import backends, backends_of, onnx_place
from backend.engines import Engine, LoadRequest, ModelFormat, Session
from backend.engines._audio import stem_session
from backend.engines._audio.tune_session import (
    COPIED_RUNS,
    LIBRARY_BYTES,
    WEIGHTS,
    TuneSession,
    check_music,
    file_bytes,
    read_model,
)
from backend.engines._onnx.music_step_graphs import GRAPH, choose_graph
from backend.engines._onnx.session import LIBRARY_BYTES as BARE_BYTES
from backend.engines._onnx.session import SUFFIX, load_graph

_BACKENDS = backends_of("onnxruntime")
ENGINE = Engine(
    name="onnxruntime",
    library="onnxruntime",
    runtimes=tuple(dict.fromkeys(runtime for name in _BACKENDS for runtime in backends()[name].runtimes)),
    backends=_BACKENDS,
    tasks=("music", "stems", "onnx"),
    formats=(
        ModelFormat(
            name="onnx",
            suffix=SUFFIX,
            task="onnx",
            validate=read_graph,
            describe=lambda path: read_graph(path).as_data(),
        ),
        ModelFormat(name="tunes", files=(WEIGHTS, COPIED_RUNS, GRAPH)),
        ModelFormat(name="spleeter", files=(stem_session.GRAPH, stem_session.WEIGHTS), task="stems"),
        *(ModelFormat(name="demucs", files=graphs, task="stems") for graphs in stem_session.DEMUCS),
    ),
    makes_files=True,
    file_types=lambda path: data_types(path) if path.suffix.lower() == SUFFIX else (),
)


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of the graph (twice, the library copies the weights), the embeddings and the libraries."""
    if stem_session.is_stems_model(model_path):
        return stem_session.estimate_bytes(model_path, LIBRARY_BYTES)
    if _is_graph(model_path):
        return BARE_BYTES + 2 * read_graph(Path(model_path)).weight_bytes
    return 2 * file_bytes(model_path, GRAPH) + 2 * file_bytes(model_path, WEIGHTS) + LIBRARY_BYTES


def check() -> dict[str, str]:
    """Import the library and those that write music files; return their versions."""
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, **check_music()}


def load(request: LoadRequest) -> Session:
    """Load a model folder or a graph.

    Raises ModelBroken, ModelIncompatible, ModelLoadFailed, DeviceNotReady, and ONNX Runtime's exceptions.
    """
    if _is_graph(request.model_path):
        return load_graph(request)
    if stem_session.is_stems_model(request.model_path):
        return stem_session.load_onnx(request)
    weights, guard = read_model(request.model_path)
    place = onnx_place(request.device, request.detected_device, request.provider_options, request.compile_cache_dir)
    chosen = choose_graph(place, weights, Path(request.model_path), request.threads)
    return TuneSession(
        chosen.decoder,
        guard,
        chosen.placement,
        chosen.threads,
        check(),
        chosen.file,
        lambda: place.placement([chosen.session]),
    )


def _is_graph(model_path: str) -> bool:
    return Path(model_path).suffix.lower() == SUFFIX
