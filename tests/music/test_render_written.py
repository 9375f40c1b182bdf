"""MIDI, ABC and sheet contain the notes of the score, as music21, mido and verovio read them."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import mido
import music21
import pytest
import verovio

from backend.tasks.music import abc_writer, midi, sheet
from backend.tasks.music.abc_reader import read_phrase
from backend.tasks.music.backing import arrange
from backend.tasks.music.score import Melody, Note, Score
from tests.music.reading import Heard, midi_notes, music21_notes, parts_with_notes, written
from tests.music.tunes import FORMS, tune

MEI = "{http://www.music-encoding.org/ns/mei}"
SIGNS = {"ff": -2, "f": -1, "n": 0, "s": 1, "x": 2}
NATURAL = {"c": 0, "d": 2, "e": 4, "f": 5, "g": 7, "a": 9, "b": 11}
MODES = ("major", "minor", "dorian", "mixolydian")
KEYS = ("C", "F#", "Bb", "D", "Gb", "A", "Eb", "C#", "G#", "Cb")


def scores() -> list[tuple[str, Score]]:
    """Return tunes of each form, in keys and modes around the circle of fifths, and unusual ones."""
    found: list[tuple[str, Score]] = []
    for number, (form, meter) in enumerate(FORMS):
        for mode in (MODES[number % 4], MODES[(number + 2 + number // 4) % 4]):
            tonic = KEYS[len(found) % len(KEYS)]
            pickup = (0, 12, 8)[len(found) % 3]
            melody = tune(len(found), form, meter, tonic, mode, bars=4, pickup_ticks=pickup, chromatic=0.25)
            backing = ("full", "chords", "none")[len(found) % 3]
            found.append((f"{form}-{tonic}-{mode}", arrange(melody, "piano", backing, 100, "A tune")))
    found += [(name, arrange(melody, "piano", "full", 100, name)) for name, melody in odd().items()]
    return found


def odd() -> dict[str, Melody]:
    steady = tuple(Note(tick, 12, 67) for tick in range(0, 120, 12))
    return {
        "one bar": tune(1, bars=1),
        "pickup only": Melody("jig", (6, 8), "D", "major", 24, (), (), (Note(0, 12, 69), Note(12, 12, 70)), 24),
        "silence": Melody("air", (3, 4), "D", "minor", 0, (0, 72), (0,), (), 144),
        "very low": tune(2, lowest=33, bars=2),
        "very high": tune(3, lowest=80, bars=2),
        "one long note": Melody("reel", (4, 4), "E", "dorian", 0, (0, 96, 192), (0,), (Note(0, 288, 64),), 288),
        "a pickup to each section": Melody("march", (2, 4), "G", "major", 12, (12, 72), (0, 1), steady, 120),
    }


SCORES = scores()
each = pytest.mark.parametrize("score", [score for _, score in SCORES], ids=[name for name, _ in SCORES])


def same(heard: list[list[Heard]], score: Score, slack: float = 0.0) -> None:
    expected = parts_with_notes(score)
    assert [len(part) for part in heard] == [len(part) for part in expected]
    for part, wanted in zip(heard, expected, strict=True):
        for note, want in zip(part, wanted, strict=True):
            assert note[2] == want[2] and abs(note[0] - want[0]) <= slack and abs(note[1] - want[1]) <= slack, want


@each
def test_music21_reads_the_same_notes_in_the_abc(score: Score) -> None:
    text = abc_writer.to_text(score)
    assert text.endswith("\n") and "\r" not in text
    same(music21_notes(text, "abc"), score)


@each
def test_our_own_reader_reads_what_we_wrote(score: Score) -> None:
    if not score.parts[0].notes:
        return
    heard: list[Heard] = []
    now, goes_on = Fraction(0), False
    for note in (note for bar in read_phrase(abc_writer.to_text(score)).bars for note in bar.notes):
        if note.pitch is not None and goes_on:
            start, ticks, pitch = heard.pop()
            assert pitch == note.pitch
            heard.append((start, ticks + float(note.ticks), pitch))
        elif note.pitch is not None:
            heard.append((float(now), float(note.ticks), note.pitch))
        goes_on = note.tied
        now += note.ticks
    assert heard == written(score.parts[0])


@each
def test_music21_reads_the_same_notes_in_the_midi_file(score: Score) -> None:
    same(music21_notes(midi.to_bytes(score), "midi"), score)


@each
def test_verovio_plays_the_same_notes_from_the_sheet(score: Score) -> None:
    toolkit = verovio.toolkit()
    toolkit.setOptions({"inputFrom": "mei"})
    assert toolkit.loadData(sheet.to_mei(score))
    # It ends each note a pulse or two early.
    same(midi_notes(base64.b64decode(toolkit.renderToMIDI())), score, slack=0.5)


@each
def test_the_sheet_is_a_picture_and_the_same_each_time(score: Score) -> None:
    picture = sheet.to_svg(score)
    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert picture == sheet.to_svg(score)
    assert "<script" not in picture and "http" not in picture.replace("http://www.w3.org/", "")


@each
def test_who_reads_the_sheet_sees_the_right_accidentals(score: Score) -> None:
    """Key signature, and accidentals until the end of the bar, beyond it only for tied notes."""
    tree = ET.fromstring(sheet.to_mei(score))
    (definition,) = tree.iter(f"{MEI}scoreDef")
    signature = definition.get("keysig", "0")
    altered = "FCGDAEB"[: int(signature[0])] if signature.endswith("s") else "BEADGCF"[: int(signature[0])]
    always = dict.fromkeys(altered.lower(), 1 if signature.endswith("s") else -1)
    for number, part in enumerate(score.parts, 1):
        seen: list[int] = []
        tied: dict[tuple[str, str], int] = {}
        for staff in tree.iter(f"{MEI}staff"):
            if staff.get("n") != str(number):
                continue
            standing: dict[tuple[str, str], int] = {}
            for note in staff.iter(f"{MEI}note"):
                letter, octave, tie = note.attrib["pname"], note.attrib["oct"], note.get("tie")
                place = (letter, octave)
                if "accid" in note.attrib:
                    standing[place] = SIGNS[note.attrib["accid"]]
                alteration = standing.get(place, always.get(letter, 0))
                if tie in ("m", "t"):
                    alteration = tied.pop(place)
                else:
                    seen.append(NATURAL[letter] + alteration + 12 * (int(octave) + 1))
                if tie in ("i", "m"):
                    tied[place] = alteration
        assert sorted(seen) == sorted(note.pitch for note in part.notes)


def test_lines_have_four_bars_and_sections_end_with_double_bars() -> None:
    melody = replace(tune(8, bars=14, rests=0), sections=(0, 6))
    score = arrange(melody, "flute", "none", 100, "A tune")
    lines = [line for line in abc_writer.to_text(score).splitlines() if "|" in line]
    assert [line.count("|") - line.endswith(("||", "|]")) + line.endswith("|]") for line in lines] == [4, 2, 4, 4]
    assert [line[-2:] for line in lines] == [" |", "||", " |", "|]"]
    mei = ET.fromstring(sheet.to_mei(score))
    (section,) = mei.iter(f"{MEI}section")
    marks = [(child.tag.removeprefix(MEI), child.get("right")) for child in section]
    assert [at for at, mark in enumerate(marks) if mark[0] == "sb"] == [4, 7, 12]
    assert marks[6] == ("measure", "dbl") and marks[-1] == ("measure", "end")


def test_a_sheet_is_drawn_in_every_thread() -> None:
    with ThreadPoolExecutor(2) as threads:
        pictures = list(threads.map(sheet.to_svg, [SCORES[0][1]] * 2))
    assert set(pictures) == {sheet.to_svg(SCORES[0][1])}


@pytest.mark.parametrize("bpm", [30, 112, 300, 112.5, 113.3721, 179.99])
@pytest.mark.parametrize("form, meter", [("jig", (6, 8)), ("reel", (4, 4))])
def test_the_tempo_is_the_same_in_all(form: str, meter: tuple[int, int], bpm: float) -> None:
    score = arrange(tune(4, form, meter, bars=32), "flute", "full", bpm, "A tune")
    quarters = bpm * (1.5 if meter == (6, 8) else 1)
    mark = music21.converter.parseData(abc_writer.to_text(score), format="abc").recurse()
    (abc_bpm, *_) = [float(found.getQuarterBPM()) for found in mark.getElementsByClass("MetronomeMark")]
    assert abs(60 / abc_bpm - 60 / quarters) * score.melody.end / 24 < 0.0025  # s, at the end of the tune
    file = mido.MidiFile(file=io.BytesIO(midi.to_bytes(score)))
    assert abs(file.length - score.seconds) < 0.0025


def test_midi_has_names_programs_key_and_metre_with_the_pickup_s_own() -> None:
    score = arrange(tune(5, "jig", (6, 8), "E", "dorian", pickup_ticks=12), "harp", "full", 110, "Käse & <b>")
    file = mido.MidiFile(file=io.BytesIO(midi.to_bytes(score)), charset="utf-8")
    conductor, *tracks = file.tracks
    assert [track.name for track in file.tracks] == ["Käse & <b>", "melody", "chords", "bass"]
    assert [next(m.program for m in track if m.type == "program_change") for track in tracks] == [46, 25, 32]
    assert len({m.channel for track in tracks for m in track if m.type == "note_on"}) == 3
    metres = [(m.numerator, m.denominator) for m in conductor if m.type == "time_signature"]
    assert metres == [(1, 8), (6, 8)]
    assert [m.key for m in conductor if m.type == "key_signature"] == ["Bm"]  # two sharps, as E dorian has


def test_a_title_cannot_break_out_of_its_field() -> None:
    melody = tune(6)
    for title in ("a\nK:C\nCDEF", "50% more", "<svg onload=x>", "]]> & \"'", "\u2028M:2/4"):
        score = arrange(melody, "flute", "none", 100, title)
        same(music21_notes(abc_writer.to_text(score), "abc"), score)
        assert title.split("\n")[0][:8] in "".join(ET.fromstring(sheet.to_svg(score)).itertext()).replace("\xa0", " ")


def test_a_hornpipe_is_not_swung_by_the_reader_and_chord_symbols_are_not_played_twice() -> None:
    text = abc_writer.to_text(arrange(tune(7, "hornpipe", (4, 4)), "flute", "full", 120, "A tune"))
    assert "%%MIDI ratio 1 1" in text and "%%MIDI gchordoff" in text
    assert "%%MIDI ratio" not in abc_writer.to_text(arrange(tune(7), "flute", "full", 120, "A tune"))
