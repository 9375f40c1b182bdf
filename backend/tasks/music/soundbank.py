"""The sound bank in `data/sounds`: recordings of single notes with the data to play them at any pitch and length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

import numpy as np
import soundfile
from numpy.typing import NDArray

Samples = NDArray[np.float32]

FOLDER = Path(__file__).parent / "data" / "sounds"
# Padding for the interpolation: zeros before a recording, the continued loop after it.
GUARD = 64


class _Zone(TypedDict):
    """The metadata of one recording in sounds.json."""

    start: int
    frames: int
    rate: float
    root: float
    loop: list[int] | None
    gain: float
    attack_s: float
    hold_s: float
    decay_s: float
    sustain_db: float
    release_s: float


class _InstrumentMetadata(TypedDict):
    """The metadata of one instrument in sounds.json."""

    gain: float
    zones: list[_Zone]


@dataclass(frozen=True, eq=False)
class Recording:
    """One recorded note. `samples` are those of the file with `GUARD` samples of padding before and after.

    `root` is the fractional MIDI note number of the recording at the sample rate `rate`. `loop` is optional: first and
    last sample, without padding; None for decaying sounds. `decay_s` and `release_s` are the time for 100 dB.
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
    """Return the recordings of an instrument, from low to high. Raises KeyError for an unknown instrument, OSError."""
    metadata = _load_metadata()[instrument]
    pcm, _ = soundfile.read(FOLDER / f"{instrument}.flac", dtype="float32")
    return tuple(_recording(zone, float(metadata["gain"]), pcm) for zone in metadata["zones"])


def recording_for(instrument: str, pitch: int) -> Recording:
    """Return the recording with the nearest pitch."""
    return min(recordings(instrument), key=lambda recording: abs(recording.root - pitch))


@lru_cache(maxsize=1)
def _load_metadata() -> dict[str, _InstrumentMetadata]:
    metadata: dict[str, _InstrumentMetadata] = json.loads((FOLDER / "sounds.json").read_text(encoding="utf-8"))[
        "instruments"
    ]
    return metadata


def _recording(zone: _Zone, instrument_gain: float, pcm: Samples) -> Recording:
    cut = pcm[zone["start"] : zone["start"] + zone["frames"]]
    loop = (zone["loop"][0], zone["loop"][1]) if zone["loop"] else None
    padding = np.resize(cut[loop[0] : loop[1]], GUARD) if loop else np.zeros(GUARD, np.float32)
    return Recording(
        samples=np.concatenate([np.zeros(GUARD, np.float32), cut, padding]),
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
