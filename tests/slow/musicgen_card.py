"""`python -m tests.slow.musicgen_card FOLDER [DEVICE [KIND …]]`, where torch and transformers are: MusicGen on a card.

Tiny random models of each kind, then two of real size with random weights, made in FOLDER: each through the engine,
with what the allocator says. What they make is noise; told are time and memory. DEVICE is cuda:0.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

from backend.engines import LoadRequest, load_engine
from tests.slow.songs_card import cancelled, song, told, tried
from tests.slow.tiny_musicgen import build, tokenizer_json

# Width, layers, heads: audiocraft's config/model/lm/model_scale.
SIZES = {"medium": (1536, 48, 24), "large": (2048, 48, 32)}


def main(folder: Path, device: str = "cuda:0", *kinds: str) -> int:
    """Prints a line of JSON for each song; 1 if any failed."""
    failed = 0
    for kind in kinds or ("mono", "stereo", "melody", *SIZES):
        try:
            large(folder, kind, device) if kind in SIZES else small(folder, kind, device)
        except Exception:  # noqa: BLE001 (the others shall be tried too)
            failed += 1
            told(what=f"MusicGen {kind} FAILED", error=traceback.format_exc()[-1500:])
    return 1 if failed else 0


def small(folder: Path, kind: str, device: str) -> None:
    """The same wish on the card and on the processor: evidence, repeatability, length, one among others."""
    place = build(folder / f"musicgen-{kind}", kind)
    session, processor = loaded(place, device), loaded(place, "cpu")
    sounds = [song(session, place, seed=seed, seconds=1.2345)[1] for seed in (5, 5, 6)]
    beside = song(processor, place, seed=5, seconds=1.2345)[1]
    three, first = song(session, place, seed=5, seconds=1.2345, variations=3)
    told(
        what=f"MusicGen {kind}",
        evidence=session.placement.evidence,
        frames=sounds[0].shape,
        again_the_same=sounds[0].tobytes() == sounds[1].tobytes(),
        another_seed=sounds[0].tobytes() != sounds[2].tobytes(),
        at_once=three.chosen["at_once"],
        off_from_alone=float(abs(first - sounds[0]).max()),
        off_from_processor=float(abs(beside - sounds[0]).max()),
        number=three.chosen["number"],
        cancelled_s=round(cancelled(session, place, "generate", 30), 4),
    )


def large(folder: Path, size: str, device: str) -> None:
    """A model of real size: loading, half a minute, several at once, a cancel."""
    place = full_size(folder / f"musicgen-{size}", *SIZES[size])
    session = loaded(place, device)
    told(what=f"MusicGen {size}, random", load_s=session.load_s, evidence=session.placement.evidence)
    for seconds, variations in ((10, 1), (30, 1), (30, 8), (30, 16)):
        tried(session, place, f"MusicGen {size}: {variations} of {seconds} s", seconds=seconds, variations=variations)
    told(what=f"MusicGen {size}, cancelled", seconds=round(cancelled(session, place, "generate", 30), 4))


def full_size(place: Path, width: int, layers: int, heads: int) -> Path:
    """With T5 base and EnCodec of 32 kHz as MusicGen has them, in float16 on the disk."""
    import torch
    import transformers

    torch.set_default_dtype(torch.float16)
    text = transformers.T5Config(vocab_size=32_128, d_model=768, d_ff=3072, num_layers=12, num_heads=12)
    audio = transformers.EncodecConfig(
        sampling_rate=32_000,
        audio_channels=1,
        num_filters=64,
        upsampling_ratios=[8, 5, 4, 4],
        codebook_size=2048,
        codebook_dim=128,
        hidden_size=128,
        target_bandwidths=[2.2],
        normalize=False,
        use_causal_conv=False,
    )
    decoder = transformers.MusicgenDecoderConfig(
        vocab_size=2048,
        num_hidden_layers=layers,
        ffn_dim=4 * width,
        num_attention_heads=heads,
        hidden_size=width,
        num_codebooks=4,
        pad_token_id=2048,
        bos_token_id=2048,
    )
    config = transformers.MusicgenConfig(
        text_encoder=text.to_dict(), audio_encoder=audio.to_dict(), decoder=decoder.to_dict()
    )
    with torch.device("cuda"):
        model = transformers.MusicgenForConditionalGeneration(config)
    for name, buffer in model.audio_encoder.named_buffers():
        if name.endswith("codebook.embed"):
            buffer.normal_()
    torch.set_default_dtype(torch.float32)
    ids = {"pad_token_id": 2048, "bos_token_id": 2048, "decoder_start_token_id": 2048}
    model.generation_config = transformers.GenerationConfig(**ids)
    model.save_pretrained(place, safe_serialization=True)
    (place / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    told(what="made", weights=sum(one.numel() for one in model.parameters()))
    del model
    torch.cuda.empty_cache()
    return place


def loaded(place: Path, device: str) -> Any:
    """The engine's session, with how long it took."""
    began = time.perf_counter()
    session: Any = load_engine("musicgen").load(LoadRequest(device, str(place), 0, 4))
    session.load_s = round(time.perf_counter() - began, 2)
    return session


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), *sys.argv[2:]))
