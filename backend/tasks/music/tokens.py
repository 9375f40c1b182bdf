"""The model's token vocabulary. Standard library only.

A tune is `BOS FORM METER MODE SECTIONS`, then for each section `BARS PICKUP` and its events: a pitch, a tie or a rest,
followed by a duration. Barlines have no tokens: the side ids (grid.py) encode the position in the bar. Pitches are
relative to the tonic, so that tunes can be transposed to any key.
"""

from __future__ import annotations

PITCHES = range(-16, 25)  # semitones above the tonic
FORMS = ("any", "jig", "reel", "hornpipe", "slip jig", "strathspey", "march", "air")
METERS = ((4, 4), (2, 4), (3, 4), (6, 8), (9, 8))
MODES = ("any", "major", "minor", "dorian", "mixolydian")
SECTIONS_MAX = 8
BARS_MAX = 16
PICKUPS = (0, 6, 12, 18, 24, 30, 36, 48, 72)  # in ticks, 96 to a whole note
DURATIONS = (3, 4, 6, 8, 9, 12, 16, 18, 21, 24, 36, 48, 72, 96)  # in ticks; other durations need ties

PAD, BOS, HOLD = 0, 1, 2  # HOLD only occurs in side ids: a note that started earlier is held there
FORM = 3
METER = FORM + len(FORMS)
MODE = METER + len(METERS)
SECTIONS = MODE + len(MODES)
BARS = SECTIONS + SECTIONS_MAX
PICKUP = BARS + BARS_MAX
PITCH = PICKUP + len(PICKUPS)
TIE = PITCH + len(PITCHES)
REST = TIE + 1
DURATION = REST + 1
VOCABULARY = DURATION + len(DURATIONS)


def token_names() -> list[str]:
    """Return a readable name of each token, in order, as in data/tokeniser.json."""
    return [
        "<pad>",
        "<bos>",
        "<hold>",
        *(f"form:{form}" for form in FORMS),
        *(f"meter:{top}/{bottom}" for top, bottom in METERS),
        *(f"mode:{mode}" for mode in MODES),
        *(f"sections:{count + 1}" for count in range(SECTIONS_MAX)),
        *(f"bars:{count + 1}" for count in range(BARS_MAX)),
        *(f"pickup:{ticks}" for ticks in PICKUPS),
        *(f"pitch:{pitch:+d}" for pitch in PITCHES),
        "tie",
        "rest",
        *(f"ticks:{ticks}" for ticks in DURATIONS),
    ]


def pitch_token(pitch: int) -> int:
    """Return the token of a pitch in semitones above the tonic. Raises ValueError if it is out of range."""
    return PITCH + PITCHES.index(pitch)


def token_pitch(token: int) -> int | None:
    """Return the semitones above the tonic; None for a tie or a rest."""
    return PITCHES[token - PITCH] if PITCH <= token < TIE else None
