"""The ABC reader: it accepts dialects, reports omissions, and rejects the rest with a position and a remedy."""

from __future__ import annotations

import pytest

from backend.tasks.music.abc_fields import STEPS, AbcError
from backend.tasks.music.abc_reader import read_phrase, read_tunes
from backend.tasks.music.opening import read_opening


def notes(text: str) -> list[tuple[int | None, int]]:
    """Return each note as (pitch, ticks)."""
    return [(note.pitch, int(note.ticks)) for bar in read_phrase(text).bars for note in bar.notes]


READ = {
    "a continued field is not played": (
        "X:1\nN:a bag of cabbage\n+: faded badge, a cab, a dead bee\nL:1/4\nK:C\nEF |\nw:Freu-de schoe-\n+:ner\nCD |",
        [(64, 24), (65, 24), (60, 24), (62, 24)],
    ),
    "words are not played": ("L:1/4\nK:D\nDA |\nw:Twin-kle~the twin\\-kle * star_ |", [(62, 24), (69, 24)]),
    "no newline at the end": ("L:1/4\nK:C\n|: CDEC :|]", [(60, 24), (62, 24), (64, 24), (60, 24)]),
    "Windows newlines and a mark at the start": ("\ufeffX:1\r\nK:G\r\nfg\r\n", [(78, 12), (79, 12)]),
    "the unit follows the metre": ("M:2/4\nAB", [(69, 6), (71, 6)]),
    "a named unit stays": ("L:1/8\nM:2/4\nAB", [(69, 12), (71, 12)]),
    "lengths": ("A2 B/ c3/2 d// e/4", [(69, 24), (71, 6), (72, 18), (74, 3), (76, 3)]),
    "broken rhythm": ("A>B c <d e>>f", [(69, 18), (71, 6), (72, 6), (74, 18), (76, 21), (77, 3)]),
    "triplets": ("(3ABc (3:2:2d2e", [(69, 8), (71, 8), (72, 8), (74, 16), (76, 8)]),
    "a chord's highest note counts": ("c2|[CEG]2 [C2e2]", [(72, 24), (67, 24), (76, 24)]),
    "accidentals last until the barline": ("^F F|F", [(66, 12), (66, 12), (65, 12)]),
    "a tie carries one over it": ("^f-|f f", [(78, 12), (78, 12), (77, 12)]),
    "double accidentals and naturals": ("K:D\n__B ^^C =F", [(69, 12), (62, 12), (65, 12)]),
    "ornaments": (
        '!trill!A +fermata+B ~c {ga}d "Am"e "^slow"f Tg.a',
        [(p, 12) for p in (69, 71, 72, 74, 76, 77, 79, 81)],
    ),
    "slurs, spacers and back quotes": ("(A``B)y`c", [(69, 12), (71, 12), (72, 12)]),
    "comments and directives": ("%%MIDI program 1\nA % B\n%c\nd", [(69, 12), (74, 12)]),
    "fields within the line": ("K:C\nf[K:G]f[L:1/4]f", [(77, 12), (78, 12), (78, 24)]),
    "rests": ("M:3/4\nz x2 Z2|A", [(None, 12), (None, 24), (None, 72), (None, 72), (69, 12)]),
    "a line that begins like a field": ("d:|", [(74, 12)]),
    "bagpipes": ("K:HP\nfcg", [(78, 12), (73, 12), (79, 12)]),
    "modes by any name": ("K: A Dorian\nfg", [(78, 12), (79, 12)]),
    "further voices are left out": ("V:1\nAB|\nV:2\nCD|\nV:1\nEF|", [(69, 12), (71, 12), (64, 12), (65, 12)]),
    "also within the line": ("[V:a]A|[V:b]C|[V:a]E|", [(69, 12), (64, 12)]),
    "voices that the header names": ("X:1\nV:1 clef=treble\nV:2 clef=bass\nK:C\nAB|", [(69, 12), (71, 12)]),
    "words in the header": ("X:1\nH:long ago\na bad cabbage\nK:C\nA", [(69, 12)]),
    "words behind the tune": ("My tunes\n\nX:1\nK:C\n\nA\nB\n\nfaded\n", [(69, 12), (71, 12)]),
    "typed in a shell": ("X:1\\nL:1/4\\nK:G\\nfg", [(78, 24), (79, 24)]),
    "a clef's middle is no accidental": ("K:G middle=f\nf", [(78, 12)]),
    "a text's own percent sign": ('"50%"A % B', [(69, 12)]),
    "ornaments within a chord": ('["Am"C!f!E]2', [(64, 24)]),
    "spacers of any width": ("A y10 B", [(69, 12), (71, 12)]),
    "an overlay is left out": ("A & C|E", [(69, 12), (64, 12)]),
}


@pytest.mark.parametrize("name", READ)
def test_dialects(name: str) -> None:
    text, expected = READ[name]
    assert notes(text) == expected


REFUSED = {
    "K:H\nC": (1, 1, "key"),
    "X:1\nM:7\nC": (2, 1, "not a meter"),
    "L:0\nC": (1, 1, "unit length"),
    "[CE": (1, 1, "chord"),
    "A|\n> A": (2, 1, "no note before"),
    "A (1bc": (1, 3, "tuplet"),
    "A0": (1, 1, "length"),
    "A///////": (1, 1, "length"),
    "C,,,,,,,": (1, 1, "out of range"),
    "X:1\nK:C\nA\nX:2\nK:C\nB": (4, 1, "second tune"),
    "": (1, 1, "no note"),
    "A" * 200_001: (1, 1, "too many"),
    "A" * 20_001: (1, 20_001, "notes"),
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_what_cannot_be_read_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(AbcError) as refused:
        read_phrase(text)
    line, column, word = REFUSED[text]
    assert (refused.value.line, refused.value.column) == (line, column)
    assert word in refused.value.reason and refused.value.remedy


def test_what_is_left_out_is_said() -> None:
    assert read_phrase("V:1\nAB\u00e9|\nV:2\nC|\nV:1\nA & c|").omissions == [
        "line 2, column 3: '\u00e9' was skipped",
        "line 3: voice 2 was skipped, only the first voice is used",
        "line 6, column 3: a second voice (&) was skipped",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('CD"AmEF|', 'line 1, column 3: an unterminated text was skipped, "AmEF|'),
        ("K:C octave=-1\nC", "line 1: the transposition was skipped"),
        ("X:1\nhello\nK:C\nC", "line 2 was skipped, it is prose"),
        ("X:1\nK:C\nC\n\nD", "line 5 was skipped, it is after the end of the tune"),
    ],
)
def test_so_is_what_is_no_note_though_it_looks_like_some(text: str, said: str) -> None:
    assert read_phrase(text).omissions == [said]


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("|:C|1D:|2E|]", "CDCE"),
        ("|:C|[1D:|[2E||F|", "CDCEF"),
        ("|:C [1D|E:|[2F|G||A|", "CDECFGA"),
        ("C::D:|", "CCDD"),
        ("|:C|D:||:E:|", "CDCDEE"),
        ("A|:C:|D|", "ACCD"),
        ("C|D||E:|", "CDECDE"),
        ("|:A|1,2 D:|3 E|]", "ADADAE"),
        ("|:A|1-2 D:|3 E||F:|", "ADADAEFF"),
        ("|:C|1D:|2E|:F|1G:|2A|]", "CDCEFGFA"),
        ("C|D|E|F|G|A|B|C|D:|", "CDEFGABCD"),  # longer than a section, which the tune repeats
    ],
)
def test_an_opening_is_what_is_heard(text: str, heard: str) -> None:
    notes = read_opening("L:1/1\nK:C\n" + text).opening.notes
    assert [note.pitch for note in notes] == [60 + STEPS[letter] for letter in heard]
    assert [note.start for note in notes] == [96 * number for number in range(len(heard))]


def test_barlines_say_where_sections_and_endings_are() -> None:
    bars = read_phrase("|: A2 |1 B2 :|2 c2 || d2 |[1 e2 :|[2 f2 |]").bars
    assert [bar.repeat_start for bar in bars] == [True, False, False, False, False, False]
    assert [bar.repeat_end for bar in bars] == [False, True, False, False, True, False]
    assert [bar.section_end for bar in bars] == [False, True, True, False, True, True]
    assert [bar.ending for bar in bars] == ["", "1", "2", "", "1", "2"]


def test_a_file_gives_every_tune_and_says_which_it_cannot() -> None:
    first, second, third = read_tunes("% a file\n\nX:1\nT:One\nR:jig\nK:G\nG|\n\nX: 2\nK:H\n\nX:3\nT:Three\nK:A\nA|")
    assert not isinstance(first, AbcError) and (first.titles, first.rhythm) == (["One"], "jig")
    assert isinstance(second, AbcError) and second.line == 10
    assert not isinstance(third, AbcError) and third.key is not None and third.key.tonic == "A"


def test_an_opening_joins_ties_and_knows_its_pickup() -> None:
    phrase = read_opening("M:6/8\nK:G\nD|G2B- B2d|g3")
    assert (phrase.meter, phrase.tonic, phrase.mode, phrase.bars) == ((6, 8), "G", "major", 2)
    assert phrase.opening.pickup_ticks == 12 and phrase.opening.end == 12 + 72 + 36
    assert [(note.start, note.ticks, note.pitch) for note in phrase.opening.notes] == [
        (0, 12, 62), (12, 24, 67), (36, 36, 71), (72, 12, 74), (84, 36, 79)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "word"),
    [("K:Gloc\nG", "locrian"), ("G/64 A", "1/96"), ("K:C\nA[K:G]B", "key changes"), ("K:E#\nE", "E#")],
)
def test_an_opening_that_no_tune_can_follow_is_refused(text: str, word: str) -> None:
    with pytest.raises(AbcError, match=word):
        read_opening(text)
