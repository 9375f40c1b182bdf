"""The arrangement: chord rules, range and rhythm of the accompaniment, and instruments that cannot play the melody."""

from __future__ import annotations

import pytest

from backend.tasks.music.backing import OutOfRange, arrange
from backend.tasks.music.choices import BACKINGS, FORMATS, INSTRUMENTS, default_instrument, tempo_of
from backend.tasks.music.harmony import chord_pitches, harmonise
from backend.tasks.music.plan import FORMS
from backend.tasks.music.score import Melody, Note, Score
from backend.tasks.music.spelling import pitch_class
from tests.music.tunes import STEPS, tune

MODES = tuple(STEPS)


def names(melody: Melody) -> list[tuple[int, int, str]]:
    """Return each chord as (bar, root above the tonic, quality)."""
    tonic = pitch_class(melody.tonic)
    return [(c.start // melody.bar_ticks, (c.root - tonic) % 12, c.quality) for c in harmonise(melody)]


def arpeggios(*chords: tuple[int, ...], tonic: str = "D", mode: str = "major") -> Melody:
    """Return a 4/4 tune whose bars are arpeggios of the given chords, in semitones above the tonic."""
    low = 60 + pitch_class(tonic)
    notes = [
        Note(96 * bar + 24 * beat, 24, low + chord[index])
        for bar, chord in enumerate(chords)
        for beat, index in enumerate((0, 1, 2, 1))
    ]
    starts = tuple(range(0, 96 * len(chords), 96))
    return Melody("reel", (4, 4), tonic, mode, 0, starts, (0,), tuple(notes), 96 * len(chords))


def test_bars_that_spell_a_chord_get_it() -> None:
    one, four, five, two = (0, 4, 7), (5, 9, 12), (7, 11, 14), (2, 5, 9)
    assert names(arpeggios(one, four, five, one)) == [(0, 0, "maj"), (1, 5, "maj"), (2, 7, "maj"), (3, 0, "maj")]
    assert names(arpeggios(one, two, five, one, tonic="Bb"))[1] == (1, 2, "min")
    minor = arpeggios((0, 3, 7), (5, 8, 12), (7, 11, 14), (0, 3, 7), tonic="A", mode="minor")
    assert names(minor) == [(0, 0, "min"), (1, 5, "min"), (2, 7, "maj"), (3, 0, "min")]  # the leading tone asks for it
    dorian = arpeggios((0, 3, 7), (10, 14, 17), (0, 3, 7), tonic="E", mode="dorian")
    assert names(dorian) == [(0, 0, "min"), (1, 10, "maj"), (2, 0, "min")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form, meter", [(form, meter) for form, meters in FORMS.items() for meter in meters])
def test_chords_cover_the_bars_end_on_the_tonic_and_fit_the_melody(
    form: str, meter: tuple[int, int], mode: str
) -> None:
    melody = tune(len(form) + meter[0], form, meter, "G", mode, bars=16, pickup_ticks=12, chromatic=0.0)
    chords = harmonise(melody)
    assert chords[0].start == melody.bar_starts[0] and chords[-1].start + chords[-1].ticks == melody.end
    assert all(a.start + a.ticks == b.start for a, b in zip(chords, chords[1:], strict=False))
    assert all((a.root, a.quality) != (b.root, b.quality) for a, b in zip(chords, chords[1:], strict=False))
    assert chords[-1].root == pitch_class("G")
    inside = total = 0
    for note in melody.notes:
        chord = next((c for c in chords if c.start <= note.start < c.start + c.ticks), None)
        if chord:
            total += note.ticks
            inside += note.ticks if note.pitch % 12 in chord_pitches(chord) else 0
    assert inside / total > 0.5  # notes drawn at random fit a triad of seven notes' three in 0.43 of the time
    scale = {(pitch_class("G") + step) % 12 for step in STEPS[mode]}
    foreign = {pitch for chord in chords for pitch in chord_pitches(chord)} - scale
    assert foreign <= {pitch_class("F#")}  # the leading tone, which minor and mixolydian tunes borrow


@pytest.mark.parametrize("backing", BACKINGS)
@pytest.mark.parametrize("form, meter", [(form, meter) for form, meters in FORMS.items() for meter in meters])
def test_backing_lies_below_in_time_and_ends_with_the_tune(form: str, meter: tuple[int, int], backing: str) -> None:
    melody = tune(11, form, meter, "A", "major", bars=8, pickup_ticks=12)
    score = arrange(melody, "violin", backing, 100, "A tune")
    wanted = {"none": [], "chords": ["chords"], "bass": ["bass"], "full": ["chords", "bass"]}[backing]
    assert [part.name for part in score.parts] == ["melody", *wanted]
    assert [(n.start, n.ticks) for n in score.parts[0].notes] == [(n.start, n.ticks) for n in melody.notes]
    for part in score.parts[1:]:
        reach = INSTRUMENTS[part.instrument]
        assert all(reach.lowest <= note.pitch <= reach.highest for note in part.notes)
        assert min(note.start for note in part.notes) >= melody.bar_starts[0]  # no backing under a pickup
        assert max(note.start + note.ticks for note in part.notes) <= melody.end
        for start, end in melody.measures[1:]:
            assert any(start <= note.start < end for note in part.notes)
        for note in part.notes:
            chord = next(c for c in score.chords if c.start <= note.start < c.start + c.ticks)
            assert note.pitch % 12 in chord_pitches(chord)
    bass = [part for part in score.parts if part.name == "bass"]
    assert all(note.pitch <= 42 for part in bass for note in part.notes)
    assert (backing == "none") == (score.chords == ())


def test_bass_has_the_root_where_bars_and_chords_begin() -> None:
    score = arrange(tune(12, bars=16), "flute", "bass", 100, "A tune")
    assert len(score.chords) < 16 < len(score.parts[1].notes)
    roots = {chord.start: chord.root for chord in score.chords}
    for bar in score.melody.bar_starts:
        roots[bar] = next(chord.root for chord in reversed(score.chords) if chord.start <= bar)
    (bass,) = [part for part in score.parts if part.name == "bass"]
    assert {note.start: note.pitch % 12 for note in bass.notes if note.start in roots} == roots


def test_a_tune_that_ends_on_a_long_note_ends_on_a_held_chord() -> None:
    notes = (*(Note(12 * number, 12, 69) for number in range(9)), Note(108, 36, 62))
    melody = Melody("jig", (6, 8), "D", "major", 0, (0, 72), (0,), notes, 144)
    score = arrange(melody, "flute", "full", 100, "A jig")
    for part in score.parts[1:]:
        assert {(note.start, note.ticks) for note in part.notes if note.start >= 108} == {(108, 36)}


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_a_melody_moves_by_octaves_into_reach(instrument: str) -> None:
    reach = INSTRUMENTS[instrument]
    for lowest in (43, 55, 62, 67):
        melody = tune(lowest, bars=4, lowest=lowest)
        moved = arrange(melody, instrument, "none", 100, "A tune").parts[0].notes
        shifts = {after.pitch - before.pitch for before, after in zip(melody.notes, moved, strict=True)}
        assert len(shifts) == 1 and shifts.pop() % 12 == 0
        assert all(reach.lowest <= note.pitch <= reach.highest for note in moved)


def test_who_reaches_a_wide_melody_is_named() -> None:
    notes = tuple(Note(12 * number, 12, 40 + 10 * number) for number in range(6))
    wide = Melody("jig", (6, 8), "D", "major", 0, (0,), (0,), notes, 72)
    with pytest.raises(OutOfRange) as refused:
        arrange(wide, "whistle", "none", 100, "A jig")
    assert {"harp", "piano", "church-organ"} <= set(refused.value.alternatives)
    assert "whistle" not in refused.value.alternatives
    for instrument in refused.value.alternatives:
        arrange(wide, instrument, "none", 100, "A jig")


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown backing"):
        arrange(tune(1), "flute", "drums", 100, "A tune")
    with pytest.raises(KeyError):
        arrange(tune(1), "theremin", "none", 100, "A tune")


def test_accents_follow_the_metre() -> None:
    notes = arrange(tune(13, "reel", (4, 4), bars=4, rests=0), "flute", "none", 100, "A reel").parts[0].notes
    velocities = {offset: {n.velocity for n in notes if n.start % 96 == offset} for offset in (0, 24, 12)}
    (bar,), (beat,), (off,) = velocities[0], velocities[24], velocities[12]
    assert bar > beat > off


def test_every_form_has_a_tempo_an_instrument_and_files() -> None:
    for form, meters in FORMS.items():
        assert default_instrument(form) in INSTRUMENTS
        for meter in meters:
            tempo = tempo_of(form, meter)
            assert 30 <= tempo.slow < tempo.usual < tempo.fast <= 300
    assert {suffix for suffix, _ in FORMATS.values()} == {"wav", "flac", "mp3", "ogg", "mid", "abc", "svg"}


def test_measures_leave_no_gap() -> None:
    for melody in (tune(1, pickup_ticks=12, bars=3), tune(2, bars=2, last_bar_ticks=60), tune(3, bars=1)):
        measures = melody.measures
        assert measures[0][0] == 0 and measures[-1][1] == melody.end
        assert all(a[1] == b[0] for a, b in zip(measures, measures[1:], strict=False))
        assert Score("", melody, (), 100).seconds == pytest.approx(melody.end * 60 / 100 / 36)
    between = Melody("march", (2, 4), "G", "major", 12, (12, 72), (0, 1), (), 110)
    assert between.measures == ((0, 12), (12, 60), (60, 72), (72, 110))
