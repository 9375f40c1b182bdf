"""What the engines of the music model have in common: a job is the same whichever library computes the decoder.

A model is a folder: weights for every engine, graphs for ONNX Runtime, and the table that keeps tunes from being
copies of those it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.types import Placement
from backend.engines import Emit, RunRequest, RunResult, Session

WEIGHTS, COPIED_RUNS = "weights.safetensors", "copied-runs.npy"
TOLERANCE = 0.02  # of a logit in float32, beside the processor's
LIBRARY_BYTES = 250_000_000  # ONNX Runtime, NumPy, the sounds in use and the sheet's engraver: 230 MB on x86-64


@dataclass
class TuneSession(Session):
    """A loaded model: any `Decoder` of `backend.tasks.music`, and the guard against copying."""

    decoder: Any
    guard: Any
    placement: Placement
    threads: int | None
    versions: dict[str, str]
    model_file: str | None

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Composes, renders, hands the files over."""
        from backend.tasks.music.job import JobSpec, make_tunes

        folder = Path(request.folder)
        order = JobSpec(
            request.options,
            request.seed,
            folder,
            request.preface,
            model=request.model,
            licence=request.licence,
            share=request.variations(),
        )
        made = make_tunes(self.decoder, self.guard, order, emit)
        return RunResult(made.counts, made.finish_reason, None, made.audio_s, made.phases, made.chosen)


def read_model(folder: str) -> tuple[Any, Any]:
    """Weights and guard. Imports what a job needs as well, so that the first one need not wait. Raises ModelBroken."""
    import numpy

    import backend.tasks.music.job  # noqa: F401
    from backend.common.errors import ModelBroken
    from backend.tasks.music.originality import CopyGuard
    from backend.tasks.music.weights import read_weights

    try:
        weights = read_weights(Path(folder) / WEIGHTS)
        guard = CopyGuard(numpy.load(Path(folder) / COPIED_RUNS, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise ModelBroken(f"The model in {folder} cannot be read: {error}.", "Get all of its files again.") from error
    return weights, guard


def check_music() -> dict[str, str]:
    """Imports what makes files of the music, and returns the versions. Raises ImportError, OSError."""
    import mido  # noqa: F401
    import numpy
    import soundfile

    return {"numpy": numpy.__version__, "soundfile": soundfile.__version__}


def file_bytes(folder: str, name: str) -> int:
    """Bytes of a file of the model; 0 where it is missing, which loading will tell."""
    file = Path(folder) / name
    return file.stat().st_size if file.is_file() else 0
