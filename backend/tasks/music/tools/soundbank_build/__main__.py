"""The sound bank builder: `python -m backend.tasks.music.tools.soundbank_build FluidR3_GM.sf2 FOLDER`.

The SoundFont is in Debian's package fluid-soundfont-gm. Install requirements.txt of this folder first.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from backend.common.types import JsonObject
from backend.tasks.music.tools.soundbank_build.shaping import Onset, ShapedRecording, shape
from backend.tasks.music.tools.soundbank_build.soundfont import SoundFont, Zone

_VELOCITY = 90  # selects the layer of presets with several velocity layers
_NOMINAL_RATE = 44_100  # the rate in the FLAC header; each recording's rate is in sounds.json
_MELODY_RMS = 0.11  # target level of an instrument's notes at full velocity


# Blown and bowed notes have a slow attack, but a reel has eight notes per second, so they start nearer to their peak.
_STRUCK, _BLOWN, _BOWED = Onset(26.0, 0.002), Onset(12.0, 0.005), Onset(8.0, 0.006)
# Played far below the recording's pitch, where its attack takes three times as long.
_STRETCHED = Onset(6.0, 0.002)


@dataclass(frozen=True)
class _Recipe:
    """The preset of an instrument, its key range and its limits.

    `longest_s` limits recordings. `release_s` (for 100 dB) limits the release, since strings that ring for ten seconds
    sound muddy under changing chords. `spacing` is the minimum distance of recordings in keys. `loudness` is relative
    to the other instruments.
    """

    program: int
    lowest: int
    highest: int
    release_s: float
    longest_s: float = 3.0
    spacing: int = 1
    loudness: float = 1.0
    onset: Onset = _STRUCK


_RECIPES: dict[str, _Recipe] = {
    "flute": _Recipe(73, 58, 98, 0.4, onset=_BLOWN),
    "piccolo": _Recipe(72, 70, 108, 0.4, loudness=0.8, onset=_BLOWN),
    "whistle": _Recipe(78, 67, 103, 0.4, loudness=0.8, onset=_STRETCHED),
    "recorder": _Recipe(74, 60, 98, 0.3, onset=_BLOWN),
    "clarinet": _Recipe(71, 50, 94, 0.3, onset=_BLOWN),
    "harmonica": _Recipe(22, 48, 96, 0.3, onset=_BLOWN),
    "violin": _Recipe(40, 55, 98, 0.35, onset=_BOWED),
    "accordion": _Recipe(21, 53, 96, 0.3, longest_s=9.0, onset=_BLOWN),
    "banjo": _Recipe(105, 48, 93, 3.0, loudness=0.75),
    "dulcimer": _Recipe(15, 48, 93, 2.5),
    "steel-guitar": _Recipe(25, 40, 88, 2.0),
    "nylon-guitar": _Recipe(24, 40, 88, 1.6),
    "harp": _Recipe(46, 36, 98, 5.0),
    "piano": _Recipe(0, 33, 98, 0.8, longest_s=5.0, spacing=6),
    "church-organ": _Recipe(19, 36, 96, 0.8, longest_s=6.0, spacing=6, onset=_BLOWN),
    "bass": _Recipe(32, 28, 67, 0.4, onset=Onset(18.0, 0.002)),
}


def main(source: Path, folder: Path) -> None:
    """Write FOLDER/NAME.flac for each instrument, and FOLDER/sounds.json."""
    font = SoundFont(source)
    folder.mkdir(parents=True, exist_ok=True)
    bank = {name: _write(font, name, recipe, folder) for name, recipe in _RECIPES.items()}
    text = json.dumps({"version": 1, "source": "FluidR3_GM.sf2 by Frank Wen (MIT)", "instruments": bank}, indent=1)
    (folder / "sounds.json").write_text(text + "\n", encoding="utf-8")


def _write(font: SoundFont, name: str, recipe: _Recipe, folder: Path) -> JsonObject:
    zones = _select_zones(font.zones(recipe.program, _VELOCITY), recipe)
    shaped = [shape(zone, recipe.longest_s, recipe.onset) for zone in zones]
    pcm = np.concatenate([item.zone.pcm for item in shaped])
    path = folder / f"{name}.flac"
    soundfile.write(
        path, np.round(pcm * 32000).astype(np.int16), _NOMINAL_RATE, subtype="PCM_16", compression_level=1.0
    )
    powers = [_power(item) for item in shaped]
    mean = float(np.mean(powers))
    zones_metadata, start = [], 0
    for item, power in zip(shaped, powers, strict=True):
        # Halve the level differences (in dB) between recordings, so that neighbouring keys match.
        zones_metadata.append(_zone_metadata(item, recipe, start, (mean / power) ** 0.25))
        start += len(item.zone.pcm)
    return {"gain": round(_MELODY_RMS * recipe.loudness / mean**0.5, 4), "zones": zones_metadata}


def _select_zones(zones: list[Zone], recipe: _Recipe) -> list[Zone]:
    """Return the zones for the recipe's keys, from low to high. Neighbouring zones cover the keys of dropped ones."""
    needed: list[Zone] = []
    for zone in sorted(zones, key=lambda zone: zone.root):
        if zone.highest < recipe.lowest or zone.lowest > recipe.highest:
            continue
        if not needed or zone.root - needed[-1].root >= recipe.spacing:
            needed.append(zone)
    return needed


def _zone_metadata(item: ShapedRecording, recipe: _Recipe, start: int, gain: float) -> JsonObject:
    zone = item.zone
    return {
        "start": start,
        "frames": len(zone.pcm),
        "rate": round(zone.rate, 4),
        "root": round(zone.root, 4),
        "loop": list(zone.loop) if zone.loop else None,
        "gain": round(gain * item.level * 10 ** (-zone.attenuation_db / 20), 5),
        "attack_s": round(zone.attack_s, 4),
        "hold_s": round(zone.hold_s, 3),
        "decay_s": round(zone.decay_s, 3),
        "sustain_db": round(min(zone.sustain_db, 100.0), 2),
        "release_s": round(min(zone.release_s, recipe.release_s) or recipe.release_s, 3),
    }


def _power(item: ShapedRecording) -> float:
    """Return the mean square of the first 0.4 s, which determines the perceived loudness of a note."""
    level = item.level * 10 ** (-item.zone.attenuation_db / 20)
    audible = item.zone.pcm[: round(0.4 * item.zone.rate)] * level
    return float(np.mean(audible**2))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
