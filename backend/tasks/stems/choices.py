"""Stems, file formats and limits of a separation. Standard library only, since the server validates requests here."""

from __future__ import annotations

from dataclasses import dataclass

STEMS = ("vocals", "accompaniment", "drums", "bass", "other")  # of all models; each model separates some of them
CHUNK_MIN_S, CHUNK_MAX_S = 1.0, 60.0
MAX_CHANNELS = 16
MIN_RATE, MAX_RATE = 1_000, 768_000


@dataclass(frozen=True)
class Format:
    """A file format: suffix, media type, and its names in libsndfile."""

    suffix: str
    media_type: str
    container: str
    subtype: str
    bytes_per_sample: int
    max_channels: int


FORMATS = {
    "wav": Format("wav", "audio/wav", "WAV", "PCM_24", 3, MAX_CHANNELS),
    "flac": Format("flac", "audio/flac", "FLAC", "PCM_24", 3, 8),
    "wav-float": Format("wav", "audio/wav", "WAV", "FLOAT", 4, MAX_CHANNELS),
}
DTYPES = ("float32", "float16")  # of Spleeter's weights
MODEL_FILES = ("spleeter.safetensors", "spleeter.onnx", "LICENSE")
DEMUCS_STEMS = ("drums", "bass", "other", "vocals")  # in the order of the models' outputs
