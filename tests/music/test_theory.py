"""Rules of music theory that the tune generator follows: spelling, ranges, repeats, lengths, numbers in words."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest

from backend.tasks.music import tokens
from backend.tasks.music.abc_music import Bar
from backend.tasks.music.abc_repeats import expand_repeats, parse_ending
from backend.tasks.music.choices import INSTRUMENTS, tempo_of
from backend.tasks.music.instrument_range import fit_to_range, instruments_for, octave_shift
from backend.tasks.music.length import bar_beats, fit_tempo, format_meter, parse_meter_name
from backend.tasks.music.number_words import DURATIONS, NUMBER, parse_duration_s, parse_number
from backend.tasks.music.plan import FORMS, MAX_BARS, MODES, TONICS
from backend.tasks.music.prompt_parser import parse_prompt
from backend.tasks.music.prompt_words import FILLERS
from backend.tasks.music.score import Melody, Note
from backend.tasks.music.spelling import key_of, pitch_class
from backend.tasks.options import parse_options

NATURALS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
SCALES = {
    "major": (0, 2, 4, 5, 7, 9, 11),
    "minor": (0, 2, 3, 5, 7, 8, 10),
    "dorian": (0, 2, 3, 5, 7, 9, 10),
    "mixolydian": (0, 2, 4, 5, 7, 9, 10),
}
KEYS = list(itertools.product(TONICS, MODES))


# Spelling


@pytest.mark.parametrize(("tonic", "mode"), KEYS)
def test_a_spelled_note_sounds_at_its_pitch(tonic: str, mode: str) -> None:
    key = key_of(tonic, mode)
    for pitch in range(24, 109):
        note = key.spell(pitch)
        assert 12 * (note.octave + 1) + NATURALS[note.letter] + note.alteration == pitch
        assert abs(note.alteration) <= 2


@pytest.mark.parametrize(("tonic", "mode"), KEYS)
def test_the_notes_of_the_scale_need_no_accidentals_and_have_seven_letters(tonic: str, mode: str) -> None:
    key = key_of(tonic, mode)
    notes = [key.spell(60 + TONICS[tonic] + step) for step in SCALES[mode]]
    assert all(note.alteration == key.signature(note.letter) for note in notes)
    assert sorted(note.letter for note in notes) == sorted(NATURALS)


@pytest.mark.parametrize(("tonic", "mode"), KEYS)
def test_a_key_has_at_most_seven_accidentals_and_keeps_its_tonic_s_pitch(tonic: str, mode: str) -> None:
    key = key_of(tonic, mode)
    assert abs(key.fifths) <= 7 and pitch_class(key.tonic) == TONICS[tonic]
    assert sum(abs(key.signature(letter)) for letter in NATURALS) == abs(key.fifths)


# Ranges


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_a_melody_moves_by_the_fewest_octaves_that_fit(instrument: str) -> None:
    instrument_range = INSTRUMENTS[instrument]
    for lowest, width in itertools.product(range(30, 100, 7), (0, 7, 12, 19, 24)):
        shift = octave_shift([lowest, lowest + width], instrument)
        fits = [
            12 * octaves
            for octaves in range(-6, 7)
            if instrument_range.lowest <= lowest + 12 * octaves
            and lowest + width + 12 * octaves <= instrument_range.highest
        ]
        assert (shift is None) == (not fits)
        assert shift is None or (shift in fits and abs(shift) == min(map(abs, fits)))


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_notes_out_of_range_move_by_octaves_and_the_others_stay(instrument: str) -> None:
    pitches = [40, 52, 64, 76, 88, 100]
    notes = tuple(Note(12 * number, 12, pitch) for number, pitch in enumerate(pitches))
    melody = Melody("reel", (4, 4), "C", "major", 0, (0,), (0,), notes, 96)
    fitted = [note.pitch for note in fit_to_range(melody, instrument).notes]
    assert octave_shift(fitted, instrument) is not None
    assert all((before - after) % 12 == 0 for before, after in zip(pitches, fitted, strict=True))
    assert sum(before == after for before, after in zip(pitches, fitted, strict=True)) >= 2


def test_every_instrument_plays_a_melody_of_two_octaves() -> None:
    assert instruments_for([60, 84]) == list(INSTRUMENTS)


# Repeats


@pytest.mark.parametrize(
    ("marks", "order"),
    [
        ("a b", "ab"),
        ("a b:", "abab"),
        ("a :b c:", "abcbc"),
        ("a :b: c:", "abbcc"),
        ("a b1: c2", "abac"),
        ("a b1: c2 d", "abacd"),
        ("a b1: c2: d3", "abacad"),
        ("a: b1: c2", "aabc"),
    ],
)
def test_repeats_and_endings_are_played_in_order(marks: str, order: str) -> None:
    bars, letters = [], {}
    for number, mark in enumerate(marks.split()):
        ending = re.sub(r"[^\d,]", "", mark)
        bars.append(Bar(number, repeat_start=mark[0] == ":", repeat_end=mark[-1] == ":", ending=ending))
        letters[number] = re.sub("[^a-z]", "", mark)
    assert "".join(letters[bar.line] for bar in expand_repeats(bars)) == order


def test_the_passes_of_an_ending_are_bounded() -> None:
    passes = {"1": {1}, "1,3": {1, 3}, "1-3": {1, 2, 3}, "2,4-5": {2, 4, 5}, "": set(), "99": {9}}
    assert {text: parse_ending(text) for text in passes} == passes


# Lengths


@pytest.mark.parametrize(("form", "meter"), [(form, meter) for form, meters in FORMS.items() for meter in meters])
def test_a_fitted_tempo_fills_the_seconds_exactly_within_the_form_s_range(form: str, meter: tuple[int, int]) -> None:
    tempo = tempo_of(form, meter)
    for seconds in (0.5, 1, 2, 5.5, 10, 31.7, 60, 123.4, 300, 600):
        for pickup in (0.0, 0.5, 1.0):
            fit = fit_tempo(seconds, meter, tempo, pickup)
            beats = [bars * bar_beats(meter) + pickup for bars in range(1, MAX_BARS + 1)]
            possible = [count for count in beats if tempo.slow <= count * 60 / seconds <= tempo.fast]
            assert (fit is not None) == bool(possible), (seconds, pickup)
            if fit:
                bars, bpm = fit
                assert math.isclose((bars * bar_beats(meter) + pickup) * 60 / bpm, seconds)
                assert tempo.slow - 1e-6 <= bpm <= tempo.fast + 1e-6


def test_a_meter_is_formatted_and_parsed_alike() -> None:
    for meter in {meter for meters in FORMS.values() for meter in meters}:
        assert parse_meter_name(format_meter(meter)) == meter
    assert parse_meter_name("any") is None and parse_meter_name(None) is None


# Numbers in words

ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
ONES += "seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int, joint: str) -> str:
    if number >= 100:
        rest = f" and {in_words(number % 100, joint)}" if number % 100 else ""
        return f"{ONES[number // 100 - 1]} hundred{rest}"
    if number < 20:
        return ONES[number - 1]
    return TENS[number // 10 - 2] + (f"{joint}{ONES[number % 10 - 1]}" if number % 10 else "")


@pytest.mark.parametrize("joint", ["-", " "])
def test_every_number_below_a_thousand_is_parsed_from_words(joint: str) -> None:
    for number in range(1, 1000):
        text = in_words(number, joint)
        assert re.fullmatch(NUMBER, text, re.IGNORECASE) and parse_number(text) == number, text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:30", 90), ("2m5s", 125), ("half a minute", 30), ("a quarter of a minute", 15),
        ("three quarters of a minute", 45), ("two minutes", 120), ("one and a half minutes", 90),
        ("a minute and a half", 90), ("two minutes and ten seconds", 130), ("1.5 min", 90), ("1,5 min", 90),
        ("an hour", 3600), ("forty-five seconds", 45), ("45s", 45), ("1,200 seconds", 1200), ("12.5 secs", 12.5),
    ],
)  # fmt: skip
def test_a_duration_is_parsed_from_words(text: str, seconds: float) -> None:
    match = next(match for pattern in DURATIONS if (match := re.search(pattern, text, re.IGNORECASE)))
    assert match[0] == text and parse_duration_s(match) == seconds


@pytest.mark.parametrize("text", ["-5 seconds", "x30 seconds", "1/30 seconds", "1:75", "v2m5s"])
def test_a_part_of_another_number_or_word_is_not_a_duration(text: str) -> None:
    matches = [match for pattern in DURATIONS if (match := re.search(pattern, text, re.IGNORECASE))]
    assert not matches


# Prompts


@pytest.mark.parametrize("seed", range(150))
def test_every_word_of_a_prompt_is_understood_or_ignored(seed: int) -> None:
    chance = random.Random(seed)
    words = ["slow", "jig", "reel", "in D minor", "sad", "30 seconds", "32 bars", "on the harp", "at 100 bpm", "purple"]
    words += ["no chords", "not fast", "6/8", "three variations", "xylophone", "a tune", "two minutes", "seed 7"]
    prompt = ", ".join(chance.sample(words, chance.randrange(1, 7)))
    parsed = parse_prompt(prompt, parse_options("music", {}))
    ignored = " ".join(entry["words"] for entry in parsed.ignored).lower()
    for word in ("purple", "xylophone"):
        assert (word in prompt) == (word in ignored)
    assert all(entry["reason"] for entry in parsed.ignored)
    assert not {"bars", "seconds"} <= set(parsed.options), "a tune has one length"
    merged = parse_options("music", {**parsed.options})
    assert {name: merged[name] for name in parsed.options} == parsed.options


def test_filler_words_alone_set_nothing_and_are_not_reported() -> None:
    parsed = parse_prompt(" ".join(sorted(word for word in FILLERS if word.isalpha() and len(word) > 1)), {})
    assert parsed.options == {} and parsed.ignored == [] and parsed.summary() == ""


# Tokens


def test_the_vocabulary_has_one_name_per_token() -> None:
    names = tokens.token_names()
    assert len(names) == len(set(names)) == tokens.VOCABULARY


def test_pitches_and_their_tokens_are_inverse() -> None:
    assert [tokens.token_pitch(tokens.pitch_token(pitch)) for pitch in tokens.PITCHES] == list(tokens.PITCHES)
    assert [tokens.token_pitch(token) for token in (tokens.TIE, tokens.REST, tokens.DURATION)] == [None] * 3
    for pitch in (tokens.PITCHES.start - 1, tokens.PITCHES.stop):
        with pytest.raises(ValueError):
            tokens.pitch_token(pitch)
