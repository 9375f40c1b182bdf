"""The melody of a sound as MusicGen Melody hears it: at each moment the one of twelve pitch classes that is loudest.

As transformers' feature extractor computes it (models/musicgen_melody, chroma of librosa), in NumPy, since that needs
torchaudio, which has no build for each torch. The highest class alone counts, so that the scale of a spectrum does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_USUAL = {"n_fft": 16_384, "hop_length": 4_096, "num_chroma": 12, "chunk_length": 30}
SETTINGS = "preprocessor_config.json"


def heard(path: str, name: str, rate: int) -> Any:
    """A sound file as one channel at a rate, at most its first half minute. Raises Validation for what is no sound."""
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
    """[moment, pitch class] of ones and zeros for a sound of one channel."""
    import numpy
    from transformers.audio_utils import chroma_filter_bank

    said = json.loads((folder / SETTINGS).read_text(encoding="utf-8")) if (folder / SETTINGS).is_file() else {}
    size, hop, classes = (int(said.get(key, _USUAL[key])) for key in ("n_fft", "hop_length", "num_chroma"))
    if (short := size - len(sound)) > 0:
        sound = numpy.pad(sound, (short // 2, short - short // 2))
    padded = numpy.pad(sound, size // 2, mode="reflect")
    window = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(size) / size)
    starts = range(0, len(padded) - size + 1, hop)
    powers = numpy.stack([numpy.abs(numpy.fft.rfft(padded[at : at + size] * window)) ** 2 for at in starts])
    filters = chroma_filter_bank(sampling_rate=rate, num_frequency_bins=size, tuning=0, num_chroma=classes)
    loudest = (powers @ filters.T).argmax(-1)
    return numpy.eye(classes, dtype=numpy.float32)[loudest]
