"""Songs by a program of the user (an adapter), in an environment of the user: for models whose packages fit no runtime.

The program (docs/adapters.md) defines `load(device, threads)` and `generate(model, wish, progress)`. Optional:
`tensors(model)`, without which the placement is unknown. It is loaded only if the configuration names it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from backend.common.errors import ModelBroken, ModelLoadFailed, TouchstoneError, WorkerCrashed
from backend.common.types import Placement
from backend.devices import split_id, torch_place
from backend.engines import Engine, LoadRequest, ModelFormat
from backend.engines._audio.song_session import SongSession
from backend.engines._memory_errors import does_not_fit, out_of_memory_message, ran_out_of_memory
from backend.engines._torch.supported_backends import BACKENDS
from backend.tasks.songs.adapter import Adapter, read_adapter

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace
    from backend.tasks.songs.job import Floats, ProgressCallback, SongRequest

ENGINE = Engine(
    name="adapter",
    library="numpy",
    runtimes=(),  # the user's own environments alone
    backends=BACKENDS,
    tasks=("music",),
    formats=(ModelFormat(name="adapter", validate=read_adapter),),
    runs_user_code=True,
    makes_files=True,
)
_LIBRARY_BYTES = 100_000_000
_FEWER_SECONDS = "Request fewer seconds, close other programs, or choose a device with more memory."


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the memory that the adapter declares. None if it declares none."""
    memory_bytes = read_adapter(Path(model_path)).memory_bytes
    return None if memory_bytes is None else memory_bytes + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Import the libraries that write audio files; the adapter's own packages are imported by `load`."""
    import numpy
    import soundfile

    return {"numpy": numpy.__version__, "soundfile": soundfile.__version__}


def load(request: LoadRequest) -> SongSession:
    """Import the adapter and run its `load`. Raises ModelBroken, ModelLoadFailed, OutOfMemory, DeviceNotReady."""
    import backend.tasks.songs.job  # noqa: F401 (so that the first job need not wait)

    adapter = read_adapter(Path(request.model_path))
    place = None if split_id(request.device)[0] == "cpu" else torch_place(request.device, request.detected_device)
    try:
        module = _module(adapter.path)
        model = module.load("cpu" if place is None else str(place.device), request.threads)
        placement = _placement(adapter, module, model, request, place)
    except TouchstoneError:
        raise
    except (Exception, SystemExit) as error:
        raise _explained(adapter, error) from error
    versions = {**check(), **{name: importlib.metadata.version(name) for name in _installed(adapter)}}
    taken = (lambda: None) if place is None else place.taken_since(request.card_free_bytes)

    def find_placement() -> Placement:
        return _placement(adapter, module, model, request, place)

    composer = AdapterComposer(adapter, module, model)
    return SongSession(composer, placement, request.threads, versions, taken, find_placement)


class AdapterComposer:
    """A loaded adapter. It generates one song after the other."""

    def __init__(self, adapter: Adapter, module: ModuleType, model: Any) -> None:
        self.rate, self.channels = adapter.rate, adapter.channels
        self._adapter, self._module, self._model = adapter, module, model

    def max_batch(self, request: SongRequest) -> int:
        """Return 1: adapters have no batches."""
        return 1

    def receipt_values(self) -> Mapping[str, object]:
        """Return the facts for the receipt."""
        return {"adapter": self._adapter.path.name}

    def compose(self, request: SongRequest, seeds: list[int], report: ProgressCallback) -> Floats:
        """Return [song, channel, frame]. Raises Cancelled, OutOfMemory, WorkerCrashed, ModelBroken."""
        from backend.tasks.audio.progress import Cancelled

        given = {name: request.options[name] for name in (*self._adapter.kind.takes, "seconds")}
        sounds = {name: sound["path"] for name, sound in request.sounds.items()}
        given |= {"prompt": request.prompt, "frames": request.frames, "seed": seeds[0], "sounds": sounds}
        try:
            made = self._module.generate(self._model, given, _Progress(report))
        except _Cancelled:
            raise Cancelled from None
        except (Exception, SystemExit) as error:
            if message := out_of_memory_message(error):
                raise ran_out_of_memory(self._adapter.kind.title, message, _FEWER_SECONDS) from error
            raise WorkerCrashed(
                f"The adapter {self._adapter.path.name} failed to make a song: {type(error).__name__}: "
                f"{str(error)[:600]}",
                "Correct its function generate, or change the request.",
            ) from error
        return self._judged(made, request.frames)[None]

    def _judged(self, made: Any, frames: int) -> Floats:
        import numpy

        name = self._adapter.path.name
        if not isinstance(made, tuple) or len(made) != 2:
            raise ModelBroken(f"The adapter {name} must return (samples, rate).", "Correct its function generate.")
        samples, rate = made
        if hasattr(samples, "detach"):  # torch's
            samples = samples.detach().cpu()
        try:
            sound = numpy.atleast_2d(numpy.asarray(samples, numpy.float32))
        except (TypeError, ValueError) as error:
            raise ModelBroken(
                f"The adapter {name} returned samples that are not numbers: {str(error)[:200]}.",
                "Correct its function generate.",
            ) from None
        if rate != self.rate or sound.shape[0] != self.channels or sound.ndim != 2:
            raise ModelBroken(
                f"The adapter {name} returned samples of shape {list(sound.shape)} at {rate} Hz, but declares "
                f"{self.channels} channels at {self.rate} Hz.",
                "Correct the declaration or the result: samples are [channel, sample].",
            )
        if sound.shape[1] < frames:
            raise ModelBroken(
                f"The adapter {name} generated {sound.shape[1] / rate:g} of {frames / rate:g} s.",
                "Request fewer seconds, and set longest_s in its declaration.",
            )
        return sound


class _Cancelled(BaseException):
    """A BaseException, so that it passes through `except Exception` in the adapter's libraries."""


class _Progress:
    """The callback `progress(phase, done, total, unit="steps")` of `generate`."""

    def __init__(self, report: ProgressCallback) -> None:
        self._callback = report
        self._phase, self._done = "", 0.0

    def __call__(self, phase: str, done: float, total: float, unit: str = "steps") -> None:
        """Report progress, never backwards. Ends the call of `generate` if the job was cancelled."""
        from backend.tasks.audio.progress import Cancelled

        done, total = float(done), float(total)
        if not (math.isfinite(done) and math.isfinite(total) and total > 0):
            return
        self._done = max(self._done, done) if phase == self._phase else done
        self._phase = phase
        try:
            self._callback(str(phase)[:40], max(0.0, min(self._done, total)), total, str(unit)[:20])
        except Cancelled:
            raise _Cancelled from None


def _module(path: Path) -> ModuleType:
    """Import the file as a module. Other modules in its folder can be imported, after all installed ones."""
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location("adapter_of_the_user", path)
    assert spec and spec.loader, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _placement(
    adapter: Adapter, module: ModuleType, model: Any, request: LoadRequest, place: TorchPlace | None
) -> Placement:
    report = getattr(module, "tensors", None)
    if report is None:
        reason = f"The adapter {adapter.path.name} does not report where its model is: it has no function tensors."
        return Placement(None, [], reason)
    return (place or torch_place(request.device, request.detected_device)).placement(report(model))


def _installed(adapter: Adapter) -> list[str]:
    installed = {str(each.metadata["Name"]).lower() for each in importlib.metadata.distributions()}
    return [name for name in adapter.packages if name.lower() in installed]


def _explained(adapter: Adapter, error: BaseException) -> TouchstoneError:
    if message := out_of_memory_message(error):
        return does_not_fit(adapter.kind.title, message)
    return ModelLoadFailed(
        f"The adapter {adapter.path.name} could not load its model: {type(error).__name__}: {str(error)[:600]}",
        "Correct the adapter, or install what it needs in its environment.",
    )
