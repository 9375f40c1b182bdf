"""Tables of instruments, backings, tempo ranges and file formats. Data only; standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from backend.tasks.audio.files.kinds import KINDS


@dataclass(frozen=True)
class Instrument:
    """An instrument of the sound bank. `program` is its General MIDI program, counted from 0.

    `lowest` and `highest` are MIDI note numbers.
    """

    label: str
    program: int
    lowest: int
    highest: int


@dataclass(frozen=True)
class Tempo:
    """Tempi in beats per minute: the usual one, and the range in which the form can be danced."""

    usual: int
    slow: int
    fast: int


INSTRUMENTS: dict[str, Instrument] = {
    "flute": Instrument("Flute", 73, 58, 98),
    "piccolo": Instrument("Piccolo", 72, 70, 108),
    "whistle": Instrument("Whistle", 78, 67, 103),
    "recorder": Instrument("Recorder", 74, 60, 98),
    "clarinet": Instrument("Clarinet", 71, 50, 94),
    "harmonica": Instrument("Harmonica", 22, 48, 96),
    "violin": Instrument("Violin", 40, 55, 98),
    "accordion": Instrument("Accordion", 21, 53, 96),
    "banjo": Instrument("Banjo", 105, 48, 93),
    "dulcimer": Instrument("Hammered dulcimer", 15, 48, 93),
    "steel-guitar": Instrument("Steel-string guitar", 25, 40, 88),
    "nylon-guitar": Instrument("Nylon-string guitar", 24, 40, 88),
    "harp": Instrument("Harp", 46, 36, 98),
    "piano": Instrument("Piano", 0, 33, 98),
    "church-organ": Instrument("Church organ", 19, 36, 96),
    "bass": Instrument("Acoustic bass", 32, 28, 67),
}
"""Instruments by their names in requests. Each has a range of at least two octaves."""

BACKINGS: tuple[str, ...] = ("none", "chords", "bass", "full")
"""Accompaniments. `chords`: strummed or broken chords; `bass`: a bass line; `full`: both; `none`: melody only."""

FORMATS: dict[str, tuple[str, str]] = {
    **{name: (kind.suffix, kind.media_type) for name, kind in KINDS.items()},
    "midi": ("mid", "audio/midi"),
    "abc": ("abc", "text/vnd.abc"),
    "svg": ("svg", "image/svg+xml"),
}
"""File formats by name: suffix and media type."""

DEFAULT_FORMATS = ("wav", "flac", "midi", "abc", "svg")
"""The default file formats of a tune."""

MIN_BPM, MAX_BPM = 30, 300

DEFAULT_INSTRUMENTS: dict[str, str] = {
    "jig": "flute",
    "reel": "violin",
    "hornpipe": "accordion",
    "slip jig": "whistle",
    "strathspey": "violin",
    "march": "accordion",
    "air": "harp",
}

_TEMPI: dict[str, dict[tuple[int, int] | None, Tempo]] = {
    "jig": {None: Tempo(112, 70, 140)},
    "reel": {None: Tempo(184, 110, 240), (2, 4): Tempo(112, 70, 140)},
    "hornpipe": {None: Tempo(152, 90, 200), (3, 2): Tempo(120, 80, 180)},
    "slip jig": {None: Tempo(112, 70, 140)},
    "strathspey": {None: Tempo(124, 80, 160)},
    "march": {None: Tempo(100, 60, 130), (6, 8): Tempo(104, 60, 130), (4, 4): Tempo(108, 60, 140)},
    "air": {None: Tempo(76, 40, 120), (3, 4): Tempo(88, 50, 132), (6, 8): Tempo(54, 34, 90)},
}
_ANY_TEMPO = Tempo(100, 60, 160)


def tempo_of(form: str, meter: tuple[int, int]) -> Tempo:
    """Return the tempo range of a form in a meter. A beat is `Score.beat_ticks` long."""
    by_meter = _TEMPI.get(form, {})
    return by_meter.get(meter) or by_meter.get(None, _ANY_TEMPO)


def default_instrument(form: str) -> str:
    """Return the default instrument of a form."""
    return DEFAULT_INSTRUMENTS.get(form, "flute")
