"""A reader of SoundFont 2 files: presets, and for each key the sample with its loop, envelope, tuning and filter.

It follows the SoundFont Technical Specification 2.04 (chunks in section 7, generators in 8.1.3), without modulators.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Generators by number: name and default value.
_GENERATORS: dict[int, tuple[str, int]] = {
    0: ("start_offset", 0),
    1: ("end_offset", 0),
    2: ("loop_start_offset", 0),
    3: ("loop_end_offset", 0),
    4: ("start_coarse", 0),
    8: ("filter_cents", 13500),
    9: ("filter_q", 0),
    12: ("end_coarse", 0),
    17: ("pan", 0),
    33: ("delay", -12000),
    34: ("attack", -12000),
    35: ("hold", -12000),
    36: ("decay", -12000),
    37: ("sustain", 0),
    38: ("release", -12000),
    43: ("key_range", 127 << 8),
    44: ("velocity_range", 127 << 8),
    45: ("loop_start_coarse", 0),
    48: ("attenuation", 0),
    50: ("loop_end_coarse", 0),
    51: ("coarse_tune", 0),
    52: ("fine_tune", 0),
    54: ("sample_modes", 0),
    56: ("scale_tuning", 100),
    58: ("root_key", -1),
}
_INSTRUMENT, _SAMPLE = 41, 53
_RANGES = ("key_range", "velocity_range")
_NOT_ADDED = (*_RANGES, "sample_modes", "root_key", "start_offset", "end_offset")
_RIGHT_SAMPLE = 2
_RIGHT_PAN = 100  # in tenths of a percent; samples panned further right are the right channel of a stereo pair


@dataclass(frozen=True)
class Zone:
    """A recording and its key range. `loop` is in samples of `pcm`; None for a decaying sound.

    `attack_s`, `hold_s`, `decay_s` (to -100 dB) and `release_s` are seconds; `sustain_db` and `attenuation_db` are
    attenuations. `root` is the fractional MIDI note number of the recording at the sample rate `rate`.
    """

    name: str
    lowest: int
    highest: int
    pcm: NDArray[np.float64]
    rate: float
    root: float
    loop: tuple[int, int] | None
    attack_s: float
    hold_s: float
    decay_s: float
    sustain_db: float
    release_s: float
    attenuation_db: float
    cutoff_hz: float


class SoundFont:
    """An open SoundFont file. Raises ValueError for another kind of file."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        if self._data[:4] != b"RIFF" or self._data[8:12] != b"sfbk":
            raise ValueError(f"{path} is not a SoundFont 2 file")
        self._chunks: dict[str, tuple[int, int]] = {}
        self._walk(12, len(self._data))

    def _walk(self, start: int, end: int) -> None:
        while start + 8 <= end:
            kind = self._data[start : start + 4]
            size = struct.unpack_from("<I", self._data, start + 4)[0]
            if kind == b"LIST":
                self._walk(start + 12, start + 8 + size)
            else:
                self._chunks[kind.decode("ascii")] = (start + 8, size)
            start += 8 + size + size % 2

    def _records(self, chunk: str, form: str) -> list[tuple[Any, ...]]:
        start, size = self._chunks[chunk]
        return list(struct.iter_unpack(form, self._data[start : start + size]))

    def presets(self) -> dict[tuple[int, int], str]:
        """Return the names of all presets by (bank, program)."""
        records = self._records("phdr", "<20sHHHIII")[:-1]
        return {(bank, program): _text(name) for name, program, bank, *_ in records}

    def zones(self, program: int, velocity: int, bank: int = 0) -> list[Zone]:
        """Return the zones of a program at this velocity, from all layers; of stereo pairs only the left channel."""
        presets = self._records("phdr", "<20sHHHIII")
        number = next(n for n, preset in enumerate(presets) if (preset[2], preset[1]) == (bank, program))
        instruments = self._records("inst", "<20sH")
        zones = []
        for preset in self._bags("p", presets[number][3], presets[number + 1][3], _INSTRUMENT):
            index = preset.pop("link")
            for zone in self._bags("i", instruments[index][1], instruments[index + 1][1], _SAMPLE):
                sample = self._records("shdr", "<20sIIIIIBbHH")[zone.pop("link")]
                values = _merge_generators(preset, zone)
                lowest, highest = values["velocity_range"] & 127, values["velocity_range"] >> 8
                right = sample[9] == _RIGHT_SAMPLE or values["pan"] > _RIGHT_PAN
                if lowest <= velocity <= highest and not right:
                    zones.append(self._zone(values, sample))
        return zones

    def _bags(self, level: str, first: int, last: int, link: int) -> Iterator[dict[str, int]]:
        """Yield the generators of each zone with a link, on top of those of its level's global zone."""
        bags = self._records(level + "bag", "<HH")
        generators = self._records(level + "gen", "<HH")
        shared: dict[str, int] = {}
        for number in range(first, last):
            generator_values = dict(generators[bags[number][0] : bags[number + 1][0]])
            named = {
                _GENERATORS[key][0]: _to_signed(key, value)
                for key, value in generator_values.items()
                if key in _GENERATORS
            }
            if link in generator_values:
                yield {**shared, **named, "link": generator_values[link]}
            elif number == first:
                shared = named

    def _zone(self, values: dict[str, int], sample: tuple[Any, ...]) -> Zone:
        name, start, end, loop_start, loop_end, rate, original, correction, _, kind = sample
        if kind & 0x8000:
            raise ValueError(f"{_text(name)} is in a ROM, not in the file")
        start += values["start_offset"] + 32768 * values["start_coarse"]
        end += values["end_offset"] + 32768 * values["end_coarse"]
        loop_start += values["loop_start_offset"] + 32768 * values["loop_start_coarse"] - start
        loop_end += values["loop_end_offset"] + 32768 * values["loop_end_coarse"] - start
        offset, _ = self._chunks["smpl"]
        pcm = np.frombuffer(self._data, "<i2", end - start, offset + 2 * start).astype(np.float64) / 32768
        root = values["root_key"] if 0 <= values["root_key"] <= 127 else original
        return Zone(
            name=_text(name),
            lowest=values["key_range"] & 127,
            highest=values["key_range"] >> 8,
            pcm=pcm,
            rate=float(rate),
            root=root - (correction + values["fine_tune"]) / 100 - values["coarse_tune"],
            loop=(loop_start, loop_end) if values["sample_modes"] & 1 else None,
            attack_s=_to_seconds(values["attack"]) + _to_seconds(values["delay"]),
            hold_s=_to_seconds(values["hold"]),
            decay_s=_to_seconds(values["decay"]),
            sustain_db=values["sustain"] / 10,
            release_s=_to_seconds(values["release"]),
            # 0.4 of the stored attenuation, like the EMU8000 and compatible players.
            attenuation_db=0.4 * values["attenuation"] / 10,
            cutoff_hz=8.176 * 2 ** (values["filter_cents"] / 1200),
        )


def _merge_generators(preset: dict[str, int], zone: dict[str, int]) -> dict[str, int]:
    """Return the zone's values (or defaults) plus those of the preset; ranges are intersected."""
    values = {name: zone.get(name, default) for name, default in _GENERATORS.values()}
    for name, value in preset.items():
        if name in _RANGES:
            lowest = max(values[name] & 127, value & 127)
            values[name] = min(values[name] >> 8, value >> 8) << 8 | lowest
        elif name not in _NOT_ADDED:
            values[name] += value
    return values


def _to_signed(generator: int, value: int) -> int:
    ranges = _GENERATORS[generator][0] in _RANGES
    return value if ranges or value < 32768 else value - 65536


def _to_seconds(timecents: int) -> float:
    return 0.0 if timecents <= -12000 else float(2 ** (timecents / 1200))


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("latin-1").strip()
