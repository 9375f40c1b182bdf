"""Written music, worked out by hand: note values, ties, triplets, beams, ABC fields, and ABC text of single bars."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tasks.music.abc_fields import AbcError, default_unit, parse_key, parse_meter, parse_unit
from backend.tasks.music.abc_reader import read_phrase
from backend.tasks.music.abc_writer import to_text
from backend.tasks.music.notation import (
    WHOLE,
    Bar,
    beam_ticks,
    line_ends,
    notate_bars,
    section_ends,
)
from backend.tasks.music.score import Chord, Melody, Note, Part, Score, beat_ticks_of
from backend.tasks.music.spelling import Key, key_of

QUARTER = WHOLE // 4


def tune(
    notes: list[tuple[int, int, int]],
    bars: int = 1,
    meter: tuple[int, int] = (4, 4),
    pickup: int = 0,
    sections: tuple[int, ...] = (0,),
    tonic: str = "C",
) -> Melody:
    """Return a tune with notes (start, ticks, pitch)."""
    ticks = 96 * meter[0] // meter[1]
    starts = tuple(pickup + ticks * number for number in range(bars))
    played = tuple(Note(start, length, pitch) for start, length, pitch in notes)
    return Melody("reel", meter, tonic, "major", pickup, starts, sections, played, pickup + bars * ticks)


def row(*lengths: int, start: int = 0) -> list[tuple[int, int, int]]:
    """Return notes one after the other."""
    notes = []
    for length in lengths:
        notes.append((start, length, 60))
        start += length
    return notes


def written(melody: Melody) -> list[list[list[tuple[int, bool]]]]:
    """Return, for each bar and group, the written length and tie of each element."""
    bars = notate_bars(melody, melody.notes)
    return [[[(element.length, element.is_tied) for element in group.elements] for group in bar.groups] for bar in bars]


# Note values


@pytest.mark.parametrize(
    ("ticks", "lengths"),
    [
        (24, [QUARTER]),
        (96, [WHOLE]),
        (36, [QUARTER * 3 // 2]),  # dotted
        (3, [6]),  # a thirty-second
        (30, [QUARTER, QUARTER // 4]),  # a quarter tied to a sixteenth
        (42, [72, 12]),  # a dotted quarter tied to a sixteenth
        (84, [144, 24]),  # a dotted half tied to an eighth
    ],
)
def test_a_duration_is_the_fewest_tied_note_values_longest_first(ticks: int, lengths: list[int]) -> None:
    (bar,) = notate_bars(tune([(0, ticks, 60)]), [Note(0, ticks, 60)])
    sounding = [element for group in bar.groups for element in group.elements if element.pitches]
    assert [element.length for element in sounding] == lengths
    assert [element.is_tied for element in sounding] == [True] * (len(lengths) - 1) + [False]
    assert sum(element.ticks for element in sounding) == ticks


def test_a_note_over_a_barline_is_two_tied_notes() -> None:
    first, second = written(tune([(0, 72, 60), (72, 48, 62)], bars=2))
    assert first == [[(144, False), (48, True)]]
    assert second == [[(48, False), (144, False)]], "the tied note, then a rest"


def test_silence_is_a_rest_without_pitches_or_ties() -> None:
    (bar,) = notate_bars(tune([(48, 48, 60)]), [Note(48, 48, 60)])
    elements = [element for group in bar.groups for element in group.elements]
    assert [(element.pitches, element.length, element.is_tied) for element in elements] == [
        ((), 96, False),
        ((60,), 96, False),
    ]


def test_three_notes_in_the_time_of_two_are_a_triplet() -> None:
    (bar,) = notate_bars(tune(row(8, 8, 8, 24, 48)), [Note(*note) for note in row(8, 8, 8, 24, 48)])
    assert [(group.is_triplet, [element.length for element in group.elements]) for group in bar.groups][0] == (
        True,
        [24, 24, 24],
    )
    assert not any(group.is_triplet for group in bar.groups[1:])


def test_a_triplet_of_a_long_and_a_short_note_has_their_written_lengths() -> None:
    melody = tune(row(16, 8, 72))
    assert [length for length, _ in written(melody)[0][0]] == [48, 24]


def test_notes_that_sound_together_are_a_chord_and_a_longer_one_is_tied_on() -> None:
    melody = tune([(0, 48, 60), (0, 48, 64), (48, 48, 67)])
    (bar,) = notate_bars(melody, melody.notes)
    chords = [element.pitches for group in bar.groups for element in group.elements]
    assert chords == [(60, 64), (67,)]
    overlapping = [Note(0, 96, 60), Note(0, 48, 64)]
    (bar,) = notate_bars(tune([]), overlapping)
    elements = [element for group in bar.groups for element in group.elements]
    assert [element.pitches for element in elements] == [(60, 64), (60,)]
    assert not elements[0].is_tied, "a chord is tied only if all of its notes go on"


@pytest.mark.parametrize(
    ("meter", "ticks"), [((4, 4), 48), ((2, 4), 24), ((3, 4), 24), ((6, 8), 36), ((9, 8), 36), ((2, 2), 48)]
)
def test_beams_join_the_notes_of_a_beat_and_of_half_a_bar_in_common_time(meter: tuple[int, int], ticks: int) -> None:
    assert beam_ticks(tune([], meter=meter)) == ticks


def test_eighths_are_beamed_in_fours_and_in_threes() -> None:
    assert [len(group) for group in written(tune(row(*[12] * 8)))[0]] == [4, 4]
    assert [len(group) for group in written(tune(row(*[12] * 6), meter=(6, 8)))[0]] == [3, 3]


def test_a_note_across_the_beat_of_a_jig_is_split_there() -> None:
    assert [length for group in written(tune(row(24, 24, 24), meter=(6, 8)))[0] for length, _ in group] == [
        48, 24, 24, 48,
    ]  # fmt: skip
    assert [length for group in written(tune(row(72), meter=(6, 8)))[0] for length, _ in group] == [144]


def test_a_pickup_and_a_short_last_bar_are_bars_of_their_own() -> None:
    melody = Melody("reel", (4, 4), "C", "major", 12, (12, 108), (0,), (Note(0, 12, 60),), 192)
    assert [(bar.start, bar.end) for bar in notate_bars(melody, melody.notes)] == [(0, 12), (12, 108), (108, 192)]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([3, 6, 9, 12, 18, 21, 24, 36, 48, 72]), min_size=1, max_size=20),
    meter=st.sampled_from([(4, 4), (3, 4), (6, 8), (9, 8), (2, 4)]),
)
def test_the_elements_of_a_bar_fill_it_without_gaps_and_have_real_note_values(
    lengths: list[int], meter: tuple[int, int]
) -> None:
    notes = [Note(*note) for note in row(*lengths)]
    ticks = 96 * meter[0] // meter[1]
    melody = tune(row(*lengths), bars=-(-sum(lengths) // ticks), meter=meter)
    sounding = 0
    for bar in notate_bars(melody, notes):
        position = bar.start
        for element in (element for group in bar.groups for element in group.elements):
            assert element.start == position
            position += element.ticks
            sounding += element.ticks if element.pitches else 0
            undotted = element.length * 2 // 3 if element.is_dotted else element.length
            assert undotted % 3 == 0 and (undotted // 3).bit_count() == 1, "a power of two of a sixty-fourth"
        assert position == bar.end
    assert sounding == sum(lengths)


# Lines and sections


def test_a_line_has_four_bars_and_ends_with_a_section() -> None:
    melody = tune([], bars=10, sections=(0, 6))
    assert section_ends(melody) == {6 * 96}
    assert line_ends(melody) == {4 * 96, 6 * 96, 10 * 96}


def test_a_section_ends_before_the_pickup_of_the_next() -> None:
    melody = Melody("reel", (4, 4), "C", "major", 12, (12, 120), (0, 1), (), 216)
    assert section_ends(melody) == {108}, "the twelve ticks up to the next bar are its pickup"


def test_measures_cover_every_tick_once() -> None:
    melody = Melody("reel", (4, 4), "C", "major", 12, (12, 120), (0, 1), (), 204)
    assert melody.measures == ((0, 12), (12, 108), (108, 120), (120, 204))
    assert Melody("reel", (4, 4), "C", "major", 0, (), (), (), 30).measures == ((0, 30),)


@pytest.mark.parametrize(
    ("meter", "ticks"), [((4, 4), 24), ((3, 8), 24), ((6, 8), 36), ((9, 8), 36), ((12, 8), 36), ((2, 4), 24)]
)
def test_the_beat_of_a_compound_meter_is_a_dotted_quarter(meter: tuple[int, int], ticks: int) -> None:
    assert beat_ticks_of(meter) == ticks


def test_a_score_s_seconds_follow_its_tempo() -> None:
    score = Score("t", tune([], bars=8, meter=(6, 8)), (), 120)
    assert score.seconds == pytest.approx(8 * 2 * 0.5) and score.seconds_per_tick == pytest.approx(0.5 / 36)


# Fields of ABC

SHARPS = {"C": "", "G": "F", "D": "FC", "A": "FCG", "E": "FCGD", "B": "FCGDA", "F#": "FCGDAE", "C#": "FCGDAEB"}
FLATS = {"F": "B", "Bb": "BE", "Eb": "BEA", "Ab": "BEAD", "Db": "BEADG", "Gb": "BEADGC", "Cb": "BEADGCF"}


@pytest.mark.parametrize("tonic", [*SHARPS, *FLATS])
def test_a_major_key_has_the_sharps_or_flats_of_the_circle_of_fifths(tonic: str) -> None:
    altered = {**dict.fromkeys(SHARPS.get(tonic, ""), 1), **dict.fromkeys(FLATS.get(tonic, ""), -1)}
    assert parse_key(tonic).accidentals == {letter: altered.get(letter, 0) for letter in "ABCDEFG"}
    assert [key_of(tonic, "major").signature(letter) for letter in "ABCDEFG"] == [
        altered.get(letter, 0) for letter in "ABCDEFG"
    ]


@pytest.mark.parametrize(
    ("text", "tonic", "mode", "like"),
    [
        ("Am", "A", "minor", "C"),
        ("E Minor", "E", "minor", "G"),
        ("F#m", "F#", "minor", "A"),
        ("Ador", "A", "dorian", "G"),
        ("D mixolydian", "D", "mixolydian", "G"),
        ("G MIX", "G", "mixolydian", "C"),
        ("E phr", "E", "phrygian", "C"),
        ("F lyd", "F", "lydian", "C"),
        ("Bloc", "B", "locrian", "C"),
        ("c aeolian", "C", "minor", "Eb"),
        ("B♭", "Bb", "major", "Bb"),
        ("GM", "G", "major", "G"),
        ("HP", "A", "mixolydian", "D"),
        ("none", "C", "major", "C"),
        ("", "C", "major", "C"),
        ("D clef=bass", "D", "major", "D"),
        ("D treble", "D", "major", "D"),
    ],
)
def test_a_key_is_parsed_with_the_signature_of_its_relative_major(text: str, tonic: str, mode: str, like: str) -> None:
    key = parse_key(text)
    assert (key.tonic, key.mode) == (tonic, mode) and key.accidentals == parse_key(like).accidentals


def test_a_key_may_name_its_accidentals() -> None:
    assert parse_key("D ^g =c").accidentals == {**parse_key("D").accidentals, "G": 1, "C": 0}
    assert parse_key("D exp _b ^f").accidentals == {**dict.fromkeys("ABCDEFG", 0), "B": -1, "F": 1}
    assert parse_key("C ^^f __a").accidentals == {**dict.fromkeys("ABCDEFG", 0), "F": 2, "A": -2}


@pytest.mark.parametrize("text", ["H", "Q", "#", "D foo", "Dmx"])
def test_another_text_is_not_a_key(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_key(text)


def test_the_pitch_class_of_a_tonic_wraps_around() -> None:
    assert [parse_key(name).pitch_class for name in ("C", "B", "Cb", "Eb", "F#")] == [0, 11, 11, 3, 6]


@pytest.mark.parametrize(
    ("text", "meter"),
    [
        ("6/8", (6, 8)), ("C", (4, 4)), ("C|", (2, 2)), ("", (4, 4)), ("none", (4, 4)), ("2+3/8", (5, 8)),
        ("(2+3)/8", (5, 8)), (" 3 / 4 ", (3, 4)), ("64/32", (64, 32)), ("6/8.", (6, 8)),
    ],
)  # fmt: skip
def test_a_meter_is_parsed(text: str, meter: tuple[int, int]) -> None:
    assert parse_meter(text) == meter


@pytest.mark.parametrize("text", ["7", "0/4", "65/4", "4/3", "4/64", "4/", "/4", "c", "9999999999/8", "4/80"])
def test_another_text_is_not_a_meter(text: str) -> None:
    with pytest.raises(ValueError, match="is not a meter"):
        parse_meter(text)


@pytest.mark.parametrize(("text", "unit"), [("1/8", (1, 8)), ("1", (1, 1)), (" 3 / 16 ", (3, 16)), ("1/128", (1, 128))])
def test_a_unit_length_is_parsed(text: str, unit: tuple[int, int]) -> None:
    assert parse_unit(text) == Fraction(*unit)


@pytest.mark.parametrize("text", ["", "0", "0/8", "1/0", "1/3", "1/256", "1/8/2", "x", "1" * 10])
def test_another_text_is_not_a_unit_length(text: str) -> None:
    with pytest.raises(ValueError, match="is not a unit length"):
        parse_unit(text)


@pytest.mark.parametrize(
    ("meter", "unit"), [((2, 4), 16), ((5, 8), 16), ((3, 4), 8), ((6, 8), 8), ((4, 4), 8), ((3, 8), 16)]
)
def test_the_default_unit_is_a_sixteenth_in_meters_below_three_quarters(meter: tuple[int, int], unit: int) -> None:
    assert default_unit(meter) == Fraction(1, unit)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("K:C\nK:Q\nA", 2, 1), ("L:1/3\nA", 1, 1), ("T:a\nM:x\nA", 2, 1), ("K:C\nAB[K:Q]c", 2, 3)],
)
def test_a_field_that_cannot_be_parsed_is_an_error_with_its_place(text: str, line: int, column: int) -> None:
    with pytest.raises(AbcError) as refused:
        read_phrase(text)
    assert (refused.value.line, refused.value.column) == (line, column) and refused.value.remedy


# ABC text


def music(melody: Melody, chords: tuple[Chord, ...] = ()) -> list[str]:
    """Return the lines of music that a melody is written as."""
    text = to_text(Score("A tune", melody, (Part("melody", "violin", melody.notes),), 100, chords))
    return [line for line in text.splitlines() if not line.startswith("%") and line[1:2] != ":"]


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([(0, 12, 60), (12, 12, 72), (24, 12, 84), (36, 12, 48), (48, 48, 67)], "Ccc'C, G4 |]"),
        ([(0, 36, 60), (36, 12, 60), (48, 6, 62), (54, 42, 64)], "C3C D/2E3-E/2 |]"),
        ([(0, 12, 66), (12, 12, 66), (24, 12, 65), (36, 12, 78), (48, 48, 61)], "^FF=F^f ^C4 |]"),
        ([(0, 48, 60), (48, 48, 62)], "C4 D4 |]"),
        ([(0, 48, 60)], "C4 z4 |]"),
        (row(8, 8, 8, 24, 48), "(3CCC C2 C4 |]"),
        (row(16, 8, 24, 48), "(3:2:2C2C C2 C4 |]"),
    ],
)
def test_a_bar_is_written_as_abc(notes: list[tuple[int, int, int]], expected: str) -> None:
    assert music(tune(notes)) == [expected]


def test_the_accidentals_of_the_key_are_not_written_and_others_are() -> None:
    assert music(tune([(0, 24, 66), (24, 24, 65), (48, 24, 73), (72, 24, 72)], tonic="D")) == ["F2=F2 c2=c2 |]"]


def test_an_accidental_holds_until_the_barline_and_needs_no_natural_after_it() -> None:
    assert music(tune([(0, 48, 66), (48, 48, 66), (96, 96, 65)], bars=2)) == ["^F4 F4 | F8 |]"]


def test_a_tie_over_a_barline_is_written_once() -> None:
    assert music(tune([(0, 48, 60), (48, 96, 62), (144, 48, 64)], bars=2)) == ["C4 D4- | D4 E4 |]"]


def test_sections_end_with_double_bars_and_lines_after_four_bars() -> None:
    lines = music(tune(row(*[96] * 6), bars=6, sections=(0, 5)))
    assert lines == ["C8 | C8 | C8 | C8 |", "C8 ||", "C8 |]"]


def test_chord_symbols_stand_at_the_note_that_sounds_when_they_start() -> None:
    chords = (Chord(0, 48, 0, "maj"), Chord(48, 48, 9, "min"))
    assert music(tune([(0, 48, 60), (48, 48, 64)]), chords) == ['"C"C4 "Am"E4 |]']


@pytest.mark.parametrize(
    ("tonic", "mode", "name"),
    [
        ("D", "major", "D"),
        ("A", "minor", "Am"),
        ("E", "dorian", "Bm"),
        ("G", "mixolydian", "C"),
        ("Bb", "minor", "Bbm"),
    ],
)
def test_a_key_has_the_name_of_a_midi_key_with_its_signature(tonic: str, mode: str, name: str) -> None:
    assert key_of(tonic, mode).midi_name == name


@pytest.mark.parametrize(
    ("tonic", "mode", "expected"),
    [
        ("G#", "major", Key("Ab", "major", -4)),
        ("D#", "minor", Key("D#", "minor", 6)),
        ("Cb", "minor", Key("B", "minor", 2)),
        ("C#", "major", Key("C#", "major", 7)),
    ],
)
def test_a_key_of_too_many_accidentals_becomes_its_enharmonic_equivalent(tonic: str, mode: str, expected: Key) -> None:
    assert key_of(tonic, mode) == expected


def test_an_empty_bar_is_a_bar_with_one_rest() -> None:
    (bar,) = notate_bars(tune([]), [])
    assert isinstance(bar, Bar) and [element.length for group in bar.groups for element in group.elements] == [WHOLE]
