"""Sessions that separate music into stems, for the engines whose libraries compute the networks.

A model is a folder: Spleeter's network as weights and as a graph (`backend/tasks/stems/spleeter`), or the graphs of
Hybrid Transformer Demucs (`backend/tasks/stems/demucs.py`), one for all stems or one per stem.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.types import Placement
from backend.devices import onnx_place, torch_place
from backend.engines import Emit, LoadRequest, RunRequest, RunResult, Session
from backend.tasks.stems.choices import DEMUCS_STEMS, MODEL_FILES

WEIGHTS, GRAPH, _ = MODEL_FILES
DEMUCS = (("htdemucs.onnx",), tuple(f"htdemucs_ft_{stem}.onnx" for stem in DEMUCS_STEMS))
# For a chunk: activations, spectra and queued blocks; measured on x86-64 with chunks of 12 s of stereo sound.
WORKING_BYTES = 400_000_000
_POLL_S = 0.1


@dataclass
class StemsSession(Session):
    """A loaded model: any `Separator` of `backend.tasks.stems`."""

    separator: Any
    placement: Placement
    threads: int | None
    versions: dict[str, str]
    model_file: str | None
    look_up: Callable[[], Placement | None] = lambda: None  # where the model is now

    def find_placement(self) -> Placement | None:
        """Return where the model is now, None if the library cannot tell."""
        return self.look_up()

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Separate the input file `audio` and hand over the stems."""
        from backend.tasks.stems.job import JobSpec, separate

        sound = request.inputs["audio"]
        path, folder = Path(sound["path"]), Path(request.folder)
        order = JobSpec(path, sound["name"], request.options, folder, request.model, request.licence)
        result = separate(self.separator, order, emit)
        return RunResult(result.counts, result.finish_reason, None, result.audio_s, result.phases, result.chosen)


def is_stems_model(model_path: str) -> bool:
    """Return whether a folder is a stems model."""
    return (Path(model_path) / WEIGHTS).is_file() or _demucs(model_path) is not None


def _demucs(model_path: str) -> tuple[str, ...] | None:
    """Return the graphs of a folder of Demucs, None for other folders."""
    return next((files for files in DEMUCS if all((Path(model_path) / file).is_file() for file in files)), None)


def estimate_bytes(model_path: str, library_bytes: int) -> int:
    """Return the bytes of the weights (twice, the library copies them), a chunk's working memory, and the libraries."""
    files = _demucs(model_path) or (WEIGHTS,)
    return 2 * sum((Path(model_path) / file).stat().st_size for file in files) + WORKING_BYTES + library_bytes


def load_onnx(request: LoadRequest) -> StemsSession:
    """Load the network with ONNX Runtime. Raises ModelLoadFailed, DeviceNotReady, and ONNX Runtime's exceptions."""
    import numpy
    import onnxruntime

    from backend.tasks.stems.spleeter import golden
    from backend.tasks.stems.spleeter.separator import CHUNK_FRAMES, SpleeterSeparator

    place = onnx_place(request.device, request.detected_device, request.provider_options, request.compile_cache_dir)
    if graphs := _demucs(request.model_path):
        return _load_demucs(request, place, graphs)
    sessions = _Sessions(place, Path(request.model_path) / GRAPH, request.threads)

    def masks(magnitudes: Any, stop: Any) -> Any:
        session, options = sessions.of(magnitudes.shape[2]), onnxruntime.RunOptions()
        options.log_severity_level = 4  # otherwise it logs the termination
        given = magnitudes.astype(sessions.dtype)
        with _stopping(options, stop):
            return session.run(None, {"magnitudes": given}, options)[0].astype(numpy.float32)

    sessions.of(golden.FRAMES)
    off = golden.check_masks(lambda given: masks(given, _going_on), sessions.dtype)
    placement = _proved(place.placement([sessions.of(CHUNK_FRAMES)]), off)
    versions = {"onnxruntime": onnxruntime.__version__, **_versions()}
    return StemsSession(
        SpleeterSeparator(masks), placement, request.threads, versions, GRAPH, lambda: place.placement(sessions.open)
    )


class _Sessions:
    """On the CPU one session for chunks of any length; elsewhere a session for one length, the last requested.

    Some providers compile only fixed shapes, and all are faster with them.
    """

    def __init__(self, place: Any, graph: Path, threads: int) -> None:
        self._place, self._graph, self._threads = place, graph, threads
        self._frames = 0
        self._session: Any = None
        self.dtype = "float32"

    @property
    def open(self) -> list[Any]:
        """The session that is loaded now."""
        return [] if self._session is None else [self._session]

    def of(self, frames: int) -> Any:
        """Return the session for so many frames. Raises ONNX Runtime's exceptions."""
        if self._session is None or not (self._place.is_processor or frames == self._frames):
            self._session = None  # frees its memory first
            fixed = None if self._place.is_processor else {"batch": 1, "frames": frames}
            self._session = self._place.session(self._graph, self._threads, dimensions=fixed)
            self._frames = frames
            self.dtype = "float16" if self._session.get_inputs()[0].type == "tensor(float16)" else "float32"
        return self._session


def _load_demucs(request: LoadRequest, place: Any, graphs: tuple[str, ...]) -> StemsSession:
    """Raises ModelBroken for other graphs, and ONNX Runtime's exceptions."""
    import onnxruntime

    from backend.tasks.stems.demucs import DemucsSeparator

    sessions = [place.session(Path(request.model_path) / graph, request.threads) for graph in graphs]

    def compute(which: int, chunk: Any, stop: Any) -> Any:
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4
        with _stopping(options, stop):
            return sessions[which].run(["stems"], {"mix": chunk[None]}, options)[0][0]

    shapes = [{each.name: each.shape for each in (*one.get_inputs(), *one.get_outputs())} for one in sessions]
    separator = DemucsSeparator(compute, shapes)
    versions = {"onnxruntime": onnxruntime.__version__, **_versions()}
    return StemsSession(
        separator,
        place.placement(sessions),
        request.threads,
        versions,
        ", ".join(graphs),
        lambda: place.placement(sessions),
    )


def load_torch(request: LoadRequest) -> StemsSession:
    """Load the network with torch. Raises ModelBroken, ModelLoadFailed, DeviceNotReady and torch's exceptions."""
    import numpy

    from backend.tasks.stems.spleeter import golden
    from backend.tasks.stems.spleeter.model_files import read_weights
    from backend.tasks.stems.spleeter.network_torch import compute_masks
    from backend.tasks.stems.spleeter.separator import SpleeterSeparator

    try:
        arrays, dtype = read_weights(Path(request.model_path) / WEIGHTS)
    except (OSError, ValueError) as error:
        raise ModelBroken(
            f"The model in {request.model_path} cannot be read: {error}.", "Download it again."
        ) from error
    place = torch_place(request.device, request.detected_device)
    torch = place.torch
    torch.set_num_threads(request.threads)
    # CPUs compute float16 slowly or not at all; there the weights are converted to float32.
    kind = torch.float32 if dtype == "float32" or place.device.type == "cpu" else torch.float16
    weights = {
        name: torch.from_numpy(numpy.array(array, numpy.float32)).to(place.device, kind)
        for name, array in arrays.items()
    }

    def masks(magnitudes: Any, stop: Any) -> Any:
        given = torch.from_numpy(magnitudes).to(place.device, kind)
        return compute_masks(weights, given, stop).to("cpu", torch.float32).numpy()

    off = golden.check_masks(lambda given: masks(given, _going_on), dtype)
    versions = {"torch": torch.__version__, **_versions()}
    placement = _proved(place.placement(weights.values()), off)
    return StemsSession(
        SpleeterSeparator(masks),
        placement,
        request.threads,
        versions,
        WEIGHTS,
        lambda: place.placement(weights.values()),
    )


@contextmanager
def _stopping(options: Any, stop: Any) -> Iterator[None]:
    """Terminate a run of ONNX Runtime once the callback `stop` returns True, and raise Cancelled then."""
    from backend.tasks.audio.progress import Cancelled

    done, stopped = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            if stop():
                stopped.set()
                options.terminate = True
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if stopped.is_set():
            raise Cancelled from None
        raise
    finally:
        done.set()
        watcher.join()
    if stopped.is_set():
        raise Cancelled


def _going_on() -> bool:
    return False


def _proved(placement: Placement, off: float) -> Placement:
    agreement = f"A test spectrum gives TensorFlow's result for the checkpoint, with a difference of {off:.1g}."
    return replace(placement, evidence=f"{placement.evidence} {agreement}")


def _versions() -> dict[str, str]:
    import numpy
    import soundfile

    return {"numpy": numpy.__version__, "soundfile": soundfile.__version__}
