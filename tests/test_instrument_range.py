"""Instrument ranges: the complete tune moves by octaves, single notes only if that is not enough."""

from __future__ import annotations

import pytest

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.instrument_range import fit_to_range, instruments_for, octave_shift
from backend.tasks.music.score import Melody, Note


def melody(*pitches: int) -> Melody:
    notes = tuple(Note(12 * number, 12, pitch) for number, pitch in enumerate(pitches))
    return Melody("air", (4, 4), "C", "major", 0, (0,), (0,), notes, 12 * len(notes))


@pytest.mark.parametrize(
    ("pitches", "instrument", "shift"),
    [
        ((60, 72), "whistle", 12),
        ((72, 84), "whistle", 0),
        ((60, 72), "bass", -12),
        ((60,), "piano", 0),
        ((), "flute", 0),
    ],
)
def test_a_melody_moves_by_as_few_octaves_as_possible(pitches: tuple[int, ...], instrument: str, shift: int) -> None:
    assert octave_shift(pitches, instrument) == shift


def test_a_melody_that_fits_somewhere_is_left_as_it_is() -> None:
    tune = melody(60, 64, 84)
    assert all(fit_to_range(tune, instrument) is tune for instrument in INSTRUMENTS)


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_notes_beyond_in_every_octave_come_an_octave_nearer_and_no_others(instrument: str) -> None:
    reach = INSTRUMENTS[instrument]
    lowest = reach.lowest + 5
    pitches = [lowest, lowest + 7, lowest + 12, lowest + 19, reach.highest + 9]
    if octave_shift(pitches, instrument) is not None:
        pitches[-1] = lowest + (reach.highest - reach.lowest) + 12
    tune = melody(*pitches)
    nearer = [note.pitch for note in fit_to_range(tune, instrument).notes]
    assert octave_shift(nearer, instrument) is not None
    moved = [before - after for before, after in zip(pitches, nearer, strict=True)]
    assert moved[:4] == [0, 0, 0, 0] and moved[4] == 12


def test_a_wide_phrase_names_the_instruments_that_reach_it() -> None:
    found = instruments_for([60, 96])
    assert "piano" in found and "whistle" not in found and instruments_for([30, 100]) == []
