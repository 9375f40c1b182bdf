"""What may be asked of a separation. Standard library only: the server checks requests by it."""

from __future__ import annotations

from dataclasses import dataclass

STEMS = ("vocals", "accompaniment", "drums", "bass", "other")  # of all models; each has some of them
CHUNK_LEAST_S, CHUNK_MOST_S = 1.0, 60.0
CHANNELS_MOST = 16
RATE_LEAST, RATE_MOST = 1_000, 768_000


@dataclass(frozen=True)
class Format:
    """A kind of file: ending, media type, and what libsndfile calls it."""

    suffix: str
    media_type: str
    container: str
    subtype: str
    bytes_a_sample: int
    channels_most: int


FORMATS = {
    "wav": Format("wav", "audio/wav", "WAV", "PCM_24", 3, CHANNELS_MOST),
    "flac": Format("flac", "audio/flac", "FLAC", "PCM_24", 3, 8),
    "wav-float": Format("wav", "audio/wav", "WAV", "FLOAT", 4, CHANNELS_MOST),
}
DTYPES = ("float32", "float16")  # of the weights of Spleeter's network
MODEL_FILES = ("spleeter.safetensors", "spleeter.onnx", "LICENSE")
DEMUCS_STEMS = ("drums", "bass", "other", "vocals")  # in the order of the networks' outputs
