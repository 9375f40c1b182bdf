"""The diffusers engine with fakes: calls checked against the real signatures, progress, cancels, memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend.common.errors import OutOfMemory
from backend.engines._audio.diffusers_calls import CALLS
from backend.engines._audio.diffusers_composer import SongComposer
from backend.engines._audio.memory_placement import MemoryPlacement, choose_placement
from backend.engines._audio.memory_report import load_error
from backend.tasks.audio.progress import Cancelled
from backend.tasks.options.songs import song_options
from backend.tasks.songs.job import SongRequest
from backend.tasks.songs.model_kinds import KINDS

SIGNATURES = Path(__file__).parent / "faulty_stacks/signatures/diffusers.json"
GB = 10**9


class Sound:
    """A fake tensor with the attributes that the engine uses."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def detach(self) -> Sound:
        return self

    def to(self, *where: Any) -> Sound:
        return self

    def reshape(self, *shape: int) -> Sound:
        return Sound(self._array.reshape(*shape))

    def numpy(self) -> Any:
        return self._array


class Layer:
    """A fake module that calls its hooks before it computes, as torch does."""

    def __init__(self) -> None:
        self._hooks: list[Callable[[Any, Any], None]] = []

    def register_forward_pre_hook(self, hook: Callable[[Any, Any], None]) -> None:
        self._hooks.append(hook)

    def compute(self) -> None:
        for hook in self._hooks:
            hook(self, ())


class ModuleList(Layer):
    """A fake dtype of torch, by name."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = [Layer() for _ in range(count)]

    def children(self) -> Iterator[Layer]:
        yield from self.layers


class Model(Layer):
    """A fake network of some layers."""

    def __init__(self, count: int, **config: Any) -> None:
        super().__init__()
        self.list, self.config = ModuleList(count), SimpleNamespace(**config)
        self.hop_length = 2048

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        yield "list", self.list

    def modules(self) -> Iterator[Any]:
        yield self
        yield self.list

    def run(self) -> None:
        for layer in self.list.layers:
            layer.compute()


class Pipe:
    """A fake pipeline that records its calls."""

    def __init__(self, fails: str = "") -> None:
        self.sample_rate, self.vae_scale_factor, self.max_wav_duration = 48_000, 1920, 30.0
        self.vae = Model(3, audio_channels=2, sampling_rate=44_100)
        self.transformer = self.unet = Model(4, sample_size=1024)
        self.vocoder = Model(1, sampling_rate=16_000, upsample_rates=[5, 4, 8])
        self.components = {"text_encoder": Model(2), "tokenizer": object(), "transformer": self.transformer}
        self.components["vae"] = self.vae
        self.fails, self.given = fails, dict[str, Any]()

    def __call__(self, **given: Any) -> Any:
        self.given = given
        self.components["text_encoder"].run()  # type: ignore[attr-defined]
        for step in range(given["num_inference_steps"]):
            self.transformer.run()
            given["callback_on_step_end"](self, step, 0, {"latents": None})
        if self.fails:
            raise RuntimeError(self.fails)
        self.vae.run()
        frames = round(given["audio_duration"] * self.sample_rate) + 5
        return SimpleNamespace(audios=Sound(np.zeros((len(given["prompt"]), 2, frames), np.float32)))


class Card:
    """A fake of torch's module for a GPU."""

    def __init__(self) -> None:
        self.peak, self.emptied = 0, 0

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.peak = 12 * GB

    def max_memory_allocated(self, device: Any) -> int:
        return self.peak

    def empty_cache(self) -> None:
        self.emptied += 1


class Generator:
    """A fake of torch's random generator on the CPU."""

    def __init__(self, device: str) -> None:
        assert device == "cpu"

    def manual_seed(self, seed: int) -> tuple[str, int]:
        return ("cpu", seed)


def place(free: int | None, processor: bool = False, number: str = "bfloat16") -> Any:
    """Return a fake placement on a GPU with the given memory, of which the weights take ten."""
    torch = SimpleNamespace(Generator=Generator, float32="float32", card=Card())
    access = SimpleNamespace(free_bytes=lambda: free, dtype=number, type="cpu" if processor else "card")
    allocated = (lambda: None) if processor else (lambda: 10 * GB)
    facts = {"torch": torch, "access": access, "is_processor": processor, "device": "card:0", "id": "card:0"}
    return SimpleNamespace(**facts, allocated_bytes=allocated, synchronize=lambda: None)


def wish(kind: str = "AceStepPipeline", seconds: float = 10, rate: int = 48_000, **options: Any) -> SongRequest:
    whole = song_options(KINDS[kind], "a waltz", {"seconds": seconds, "steps": 3, **options})
    return SongRequest("a waltz", whole, round(seconds * rate))


def composer(pipe: Pipe, where: Any) -> SongComposer:
    return SongComposer(CALLS["AceStepPipeline"](pipe), where, MemoryPlacement("bfloat16", False, 10 * GB, 20 * GB))


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_each_pipeline_is_called_as_the_real_one_is(kind: str) -> None:
    real = json.loads(SIGNATURES.read_text(encoding="utf-8"))["names"][f"{kind}.__call__"]
    given = CALLS[kind](Pipe()).arguments(wish(kind), [1, 2], ["a", "b"], lambda step: None)
    assert set(given) <= set(real) and set(CALLS) == {name for name in KINDS if KINDS[name].is_pipeline}
    assert given["prompt"] == ["a waltz"] * 2 and given["generator"] == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "frames", "least", "most"),
    [
        ("AceStepPipeline", 480_000, 10.0, 10.0),
        ("StableAudioPipeline", 441_000, 10.0, 10.0001),  # it takes whole samples, rounded down
        ("StableAudioPipeline", 2_097_152, 47.55, 1024 * 2048 / 44_100),  # and no more than its window
        ("StableAudio3Pipeline", 44_101, 44_101 / 44_100, 1.0001),
        ("AudioLDM2Pipeline", 16_001, 1.2, 1.205),  # 1920 columns of 160 samples are one of the latent picture
        ("LongCatAudioDiTPipeline", 1_921, 1.5 * 1920 / 48_000, 2.6 * 1920 / 48_000),
    ],
)
def test_lengths_are_asked_for_so_that_none_comes_short(kind: str, frames: int, least: float, most: float) -> None:
    pipe = Pipe()
    pipe.vae_scale_factor = 60 if kind == "AudioLDM2Pipeline" else 1920
    assert least <= CALLS[kind](pipe).seconds(frames) <= most


def test_a_song_is_told_phase_by_phase() -> None:
    told: list[tuple[str, float]] = []
    pipe = Pipe()
    sound = composer(pipe, place(10 * GB)).compose(wish(), [5, 6], lambda *said: told.append((said[0], said[1])))
    assert sound.shape == (2, 2, 480_005) and pipe.given["generator"] == [("cpu", 5), ("cpu", 6)]
    assert list(dict.fromkeys(phase for phase, _ in told)) == ["encode", "denoise", "decode"]
    for phase, end in (("encode", 1), ("denoise", 3), ("decode", 1)):
        shares = [share for name, share in told if name == phase]
        assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == end
    assert ("denoise", 1.25) in told, "within a step"


@pytest.mark.parametrize("heard", [1, 4, 9, 17, 20])
def test_a_cancel_is_heard_at_each_layer_and_another_song_follows(heard: int) -> None:
    made, count = composer(Pipe(), place(10 * GB)), 0

    def tell(*said: Any) -> None:
        nonlocal count
        count += 1
        if count == heard:
            raise Cancelled

    with pytest.raises(Cancelled):
        made.compose(wish(), [5], tell)
    assert count == heard
    made.compose(wish(), [5], lambda *said: None)


def test_memory_that_ran_out_is_told_in_numbers() -> None:
    where = place(8 * GB)
    made = composer(Pipe(), where)
    made.compose(wish(), [5], lambda *said: None)
    assert made.receipt_values()["card_peak_bytes"] == 12 * GB
    assert made.max_batch(wish()) == 4, "a song of 10 s took 2 of the 8 GB"
    assert made.max_batch(wish(seconds=30)) == 1
    made._call.pipe.fails = "CUDA out of memory. Tried to allocate 9.00 GiB"
    with pytest.raises(OutOfMemory) as caught:
        made.compose(wish(seconds=100), [5], lambda *said: None)
    assert "100 s do not fit" in caught.value.detail and "8.0 GB available" in caught.value.detail
    assert "Ask for 36 s or less" in caught.value.remedy
    assert made.max_batch(wish()) == 1 and where.torch.card.emptied == 1


def test_other_failures_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="cuDNN"):
        composer(Pipe("cuDNN error"), place(8 * GB)).compose(wish(), [5], lambda *said: None)


@pytest.mark.parametrize(
    ("free", "processor", "expected"),
    [
        (30 * GB, False, ("bfloat16", False)),
        (13 * GB, False, ("bfloat16", False)),
        (11 * GB, False, ("bfloat16", True)),
        (7 * GB, False, None),
        (None, False, ("bfloat16", False)),
        (25 * GB, True, ("float32", False)),
        (15 * GB, True, ("bfloat16", False)),
        (9 * GB, True, None),
    ],
)
def test_the_room_is_chosen_by_what_is_free(
    free: int | None, processor: bool, expected: tuple[str, bool] | None
) -> None:
    """A fake model with five billion parameters, four billion of them in one component."""
    sizes = {"transformer": 4 * GB, "vae": GB}
    counts: dict[str | None, int] = {None: 5 * GB}
    counts.update(sizes)
    pipeline: Any = SimpleNamespace(path=Path("big"), models=sizes, parameter_count=lambda name=None: counts[name])
    where = place(free, processor, "float32" if processor else "bfloat16")
    if expected is None:
        with pytest.raises(OutOfMemory, match=r"needs \d+\.\d GB on card:0 at 16 bits"):
            choose_placement(pipeline, where)
        return
    room = choose_placement(pipeline, where)
    assert (room.dtype, room.sequential_offload) == expected
    assert f"{20 if room.dtype == 'float32' else 10}.0 GB of weights" in room.description


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device_lost"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "model_load_failed"),
        (RuntimeError("size mismatch for proj_in.weight: copying a param with shape [4]"), "model_broken"),
        (ValueError("Cannot load a checkpoint whose weight has another shape"), "model_broken"),
        (ImportError("No module named 'torchsde'"), "model_load_failed"),
    ],
)
def test_a_load_that_fails_blames_the_folder_for_its_own_faults_alone(error: Exception, code: str) -> None:
    refused = load_error("ace-step", "bfloat16: 12.8 GB of weights", error)
    assert refused.code == code
    assert str(error) in refused.detail
    assert refused.remedy
