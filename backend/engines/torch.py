"""torch: the built-in music model and the stems of music, on every device that a build of torch reaches."""

from __future__ import annotations

from dataclasses import replace

from backend.devices import torch_place
from backend.engines import Engine, LoadRequest, ModelFormat, Session
from backend.engines._audio import stem_session
from backend.engines._audio.tune_session import (
    COPIED_RUNS,
    LIBRARY_BYTES,
    TOLERANCE,
    WEIGHTS,
    TuneSession,
    check_music,
    file_bytes,
    read_model,
)
from backend.engines._torch.supported_backends import BACKENDS, RUNTIMES
from backend.engines._torch.supported_backends import LIBRARY_BYTES as TORCH_BYTES

ENGINE = Engine(
    name="torch",
    library="torch",
    runtimes=RUNTIMES,
    backends=BACKENDS,
    tasks=("music", "stems"),
    formats=(
        ModelFormat(name="tunes", files=(WEIGHTS, COPIED_RUNS)),
        ModelFormat(name="spleeter", files=(stem_session.WEIGHTS,), task="stems"),
    ),
    makes_files=True,
)


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of the weights as float32, twice for embeddings and conversion, and of the libraries."""
    if stem_session.is_stems_model(model_path):
        return stem_session.estimate_bytes(model_path, LIBRARY_BYTES + TORCH_BYTES)
    return 4 * file_bytes(model_path, WEIGHTS) + LIBRARY_BYTES + TORCH_BYTES


def check() -> dict[str, str]:
    """Import the library and those that write music files; return their versions."""
    import torch

    return {"torch": torch.__version__, **check_music()}


def load(request: LoadRequest) -> Session:
    """Load the model of a folder. Raises ModelBroken, ModelLoadFailed, DeviceNotReady, and torch's exceptions."""
    from backend.tasks.music.agreement import check_agreement
    from backend.tasks.music.decoder_torch import TorchDecoder

    if stem_session.is_stems_model(request.model_path):
        return stem_session.load_torch(request)
    weights, guard = read_model(request.model_path)
    place = torch_place(request.device, request.detected_device)
    place.torch.set_num_threads(request.threads)
    decoder = TorchDecoder(weights, place.device)
    placement = place.placement(decoder.arrays.values())
    if not place.is_processor:
        agreement = check_agreement(TorchDecoder(weights, "cpu"), decoder, TOLERANCE)
        placement = replace(placement, evidence=f"{placement.evidence} {agreement}")
    return TuneSession(
        decoder, guard, placement, request.threads, check(), WEIGHTS, lambda: place.placement(decoder.arrays.values())
    )
