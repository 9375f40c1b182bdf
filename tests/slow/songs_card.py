"""`python -m tests.slow.songs_card FOLDER [DEVICE]`, in an environment with torch and diffusers: songs on a card.

Small random models of every pipeline, then one of ACE-Step XL's size with random weights, made in FOLDER: each through
the engine, with what the allocator says. What they make is noise; told are time and memory. DEVICE is cuda:0.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.common.errors import TouchstoneError
from backend.engines import LoadRequest, RunRequest, load_engine
from backend.tasks.options.songs import song_options
from backend.tasks.songs.model_kinds import kind_of
from tests.slow import tiny_songs

BILLION = 10**9


def main(folder: Path, device: str) -> int:
    """Prints a line of JSON for each song; 1 if any failed."""
    failed = 0
    for kind in (*tiny_songs.KINDS, "full size"):
        try:
            if kind in tiny_songs.KINDS:
                small(kind, tiny_songs.make(folder, [kind])[kind], device)
            else:
                large(full_size(folder, device), device)
        except Exception:  # noqa: BLE001 (the others shall be tried too)
            failed += 1
            told(what=f"{kind} FAILED", error=traceback.format_exc()[-1500:])
    return 1 if failed else 0


def told(**facts: Any) -> None:
    """One line."""
    print(json.dumps(facts, default=str), flush=True)


def small(kind: str, place: Path, device: str) -> None:
    """The same wish on the card and on the processor: evidence, repeatability, length."""
    session = loaded(place, device)
    sounds = [song(session, place, seed=5, steps=4, seconds=1.2345)[1] for _ in range(2)]
    beside = song(loaded(place, "cpu"), place, seed=5, steps=4, seconds=1.2345)[1]
    same = sounds[0].tobytes() == sounds[1].tobytes()
    alike = float((sounds[0] * beside).sum() / ((sounds[0] ** 2).sum() * (beside**2).sum()) ** 0.5)
    facts = {"frames": sounds[0].shape, "again_the_same": same, "correlation_with_processor": round(alike, 5)}
    three = song(session, place, seed=4, steps=4, seconds=1.2345, variations=3)[0]
    told(what=kind, evidence=session.placement.evidence, **facts, three_at_once=three.chosen["at_once"])


def full_size(folder: Path, device: str) -> Path:
    """ACE-Step 1.5 XL by the figures of its card: width 2560, 32 layers, 32 heads, 5 B weights; the rest as in 1.5."""
    import torch
    from diffusers import (
        AceStepPipeline,
        AceStepTransformer1DModel,
        AutoencoderOobleck,
        FlowMatchEulerDiscreteScheduler,
    )
    from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder
    from transformers import Qwen3Config, Qwen3Model

    place = folder / "ace-step-xl"
    began = time.perf_counter()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device.replace("rocm", "cuda")):
        # The split of the weights between attention and the rest is a guess that gives 5 B in all.
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
        transformer = AceStepTransformer1DModel(
            hidden_size=2560,
            intermediate_size=13312,
            num_hidden_layers=32,
            encoder_hidden_size=2048,
            is_turbo=True,
            model_version="turbo",
            **heads,
        )
        condition = AceStepConditionEncoder()
        vae = AutoencoderOobleck(
            encoder_hidden_size=128,
            decoder_channels=128,
            decoder_input_channels=64,
            audio_channels=2,
            sampling_rate=48_000,
            downsampling_ratios=[2, 4, 4, 6, 10],
            channel_multiples=[1, 2, 4, 8, 16],
        )
        reader = Qwen3Model(
            Qwen3Config(
                vocab_size=151_669,
                hidden_size=1024,
                intermediate_size=3072,
                num_hidden_layers=28,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=128,
            )
        )
    torch.set_default_dtype(torch.float32)
    pipe = AceStepPipeline(
        vae=vae,
        text_encoder=reader,
        tokenizer=tiny_songs.words(folder),
        transformer=transformer,
        condition_encoder=condition,
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )
    sizes = {
        name: sum(one.numel() for one in model.parameters())
        for name, model in pipe.components.items()
        if name in ("vae", "text_encoder", "transformer", "condition_encoder")
    }
    pipe.save_pretrained(str(place), safe_serialization=True)
    del pipe, transformer, condition, vae, reader
    torch.cuda.empty_cache()
    told(what="made a model of full size", weights=sizes, seconds=round(time.perf_counter() - began, 1))
    return place


def large(place: Path, device: str) -> None:
    """Whole on the card, then with so little room that each part comes for its turn."""
    session = loaded(place, device)
    told(what="full size, whole", load_s=session.load_s, evidence=session.placement.evidence)
    for seconds, variations in ((60, 1), (60, 1), (60, 4), (240, 1), (600, 1)):
        tried(session, place, f"{variations} of {seconds} s", seconds=seconds, variations=variations)
    cancel_s = cancelled(session, place, "denoise", 240)
    told(what="cancelled within a step", seconds=round(cancel_s, 4))
    import torch

    del session
    _freed(torch)
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(0, free - 14 * BILLION), dtype=torch.uint8, device="cuda")
    session = loaded(place, device)
    told(what="full size, 14 GB free", load_s=session.load_s, evidence=session.placement.evidence)
    for seconds, variations in ((60, 1), (60, 4), (600, 1)):
        tried(session, place, f"{variations} of {seconds} s, in turns", seconds=seconds, variations=variations)
    del hog


def _freed(torch: Any) -> None:
    import gc

    gc.collect()
    torch.cuda.empty_cache()


def loaded(place: Path, device: str) -> Any:
    """The engine's session, with how long it took."""
    began = time.perf_counter()
    session: Any = load_engine("diffusers").load(LoadRequest(device, str(place), 0, 4))
    session.load_s = round(time.perf_counter() - began, 2)
    return session


def song(session: Any, place: Path, emit: Callable[..., bool] = lambda *said: False, **options: Any) -> Any:
    """The result, and the samples of the first file."""
    import soundfile

    kind = kind_of(place)
    assert kind
    whole = song_options(kind, "a slow waltz with a fiddle", options)
    folder = tempfile.mkdtemp()
    try:
        request = RunRequest(None, "a slow waltz with a fiddle", whole, options.get("seed", 5), False, folder)
        result = session.run(request, emit)
        files = sorted(Path(folder).glob("*.wav"))
        return result, soundfile.read(files[0], always_2d=True)[0] if files else None
    finally:
        shutil.rmtree(folder)


def tried(session: Any, place: Path, what: str, **options: Any) -> None:
    """Time and memory of a song, or what was said against it."""
    began = time.perf_counter()
    try:
        result, _ = song(session, place, seed=5, **options)
    except TouchstoneError as error:
        told(what=what, code=error.code, detail=error.detail, remedy=error.remedy)
        return
    spent = time.perf_counter() - began
    phases = {name: round(value, 3) for name, value in result.phases.items()}
    facts = {name: result.chosen.get(name) for name in ("at_once", "card_peak_bytes", "in_turns")}
    told(what=what, seconds=round(spent, 2), times_real=round(result.audio_s / spent, 1), phases=phases, **facts)


def cancelled(session: Any, place: Path, phase: str, seconds: int) -> float:
    """Seconds from the cancel, amid a phase of a song that long, to the end."""
    asked = 0.0

    def emit(event: str, data: dict[str, Any]) -> bool:
        nonlocal asked
        if not asked and data.get("phase") == phase and data["done"] > 2:
            asked = time.perf_counter()
        return bool(asked)

    result, _ = song(session, place, emit, seed=5, seconds=seconds)
    assert result.finish_reason == "cancelled"
    return time.perf_counter() - asked


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda:0"))
