"""Audio file formats. Standard library only, since the server validates requests with this table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SoundKind:
    """A file format: suffix, media type, and its names in libsndfile. `rates` are in Hz; empty means any rate."""

    suffix: str
    media_type: str
    container: str
    subtype: str
    max_channels: int
    rates: tuple[int, ...] = ()
    compression: float | None = None  # libsndfile's compression level, 0 (best quality) to 1


# MP3 sample rates: MPEG-1, 2 and 2.5 (ISO/IEC 11172-3, 13818-3). Vorbis at quality 6, MP3 like LAME V2: 190 kbit/s.
_MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
KINDS: dict[str, SoundKind] = {
    "wav": SoundKind("wav", "audio/wav", "WAV", "PCM_16", 16),
    "flac": SoundKind("flac", "audio/flac", "FLAC", "PCM_16", 8),
    "mp3": SoundKind("mp3", "audio/mpeg", "MP3", "MPEG_LAYER_III", 2, _MP3_RATES, 0.2),
    "ogg": SoundKind("ogg", "audio/ogg", "OGG", "VORBIS", 8, (), 0.4),
}
"""Formats by their names in requests. WAV and FLAC have 16 bits per sample; MP3 and Ogg Vorbis are lossy."""


def why_unsupported(name: str, rate: int, channels: int) -> str | None:
    """Return why a format cannot store such audio, as a clause for a message; None if it can."""
    kind = KINDS[name]
    if channels > kind.max_channels:
        return f"{name} supports at most {kind.max_channels} channels, and the audio has {channels}"
    if kind.rates and rate not in kind.rates:
        return f"{name} does not support a sample rate of {rate} Hz"
    return None
