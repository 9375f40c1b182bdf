"""Kinds of sound files. Standard library only: the server checks requests by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SoundKind:
    """A kind of file: ending, media type, and what libsndfile calls it. `rates` are those that it holds, if not all."""

    suffix: str
    media_type: str
    container: str
    subtype: str
    channels_most: int
    rates: tuple[int, ...] = ()
    compression: float | None = None  # libsndfile's, from 0 (best) to 1


# MP3's rates: MPEG-1, 2 and 2.5 (ISO/IEC 11172-3, 13818-3). Vorbis by quality 6, MP3 as LAME's V2: near 190 kbit/s.
_MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
KINDS: dict[str, SoundKind] = {
    "wav": SoundKind("wav", "audio/wav", "WAV", "PCM_16", 16),
    "flac": SoundKind("flac", "audio/flac", "FLAC", "PCM_16", 8),
    "mp3": SoundKind("mp3", "audio/mpeg", "MP3", "MPEG_LAYER_III", 2, _MP3_RATES, 0.2),
    "ogg": SoundKind("ogg", "audio/ogg", "OGG", "VORBIS", 8, (), 0.4),
}
"""By name, as callers write it. WAV and FLAC hold the same 16 bits, MP3 and Ogg Vorbis what is left of them."""


def unfit(name: str, rate: int, channels: int) -> str | None:
    """Why a kind of file cannot hold such a sound, as the end of a sentence; None where it can."""
    kind = KINDS[name]
    if channels > kind.channels_most:
        return f"{name} holds at most {kind.channels_most} channels, and the sound has {channels}"
    if kind.rates and rate not in kind.rates:
        return f"{name} holds no sound of {rate} samples a second"
    return None
