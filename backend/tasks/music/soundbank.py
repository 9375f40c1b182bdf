"""The sounds in `data/sounds`: recordings of single notes with what it takes to play them at any pitch and length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

Samples = NDArray[np.float32]

FOLDER = Path(__file__).parent / "data" / "sounds"
# Zeros before a recording and more of its loop behind it, so that interpolation needs no special case at the ends.
GUARD = 64


@dataclass(frozen=True, eq=False)
class Recording:
    """One recorded note. `samples` has `GUARD` samples before and behind those of the file.

    `root` is the MIDI key, with its fraction, that it sounds at when played at `rate`; `loop` counts from the first
    real sample and is None for sounds that die away by themselves. `decay_s` and `release_s` are the time for 100 dB.
    """

    samples: Samples
    rate: float
    root: float
    loop: tuple[int, int] | None
    gain: float
    attack_s: float
    hold_s: float
    decay_s: float
    sustain_db: float
    release_s: float


@lru_cache(maxsize=32)
def recordings(instrument: str) -> tuple[Recording, ...]:
    """All recordings of an instrument, from low to high. Raises KeyError for an unknown one, OSError for a bad file."""
    facts = _facts()[instrument]
    pcm, _ = soundfile.read(FOLDER / f"{instrument}.flac", dtype="float32")
    return tuple(_recording(zone, float(facts["gain"]), pcm) for zone in facts["zones"])


def recording_for(instrument: str, pitch: int) -> Recording:
    """The recording whose own pitch is nearest."""
    return min(recordings(instrument), key=lambda recording: abs(recording.root - pitch))


@lru_cache(maxsize=1)
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FOLDER / "sounds.json").read_text(encoding="utf-8"))["instruments"]
    return facts


def _recording(zone: dict[str, Any], instrument_gain: float, pcm: Samples) -> Recording:
    cut = pcm[zone["start"] : zone["start"] + zone["frames"]]
    loop = (zone["loop"][0], zone["loop"][1]) if zone["loop"] else None
    behind = np.resize(cut[loop[0] : loop[1]], GUARD) if loop else np.zeros(GUARD, np.float32)
    return Recording(
        samples=np.concatenate([np.zeros(GUARD, np.float32), cut, behind]),
        rate=zone["rate"],
        root=zone["root"],
        loop=loop,
        gain=zone["gain"] * instrument_gain,
        attack_s=zone["attack_s"],
        hold_s=zone["hold_s"],
        decay_s=zone["decay_s"],
        sustain_db=zone["sustain_db"],
        release_s=zone["release_s"],
    )
