"""torch: the built-in music model, on every device that a build of torch reaches."""

from __future__ import annotations

from dataclasses import replace

from backend.devices import backends, backends_of, libraries, torch_place
from backend.engines import Engine, LoadRequest
from backend.engines._tunes import (
    COPIED_RUNS,
    LIBRARY_BYTES,
    TOLERANCE,
    WEIGHTS,
    TuneSession,
    check_music,
    file_bytes,
    read_model,
)

_TORCHES = [library for library in libraries() if library.startswith("torch")]
_BACKENDS = tuple(dict.fromkeys(name for library in _TORCHES for name in backends_of(library)))
_TORCH_BYTES = 400_000_000  # the library itself, more than any model of this size
ENGINE = Engine(
    name="torch",
    library="torch",
    runtimes=tuple(dict.fromkeys(each for name in _BACKENDS for each in backends()[name].runtimes if each != "base")),
    backends=_BACKENDS,
    tasks=("music",),
    suffixes=(),
    files=(WEIGHTS, COPIED_RUNS),
    makes_files=True,
)


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """The float16 weights as float32, twice for the embeddings and the way there, and the libraries."""
    return 4 * file_bytes(model_path, WEIGHTS) + LIBRARY_BYTES + _TORCH_BYTES


def check() -> dict[str, str]:
    """Imports the library, and those that make files of the music."""
    import torch

    return {"torch": torch.__version__, **check_music()}


def load(request: LoadRequest) -> TuneSession:
    """Loads the model of a folder on the device. Raises ModelBroken, DeviceNotReady, and what torch raises."""
    from backend.music.agreement import check_agreement
    from backend.music.decoder_torch import TorchDecoder

    weights, guard = read_model(request.model_path)
    place = torch_place(request.device, request.found)
    place.torch.set_num_threads(request.threads)
    decoder = TorchDecoder(weights, place.device)
    placement = place.placement(decoder.arrays.values())
    if not place.is_processor:
        said = check_agreement(TorchDecoder(weights, "cpu"), decoder, TOLERANCE)
        placement = replace(placement, evidence=f"{placement.evidence} {said}")
    return TuneSession(decoder, guard, placement, request.threads, check(), WEIGHTS)
