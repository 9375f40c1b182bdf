"""The melody of a recording as MusicGen Melody uses it: at each moment the loudest of the twelve pitch classes.

Computed as transformers' feature extractor does (models/musicgen_melody, chroma of librosa), but in NumPy, because the
extractor needs torchaudio, which has no build for some versions of torch. Only the loudest class counts, so the scale
of the spectrum does not matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_USUAL = {"n_fft": 16_384, "hop_length": 4_096, "num_chroma": 12, "chunk_length": 30}
SETTINGS = "preprocessor_config.json"


def load_sound(path: str, name: str, rate: int) -> Any:
    """Return a sound file as one channel at a sample rate, at most its first 30 s. Raises Validation."""
    import numpy

    from backend.tasks.stems.audio_source import measure
    from backend.tasks.stems.resampling import resample_stream

    source = measure(Path(path), name, lambda done, total: None)
    limit, frames, kept = _USUAL["chunk_length"] * rate, 0, []
    for block in resample_stream((block.mean(0, keepdims=True) for block in source.blocks()), 1, source.rate, rate):
        kept.append(block[0, : limit - frames])
        frames += len(kept[-1])
        if frames >= limit:
            break
    return numpy.concatenate(kept)


def chroma(sound: Any, rate: int, folder: Path) -> Any:
    """Return [moment, pitch class] of ones and zeros for a sound of one channel."""
    import numpy
    from transformers.audio_utils import chroma_filter_bank

    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8")) if (folder / SETTINGS).is_file() else {}
    size, hop, classes = (int(settings.get(key, _USUAL[key])) for key in ("n_fft", "hop_length", "num_chroma"))
    if (short := size - len(sound)) > 0:
        sound = numpy.pad(sound, (short // 2, short - short // 2))
    padded = numpy.pad(sound, size // 2, mode="reflect")
    window = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(size) / size)
    starts = range(0, len(padded) - size + 1, hop)
    powers = numpy.stack([numpy.abs(numpy.fft.rfft(padded[at : at + size] * window)) ** 2 for at in starts])
    filters = chroma_filter_bank(sampling_rate=rate, num_frequency_bins=size, tuning=0, num_chroma=classes)
    loudest = (powers @ filters.T).argmax(-1)
    return numpy.eye(classes, dtype=numpy.float32)[loudest]
