"""A pipeline of diffusers as a composer: progress by phase, a cancel between any two layers, memory figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.engines._audio.diffusers_calls import Call
from backend.engines._audio.memory_placement import MemoryPlacement
from backend.engines._audio.memory_report import SongMemory
from backend.engines._memory_errors import out_of_memory_message
from backend.engines._onnx.memory_limit import within_free_memory

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace
    from backend.tasks.songs.job import Floats, ProgressCallback, SongRequest

ENCODE, DENOISE, DECODE = "encode", "denoise", "decode"
_TOGETHER = 4  # the most songs in a batch on a card


class SongComposer:
    """A loaded pipeline. Hooks on its layers check for a cancel and report progress."""

    def __init__(self, call: Call, place: TorchPlace, memory_placement: MemoryPlacement) -> None:
        self._call, self._place, self._memory_placement = call, place, memory_placement
        self._most = 1 if place.is_processor else _TOGETHER
        visiting = (
            0 if not memory_placement.sequential_offload else max(_held(one) for one in call.pipe.components.values())
        )
        self._memory = SongMemory(place, memory_placement, visiting)
        self._progress = _NullProgress()
        self._watch()

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self._call.rate

    @property
    def channels(self) -> int:
        """The number of audio channels."""
        return self._call.channels

    def max_batch(self, request: SongRequest) -> int:
        """Return how many songs fit at once by the last song's memory; a CPU gains nothing from batches."""
        free = None if self._place.is_processor else self._place.access.free_bytes()
        if free is None or not self._memory.bytes_a_second:
            return self._most
        return max(1, min(self._most, int(free / (self._memory.bytes_a_second * request.frames / self.rate))))

    def compose(self, request: SongRequest, seeds: list[int], report: ProgressCallback) -> Floats:
        """Return [song, channel, frame]. Raises OutOfMemory with a remedy, Cancelled."""
        torch, seconds = self._place.torch, request.frames / self.rate
        self._memory.begin()
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        progress = self._progress = _Progress(report, request.options["steps"], self._place, self._layers)
        progress.enter(ENCODE)
        try:
            with within_free_memory(self._place.is_processor):
                made = self._call.pipe(**self._call.arguments(request, seeds, generators, progress.step)).audios
                sound = made.detach().to("cpu", torch.float32)
        except (RuntimeError, MemoryError) as error:
            if not (message := out_of_memory_message(error) or ""):
                raise
            self._most = 1
        else:
            progress.end()
            self._memory.end(len(seeds) * seconds)
            return sound.reshape(len(seeds), self.channels, -1).numpy()  # type: ignore[no-any-return]
        finally:
            self._progress = _NullProgress()
        self._memory.empty()
        free = self._place.access.free_bytes()
        raise self._memory.advice(seconds, len(seeds), message, self._memory.bytes_a_second, free)

    def receipt_values(self) -> Mapping[str, object]:
        """Return the facts for the receipt."""
        return {"in_turns": self._memory_placement.sequential_offload, **self._memory.receipt_values()}

    def _watch(self) -> None:
        """Register a hook on each layer of each model: it checks for a cancel and reports progress."""
        self._layers: dict[str, int] = {}
        for name, model in self._call.pipe.components.items():
            if not hasattr(model, "named_modules"):
                continue
            layers = [
                layer
                for inner in model.modules()
                if type(inner).__name__ in ("ModuleList", "Sequential")
                for layer in inner.children()
            ]
            phase = {self._call.denoiser: DENOISE, self._call.decoder: DECODE, "vocoder": DECODE}.get(name, ENCODE)
            self._layers[phase] = self._layers.get(phase, 0) + len(layers)
            for layer in layers or [model]:
                layer.register_forward_pre_hook(self._progress_hook(phase))

    def _progress_hook(self, phase: str) -> Any:
        def hear(layer: Any, given: Any) -> None:
            self._progress.layer(phase)

        return hear


def _held(model: Any) -> int:
    """Return the bytes of a model's weights; 0 for a component that is not a model."""
    return sum(one.numel() * one.element_size() for one in model.parameters()) if hasattr(model, "parameters") else 0


class _NullProgress:
    """The progress between songs: hooks do nothing."""

    def layer(self, phase: str) -> None:
        """Do nothing."""


class _Progress(_NullProgress):
    """The progress of one call of the pipeline: phase after phase, never backwards."""

    def __init__(self, report: ProgressCallback, steps: int, place: TorchPlace, layers: dict[str, int]) -> None:
        self._callback, self._steps, self._place, self._layers = report, steps, place, layers
        self._phase = ""
        self._step = self._layer_calls = 0

    def enter(self, phase: str) -> None:
        """Finish the previous phase and start this one. Raises Cancelled."""
        order = (ENCODE, DENOISE, DECODE)
        if self._phase:
            self._report(1.0)
            for skipped in order[order.index(self._phase) + 1 : order.index(phase)]:
                self._phase = skipped
                self._report(1.0)
        self._phase, self._layer_calls = phase, 0
        self._report(0.0)

    def layer(self, phase: str) -> None:
        """Count a layer that is about to compute. Raises Cancelled."""
        order = (ENCODE, DENOISE, DECODE)
        if order.index(phase) > order.index(self._phase) and not (phase == DECODE and self._step < self._steps):
            self.enter(phase)
        self._layer_calls += 1
        share = min(0.95, self._layer_calls / max(1, self._layers.get(self._phase, 1)))
        self._report((self._step + share) / self._steps if self._phase == DENOISE else share)

    def step(self, number: int) -> None:
        """Count a denoising step that the device has completed. Raises Cancelled."""
        self._place.synchronize()
        self._step, self._layer_calls = number + 1, 0
        self._report(self._step / self._steps)

    def end(self) -> None:
        """Finish the last phase."""
        if self._phase != DECODE:
            self.enter(DECODE)
        self._report(1.0)

    def _report(self, share: float) -> None:
        if self._phase == DENOISE:
            self._callback(DENOISE, round(min(share, 1.0) * self._steps, 2), self._steps, "steps")
        else:
            self._callback(self._phase, round(share, 2), 1, "songs")
