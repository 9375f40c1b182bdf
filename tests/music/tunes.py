"""Random tunes for the tests of the exporters, in every form, meter, key and mode, with special cases."""

from __future__ import annotations

import random

from backend.tasks.music.score import TICKS_PER_WHOLE, Melody, Note
from backend.tasks.music.spelling import pitch_class

STEPS = {
    "major": (0, 2, 4, 5, 7, 9, 11),
    "minor": (0, 2, 3, 5, 7, 8, 10),
    "dorian": (0, 2, 3, 5, 7, 9, 10),
    "mixolydian": (0, 2, 4, 5, 7, 9, 10),
}
FORMS = (
    ("jig", (6, 8)),
    ("reel", (4, 4)),
    ("hornpipe", (4, 4)),
    ("slip jig", (9, 8)),
    ("strathspey", (4, 4)),
    ("march", (2, 4)),
    ("air", (3, 4)),
)
# What a beat may be cut into, in ticks; with triplets, dotted and snapped rhythms, a syncopation and grace-like notes.
CUTS = {
    24: ((24,), (12, 12), (18, 6), (6, 18), (8, 8, 8), (16, 8), (6, 6, 6, 6), (4, 4, 4, 12), (3, 21), (12, 6, 6)),
    36: ((36,), (24, 12), (12, 24), (12, 12, 12), (18, 6, 12), (6, 6, 12, 12), (12, 8, 8, 8), (9, 27)),
}


def tune(
    seed: int,
    form: str = "jig",
    meter: tuple[int, int] = (6, 8),
    tonic: str = "D",
    mode: str = "major",
    bars: int = 8,
    pickup_ticks: int = 0,
    lowest: int = 62,
    chromatic: float = 0.1,
    rests: float = 0.05,
    last_bar_ticks: int | None = None,
) -> Melody:
    """Return a random melody: mostly diatonic notes, with rests, ties across barlines and triplets."""
    dice = random.Random(seed)
    beat = 36 if meter[1] == 8 else 24
    bar_ticks = TICKS_PER_WHOLE * meter[0] // meter[1]
    notes: list[Note] = []
    now = 0
    scale = sorted((pitch_class(tonic) + step) % 12 for step in STEPS[mode])

    def pitch() -> int:
        octave = lowest + 12 * dice.randrange(2)
        if dice.random() < chromatic:
            return octave + dice.randrange(12)
        step = dice.choice(scale)
        return octave + (step - octave) % 12

    def play(ticks: int) -> None:
        nonlocal now
        if dice.random() >= rests:
            notes.append(Note(now, ticks, pitch()))
        now += ticks

    if pickup_ticks:
        play(pickup_ticks)
    starts = []
    for number in range(bars):
        starts.append(now)
        length = last_bar_ticks if last_bar_ticks and number == bars - 1 else bar_ticks
        left = length
        while left > 0:
            cut = dice.choice(CUTS[beat]) if left >= beat else (left,)
            for ticks in cut:
                play(ticks)
            left -= sum(cut)
        if dice.random() < 0.2 and notes and number < bars - 1:
            # The last note goes on over the bar line: the next bar's first one is the same.
            last = notes.pop()
            notes.append(Note(last.start, now - last.start, last.pitch))
    merged = _tied(dice, notes, starts)
    sections = tuple(range(0, bars, 8)) or (0,)
    return Melody(form, meter, tonic, mode, pickup_ticks, tuple(starts), sections, tuple(merged), now)


def _tied(dice: random.Random, notes: list[Note], starts: list[int]) -> list[Note]:
    """Tie some notes across barlines."""
    merged: list[Note] = []
    for note in notes:
        last = merged[-1] if merged else None
        if last and note.start in starts and last.start + last.ticks == note.start and dice.random() < 0.25:
            merged[-1] = Note(last.start, last.ticks + note.ticks, last.pitch)
        else:
            merged.append(note)
    return merged
