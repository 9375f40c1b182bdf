"""Audio for the separation tests, and the metric of a stem's quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from backend.engines import LoadRequest, RunRequest, load_engine
from backend.tasks.music.weights import DATA
from backend.tasks.options.music_prompt import apply_prompt

Sound = NDArray[np.float64]
RATE = 44_100
SAID = "Good morning. The quick brown fox jumps over the lazy dog, and then it walks slowly home along the river."


def noise(frames: int, channels: int, seed: int = 1, level: float = 0.2) -> Sound:
    """Return noise [frame, channel] within full scale."""
    return np.clip(np.random.default_rng(seed).normal(0, level, (frames, channels)), -1, 1)


def write(path: Path, sound: Any, rate: int = RATE, subtype: str = "PCM_16") -> Path:
    """Write an audio file and return its path."""
    soundfile.write(path, sound, rate, subtype)
    return path


def read(path: Path) -> Sound:
    """Return the samples [frame, channel] of a file."""
    found: Sound = soundfile.read(path, always_2d=True)[0]
    return found


def mixed(folder: Path, form: str = "jig", seed: int = 3) -> tuple[Path, dict[str, Sound]]:
    """Mix speech with a tune at equal levels. Returns the file of the mix, and the sources by stem name."""
    import hibari

    options, _ = apply_prompt(None, {"form": form, "seconds": 14, "seed": seed})
    request = RunRequest(None, None, options, seed, False, str(folder))
    load_engine("onnxruntime").load(LoadRequest("cpu", str(DATA), 0, 2)).run(request, lambda *told: False)
    music = read(folder / "tune.wav")
    said = soxr.resample(hibari.Hibari()(SAID, seed=seed), hibari.SAMPLE_RATE, RATE)[: len(music)]
    speech = np.zeros_like(music)
    speech[: len(said)] = said[:, None]
    speech *= np.sqrt((music**2).mean() / (speech**2).mean())
    scale = 0.9 / np.abs(music + speech).max()
    parts = {"vocals": speech * scale, "accompaniment": music * scale}
    return write(folder / f"{form}.wav", sum(parts.values()), subtype="PCM_24"), parts


def si_sdr_db(found: Sound, truth: Sound) -> float:
    """Return the scale-invariant SDR in dB (Le Roux et al., "SDR – half-baked or well done?", ICASSP 2019)."""
    found, truth = (found - found.mean(0)).ravel(), (truth - truth.mean(0)).ravel()
    target = truth * (found @ truth) / (truth @ truth)
    return float(10 * np.log10((target @ target) / ((found - target) @ (found - target))))
