"""The prompt parser: which options the words set, which words are ignored and why, and that explicit options win."""

from __future__ import annotations

from typing import Any

import pytest

from backend.tasks.music.prompt_parser import NEGATED, UNKNOWN, parse_prompt
from backend.tasks.options import parse_options

CASES: list[tuple[str, dict[str, Any]]] = [
    (
        "a slow sad tune in D minor, 30 seconds",
        {"seconds": 30, "key": "D", "mode": "minor", "form": "air", "tempo_bpm": 64.0},
    ),
    (
        "A lively jig in G, 32 bars, for fiddle, solo",
        {
            "bars": 32,
            "key": "G",
            "mode": "major",
            "form": "jig",
            "tempo_bpm": 126,
            "instrument": "violin",
            "backing": "none",
        },
    ),
    (
        "two variations of a hornpipe in B flat major at 140 bpm",
        {"variations": 2, "form": "hornpipe", "key": "Bb", "mode": "major", "tempo_bpm": 140},
    ),
    ("slip jigs in E dorian with chords", {"form": "slip jig", "key": "E", "mode": "dorian", "backing": "chords"}),
    ("a reel with bass", {"form": "reel", "backing": "bass"}),
    ("a waltz on the harp", {"meter": "3/4", "instrument": "harp"}),
    ("a minor tune", {"mode": "minor"}),
    ("A minor", {"key": "A", "mode": "minor"}),
    ("in a minor", {"key": "A", "mode": "minor"}),
    ("in a minor key", {"mode": "minor"}),
    ("something happy in F#m", {"key": "F#", "mode": "minor"}),
    ("in the key of E♭", {"key": "Eb", "mode": "major"}),
    ("half a minute of 9/8", {"seconds": 30, "meter": "9/8"}),
    ("1.5 minutes", {"seconds": 90}),
    ("a minute and a half", {"seconds": 90}),
    ("one and a half minutes", {"seconds": 90}),
    ("1 minute 30 seconds", {"seconds": 90}),
    ("two minutes thirty", {"seconds": 150}),
    ("two minutes, 16 variations", {"seconds": 120, "variations": 16}),
    ("1:30", {"seconds": 90}),
    ("1m30s", {"seconds": 90}),
    ("half minute jig", {"seconds": 30, "form": "jig"}),
    ("a quarter of a minute", {"seconds": 15}),
    ("1,5 minutes", {"seconds": 90}),
    ("a hundred seconds", {"seconds": 100}),
    ("as fast as possible", {"form": "reel", "tempo_bpm": 212}),
    ("forty-five seconds, thirty-two bars", {"seconds": 45}),
    ("twenty four bars", {"bars": 24}),
    ("bars: 16, tempo = 90, seed: 7, variations 3", {"bars": 16, "tempo_bpm": 90, "seed": 7, "variations": 3}),
    ("BPM: 120", {"tempo_bpm": 120}),
    ("A jig. In D. Allegro!", {"form": "jig", "key": "D", "mode": "major", "tempo_bpm": 126}),
    ("key=Eb", {"key": "Eb", "mode": "major"}),
    ("in G#", {"key": "G#"}),
    ("a sad jig in G", {"form": "jig", "key": "G", "mode": "minor"}),
    ("c# minor", {"key": "C#", "mode": "minor"}),
    ("Ador", {"key": "A", "mode": "dorian"}),
    ("six-eight", {"meter": "6/8"}),
    ("ein Lied in fis-Moll, dann B-Dur", {"key": "F#", "mode": "minor"}),
    ("h-moll", {"key": "B", "mode": "minor"}),
    ("no bass, for flute", {"backing": "chords", "instrument": "flute"}),
    ("without chords or bass", {"backing": "none"}),
    ("-5 seconds", {}),
    ("quarter of an hour", {}),
    ("fast 6/8", {"meter": "6/8", "form": "jig", "tempo_bpm": 126}),
    (
        "thirty seconds of a march for tin whistle, seed 7",
        {"seconds": 30, "form": "march", "instrument": "whistle", "seed": 7},
    ),
    ("a slow march, 16 bars", {"form": "march", "bars": 16, "tempo_bpm": 84}),
    ("Write me a tune, please!", {}),
]


@pytest.mark.parametrize(("text", "options"), CASES, ids=[text for text, _ in CASES])
def test_words_set_options(text: str, options: dict[str, Any]) -> None:
    found = parse_prompt(text, {})
    assert found.options == options
    parse_options("music", found.options, 1)  # whatever the words set is an option


@pytest.mark.parametrize(
    ("text", "given", "words", "reason"),
    [
        ("a jig in D", {"key": "G"}, "in D", "the option key is set"),
        ("30 seconds", {"bars": 16}, "30 seconds", "the option bars is set"),
        ("16 bars", {"seconds": 30}, "16 bars", "the option seconds is set"),
        ("a slow jig", {"tempo_bpm": 100.0}, "slow", "the option tempo_bpm is set"),
        ("a slow tune at 100 bpm", {}, "slow", "already set by “100 bpm”"),
        ("a jig and a reel", {}, "reel", "already set by “jig”"),
        ("a sad tune in D major", {}, "sad", "already set by “D major”"),
        ("heavy metal in D", {}, "heavy metal", UNKNOWN),
        ("a jig in 5/4", {}, "5/4", UNKNOWN),
        ("une gigue en sol majeur", {}, "une gigue en sol majeur", UNKNOWN),
        ("a short jig", {}, "short", UNKNOWN),
        ("30 seconds or 16 bars", {}, "16 bars", "already set by “30 seconds”"),
        ("a jig with piano accompaniment", {}, "with piano accompaniment", "the instruments of the backing are fixed"),
    ],
)
def test_what_sets_nothing_is_named_with_the_reason(text: str, given: dict[str, Any], words: str, reason: str) -> None:
    assert {"words": words, "reason": reason} in parse_prompt(text, given).ignored


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a jig but not in D minor", {"form": "jig"}, "but not in D minor"),
        ("no fiddle or flute please, a reel", {"form": "reel"}, "no fiddle or flute"),
        ("a reel without tin whistle in D", {"form": "reel", "key": "D", "mode": "major"}, "without tin whistle"),
        ("not too fast jig in G", {"form": "jig", "key": "G", "mode": "major"}, "not too fast"),
        ("not a jig, a reel", {"form": "reel"}, "not a jig"),
        ("don’t make it slow", {}, "don't make it slow"),
        ("anything but a march", {}, "anything but a march"),
        ("a tune, no longer than 20 seconds", {}, "no longer than 20 seconds"),
        ("neither sad nor slow", {}, "neither sad nor slow"),
    ],
)
def test_what_a_tune_shall_not_be_is_never_taken_for_what_it_shall_be(
    text: str, options: dict[str, Any], words: str
) -> None:
    found = parse_prompt(text, {})
    assert found.options == options
    assert found.ignored == [{"words": words, "reason": NEGATED}]


def test_the_longest_wish_is_read_at_once() -> None:
    for words in ("a ", "1 ", "one hundred ", "no ", "not in ", "D minor ", "half a ", "1,000,"):
        parse_prompt((words * 5000)[:5000], {})


def test_no_word_is_passed_over_in_silence() -> None:
    found = parse_prompt("A purple jig in G for bagpipes, 20 bars, like rain; and dance!", {})
    assert found.options == {"form": "jig", "key": "G", "mode": "major", "bars": 20}
    assert [each["words"] for each in found.ignored] == ["purple", "bagpipes", "rain", "dance"]


def test_read_with_what_it_set_before_it_understands_the_same() -> None:
    for text, options in CASES:
        again = parse_prompt(text, parse_options("music", options, 1))
        assert again.options == options and again.ignored == parse_prompt(text, {}).ignored


def test_a_sentence_tells_both() -> None:
    said = parse_prompt("a purple jig in D minor", {}).summary()
    assert said == ("Understood: key D, mode minor, form jig. Ignored: “purple” (not in the vocabulary).")
    assert parse_prompt("", {}).summary() == ""
