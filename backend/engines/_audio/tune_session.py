"""The session of the music model, for all engines: a job is the same whichever library computes the decoder.

A model is a folder: weights for every engine, graphs for ONNX Runtime, and the table that prevents tunes from copying
the training data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.types import Placement
from backend.engines import Emit, RunRequest, RunResult, Session

WEIGHTS, COPIED_RUNS = "weights.safetensors", "copied-runs.npy"
TOLERANCE = 0.02  # allowed difference of a logit in float32 from the CPU's
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
    look_up: Callable[[], Placement | None] = lambda: None  # where the model is now

    def find_placement(self) -> Placement | None:
        """Return where the model is now, None if the library cannot tell."""
        return self.look_up()

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Compose, render, and hand over the files."""
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
        result = make_tunes(self.decoder, self.guard, order, emit)
        return RunResult(result.counts, result.finish_reason, None, result.audio_s, result.phases, result.chosen)


def read_model(folder: str) -> tuple[Any, Any]:
    """Return weights and guard. Also imports what a job needs, to speed up the first one. Raises ModelBroken."""
    import numpy

    import backend.tasks.music.job  # noqa: F401
    from backend.common.errors import ModelBroken
    from backend.tasks.music.originality import CopyGuard
    from backend.tasks.music.weights import read_weights

    try:
        weights = read_weights(Path(folder) / WEIGHTS)
        guard = CopyGuard(numpy.load(Path(folder) / COPIED_RUNS, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise ModelBroken(f"The model in {folder} cannot be read: {error}.", "Restore all of its files.") from error
    return weights, guard


def check_music() -> dict[str, str]:
    """Import the libraries that write music files; return their versions. Raises ImportError, OSError."""
    import mido  # noqa: F401
    import numpy
    import soundfile

    return {"numpy": numpy.__version__, "soundfile": soundfile.__version__}


def file_bytes(folder: str, name: str) -> int:
    """Return the size of a file of the model; 0 if it is missing, which `load` reports."""
    file = Path(folder) / name
    return file.stat().st_size if file.is_file() else 0
