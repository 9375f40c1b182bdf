"""The options of a tune: every combination is completed exactly, or rejected with the possible ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from backend.common.errors import Validation
from backend.tasks.music.choices import INSTRUMENTS, tempo_of
from backend.tasks.music.controls import KEYS_OF_MODE, check_options, complete_options, variation_seeds
from backend.tasks.music.length import bar_beats, format_meter
from backend.tasks.music.plan import FORMS, MAX_BARS, MODES, TONICS
from backend.tasks.music.spelling import key_of
from backend.tasks.options import options_schema, parse_options


def options(**chosen: Any) -> dict[str, Any]:
    return parse_options("music", chosen, 1)


def refusal(**chosen: Any) -> Validation:
    with pytest.raises(Validation) as caught:
        check_options(options(**chosen))
    return caught.value


@pytest.mark.parametrize(("form", "meter"), [(form, meter) for form, meters in FORMS.items() for meter in meters])
def test_what_is_asked_is_what_is_made(form: str, meter: tuple[int, int]) -> None:
    for key, mode in itertools.product(TONICS, MODES):
        if key_of(key, mode).tonic == key:
            asked = options(form=form, meter=format_meter(meter), key=key, mode=mode, bars=24, tempo_bpm=101.5)
            made = complete_options(asked, 5)
            assert (made.plan.form, made.plan.meter, made.plan.tonic, made.plan.mode) == (form, meter, key, mode)
            assert (made.plan.bars, made.tempo_bpm) == (24, 101.5)


@pytest.mark.parametrize("seconds", [1.0, 7.5, 30, 61.25, 180, 600])
@pytest.mark.parametrize("form", FORMS)
def test_whole_bars_fill_the_seconds_at_a_tempo_of_the_form(form: str, seconds: float) -> None:
    for meter in FORMS[form]:
        tempo = tempo_of(form, meter)
        shortest = bar_beats(meter) * 60 / tempo.fast
        longest = MAX_BARS * bar_beats(meter) * 60 / tempo.slow
        asked = options(form=form, meter=format_meter(meter), seconds=seconds)
        if not shortest <= seconds <= longest:
            bound = (
                f"at least {math.ceil(shortest * 100) / 100:g}"
                if seconds < shortest
                else f"at most {math.floor(longest * 100) / 100:g}"
            )
            with pytest.raises(Validation) as caught:
                check_options(asked)
            assert bound in caught.value.remedy
            continue
        made = complete_options(asked, 1)
        assert made.plan.bars * bar_beats(meter) * 60 / made.tempo_bpm == pytest.approx(seconds, abs=1e-6)
        assert tempo.slow - 1e-6 <= made.tempo_bpm <= tempo.fast + 1e-6
        assert made.seconds == seconds


def test_whole_tunes_are_preferred_where_they_are_near_enough() -> None:
    made = complete_options(options(form="jig", seconds=30), 1)
    assert made.plan.bars == 32 and made.tempo_bpm == pytest.approx(128)


def test_with_seconds_and_a_tempo_the_tempo_stays_and_most_bars_that_fit_are_made() -> None:
    made = complete_options(options(form="reel", seconds=31, tempo_bpm=120), 1)
    assert (made.plan.bars, made.tempo_bpm, made.seconds) == (15, 120, 31)
    assert complete_options(options(form="reel", seconds=30, tempo_bpm=120), 1).plan.bars == 15


def test_what_is_left_open_is_drawn_by_the_seed_alone() -> None:
    made = [complete_options(options(), seed) for seed in range(400)]
    assert made == [complete_options(options(), seed) for seed in range(400)]
    assert {each.plan.form for each in made} == set(FORMS)
    assert {each.plan.mode for each in made} == set(MODES)
    assert {each.plan.tonic for each in made if each.plan.mode == "dorian"} == set(KEYS_OF_MODE["dorian"])
    major = sum(each.plan.mode == "major" for each in made)
    assert 200 < major < 280, "six in ten"
    assert {each.plan.meter for each in made} == {meters[0] for meters in FORMS.values()}, (
        "the usual metre of each form"
    )
    assert all(each.plan.bars == 32 and each.backing == "full" for each in made)


def test_a_metre_alone_draws_among_the_forms_that_have_it() -> None:
    made = {complete_options(options(meter="6/8"), seed).plan.form for seed in range(60)}
    assert made == {form for form, meters in FORMS.items() if (6, 8) in meters}


def test_a_length_that_no_bar_of_some_form_fits_draws_among_the_others() -> None:
    made = [complete_options(options(seconds=1.0), seed) for seed in range(60)]
    assert len({each.plan.form for each in made}) > 1
    assert all(bar_beats(each.plan.meter) * 60 / tempo_of(each.plan.form, each.plan.meter).fast <= 1.0 for each in made)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"form": "jig", "meter": "4/4"}, "6/8"),
        ({"form": "strathspey", "meter": "3/4"}, "4/4"),
        ({"form": "strathspey", "meter": "3/4"}, "air"),
        ({"form": "reel", "meter": "9/8"}, "slip jig"),
        ({"key": "D#", "mode": "major"}, "Eb major"),
        ({"key": "Cb", "mode": "minor"}, "B minor"),
        ({"seconds": 0.2}, "at least 0.86 seconds"),
        ({"form": "air", "meter": "4/4", "seconds": 3, "tempo_bpm": 60}, "at least 4 seconds"),
        ({"form": "march", "seconds": 590, "tempo_bpm": 300}, "at most 204.8 seconds"),
        ({"bars": MAX_BARS, "form": "air", "tempo_bpm": 30}, "at most 75 bars"),
        ({"seconds": 500, "variations": 4}, "at most 450 seconds"),
        ({"bars": 32, "variations": 16, "tempo_bpm": 30}, "at most 28 bars"),
    ],
)
def test_an_impossible_combination_names_the_possible_ones(asked: dict[str, Any], named: str) -> None:
    error = refusal(**asked)
    assert named in error.remedy and error.extra["fields"]


@pytest.mark.parametrize(
    "asked",
    [
        {"form": "jig", "meter": "6/8"},
        {"key": "D#"},
        {"bars": MAX_BARS},
        {"seconds": 600},
        {"seconds": 112, "variations": 16},
    ],
)
def test_what_passes_the_check_can_be_completed_for_every_seed(asked: dict[str, Any]) -> None:
    check_options(options(**asked))
    for seed in range(200):
        complete_options(options(**asked), seed)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"form": "walz"}, "unknown form 'walz'"),
        ({"form": "slip jigg"}, "did you mean 'slip jig'?"),
        ({"meter": "5/4"}, "2/4, 3/4, 4/4, 6/8, 9/8"),
        ({"key": "H"}, "unknown key 'H'"),
        ({"instrument": "bagpipe"}, "accordion"),
        ({"bars": 0}, "options.bars"),
        ({"bars": MAX_BARS + 1}, "options.bars"),
        ({"bars": 8, "seconds": 9}, "bars and seconds are mutually exclusive"),
        ({"seconds": 601}, "options.seconds"),
        ({"tempo_bpm": 29}, "options.tempo_bpm"),
        ({"variations": 17}, "options.variations"),
        ({"variations": True}, "options.variations"),
        ({"temperature": 2.1}, "options.temperature"),
        ({"top_p": 0}, "options.top_p"),
        ({"seed": -1}, "options.seed"),
        ({"tempo": 100}, "'options.tempo' is not known"),
        ({"max_tokens": 5}, "'options.max_tokens' is not known"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(Validation) as caught:
        options(**asked)
    assert told in f"{caught.value.detail} {caught.value.remedy}"


@pytest.mark.parametrize(
    ("option", "spelled", "meant"),
    [
        ("form", "Slip-Jig", "slip jig"),
        ("form", " REEL ", "reel"),
        ("key", "f♯", "F#"),
        ("key", "bb", "Bb"),
        ("mode", "Dorian", "dorian"),
        ("instrument", "steel guitar", "steel-guitar"),
    ],
)
def test_a_name_may_be_spelled_in_other_ways(option: str, spelled: str, meant: str) -> None:
    assert options(**{option: spelled})[option] == meant


def test_the_schema_lists_what_may_be_chosen() -> None:
    schema = options_schema("music", 1)["properties"]
    assert schema["form"]["enum"] == ["any", *FORMS] and schema["instrument"]["enum"] == ["any", *INSTRUMENTS]
    assert schema["form"]["default"] == "any" and "max_tokens" not in schema


def test_the_first_variation_has_the_seed_of_the_job_and_no_two_have_the_same() -> None:
    assert variation_seeds(7, 1) == [7]
    assert variation_seeds(2**32 - 3, 4) == [2**32 - 3, 2**32 - 2, 0, 1]


@pytest.mark.parametrize(
    ("abc", "asked", "made"),
    [
        ("M:6/8\nK:G\nG2 B BGD|", {}, ("6/8", "G", "major")),
        ("K:Ador\nA2 BA|", {"form": "reel"}, ("4/4", "A", "dorian")),
        ("G2 B BGD|", {"form": "jig", "key": "G"}, ("6/8", "G", "major")),
        ("A2 B c2 d|", {"meter": "6/8", "key": "A", "mode": "minor"}, ("6/8", "A", "minor")),
        ("C D E F|", {}, ("4/4", "C", "major")),
    ],
)
def test_an_opening_phrase_fixes_metre_and_key(abc: str, asked: dict[str, Any], made: tuple[str, str, str]) -> None:
    for seed in range(20):
        plan = complete_options(options(abc=abc, **asked), seed).plan
        assert (format_meter(plan.meter), plan.tonic, plan.mode) == made and plan.opening


@pytest.mark.parametrize(
    ("abc", "asked", "told"),
    [
        ("M:6/8\nK:G\nG2 B|", {"form": "reel"}, "Tunes of the form reel in 6/8 are not supported"),
        ("K:G\nG2 B|", {"key": "D"}, "the phrase has the key G, but the option key is D"),
        ("K:Gm\nG2 B|", {"mode": "major"}, "the phrase has the mode minor"),
        ("M:3/4\nK:G\nG2 B|", {"meter": "4/4"}, "the phrase has the meter 3/4"),
        ("M:5/4\nK:G\nG2 B|", {}, "Tunes in 5/4 are not supported"),
        ("K:G\n", {}, "no note"),
        ("T:x\nK:H\nG2 B|", {}, "line 2"),
        ("K:C\n" + "C D E F|" * 12, {"bars": 4}, "longer than the tune's 4 bars"),
        ("K:C\nC, c'' C2|", {"instrument": "whistle"}, "outside the range of the instrument whistle"),
    ],
)
def test_a_phrase_that_cannot_begin_the_tune_is_refused(abc: str, asked: dict[str, Any], told: str) -> None:
    error = refusal(abc=abc, **asked)
    assert told in error.detail and error.remedy


def test_a_pickup_that_stands_beforehand_is_part_of_the_seconds() -> None:
    asked = options(abc="M:6/8\nK:D\nA|d2f|", form="jig", seconds=20, tempo_bpm=60)
    assert complete_options(asked, 1).plan.bars == 9, "ten bars would fill the seconds without the pickup"
