"""The lines of lyrics: streamed text against the complete text, long lines, prompts, labels and rhyme letters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.engine_api import Message
from backend.tasks.lyrics.line_filter import MAX_LINE_CHARS, LineFilter
from backend.tasks.lyrics.prompts import LyricsRequest, build_messages
from backend.tasks.lyrics.pronunciation import split_words
from backend.tasks.lyrics.sections import KINDS, REPEATED, Section, parse_sections, section_labels
from backend.tasks.lyrics.structure import describe_lyrics

WORDS = ["moon", "sea,", "Gull", "the", "-", "1.", "**", "verse", "(", ")", "\n", "\n\n", "\r\n", "“a”", "night!", ":"]


def lines_of(pieces: list[str], wanted: int = 100, earlier: tuple[str, ...] = ()) -> tuple[list[str], LineFilter]:
    """Return the lines that the filter keeps of streamed pieces, and the filter."""
    filter_ = LineFilter(wanted, earlier)
    return [line for piece in pieces for line in filter_.feed(piece)] + list(filter_.flush()), filter_


def plain(line: str) -> str:
    """Return the letters and digits of a line in lower case, with single spaces."""
    letters = "".join(letter if letter.isalnum() else " " for letter in line.casefold())
    return " ".join(letters.split())


# The line filter


@settings(max_examples=120, derandomize=True, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=60), size=st.integers(1, 9))
def test_the_kept_lines_do_not_depend_on_how_the_text_is_cut(words: list[str], size: int) -> None:
    text = " ".join(words)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert lines_of(pieces)[0] == lines_of([text])[0]


@settings(max_examples=120, derandomize=True, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=80), wanted=st.integers(0, 5))
def test_kept_lines_are_short_distinct_and_not_more_than_wanted(words: list[str], wanted: int) -> None:
    lines, filter_ = lines_of([" ".join(words)], wanted)
    assert len(lines) == filter_.kept <= wanted and filter_.is_full == (filter_.kept == wanted)
    assert all(0 < len(line) <= MAX_LINE_CHARS and line == line.strip() for line in lines)
    assert len({plain(line) for line in lines}) == len(lines)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(words=st.lists(st.sampled_from(["moonlight", "sea,", "a", "gull;", "nightingale"]), min_size=1, max_size=60))
def test_a_long_line_is_cut_between_words_without_losing_any(words: list[str]) -> None:
    numbered = [f"{word}{number}" for number, word in enumerate(words)]  # so that no part repeats another
    lines, _ = lines_of([" ".join(numbered)])
    assert " ".join(lines).split() == numbered


def test_a_long_line_is_cut_into_the_fewest_parts_of_about_equal_length() -> None:
    text = " ".join(f"w{number:02}" for number in range(25))  # 99 characters, no pause
    lines, _ = lines_of([text])
    assert [len(line) for line in lines] == [51, 47]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[Chorus]\n", "heading"),
        ("(softly)\n", "heading"),
        ("((softly) and slowly)\n", "heading"),
        ("Verse 2:\n", "heading"),
        ("the second verse\nThe Chorus\n", "heading"),
        ("Here is your song:\n", "heading"),
        ("Certainly, a song for you:\n", "heading"),
        ("The Moon!\n", "repeated"),
    ],
)
def test_a_rejected_line_is_counted_by_its_reason(text: str, reason: str) -> None:
    lines, filter_ = lines_of([text], earlier=("the moon",))
    assert filter_.rejected[reason] == 1 and len(lines) == text.count("\n") - 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("> 3. *The tide*", "The tide"),
        ("__The__ **tide**", "The tide"),
        ("Chorus: The tide", "The tide"),
        ("Line 3 (soft): The tide", "The tide"),
        ("«The tide»", "The tide"),
        ("„The tide“", "The tide"),
        ('"The tide', '"The tide'),
        ("Here comes the tide", "Here comes the tide"),
        ("1999 was a year", "1999 was a year"),
        ("The   tide\tturns", "The tide turns"),
        ("(The tide) turns (again)", "(The tide) turns (again)"),
        ("[La] la [la]", "[La] la [la]"),
    ],
)
def test_marks_around_a_line_are_removed_and_the_line_stays(text: str, line: str) -> None:
    assert lines_of([text])[0] == [line]


def test_a_full_filter_keeps_nothing_more() -> None:
    filter_ = LineFilter(1, ())
    assert list(filter_.feed("one\ntwo\nthr")) == ["one"]
    assert filter_.is_full and list(filter_.feed("ee\n")) == [] and list(filter_.flush()) == []


# Sections


@settings(max_examples=60, derandomize=True, deadline=None)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=16))
def test_labels_are_distinct_except_for_repeated_kinds_and_are_parsed_back(kinds: list[str]) -> None:
    labels = section_labels(kinds)
    single = [label for kind, label in zip(kinds, labels, strict=True) if kind not in REPEATED]
    assert len(set(single)) == len(single)
    text = "\n\n".join(f"[{label}]\nline of {label}" for label in labels)
    assert parse_sections(text) == [
        Section(kind, label, [f"line of {label}"]) for kind, label in zip(kinds, labels, strict=True)
    ]


@pytest.mark.parametrize(
    "text", ["line before any label", "[Solo]\nx", "[verse]\nx", "[Verse 1] x", "[Verse one]\nx", ""]
)
def test_lines_without_a_label_of_ours_belong_to_no_section(text: str) -> None:
    assert parse_sections(text) == []


# Prompts


def request(kind: str, label: str, count: int, **values: str) -> str:
    """Return the message that asks for the first lines of a section."""
    song = LyricsRequest(values.get("theme"), values.get("style"), values.get("language", "English"), (kind,), count)
    (message,) = build_messages(song, Section(kind, label), count, None)
    return str(message["content"])


@pytest.mark.parametrize(
    ("label", "count", "words"),
    [
        ("Verse 1", 4, "the first verse of a song. Four short lines that rhyme."),
        ("Verse 6", 12, "the sixth verse of a song. Twelve short lines that rhyme."),
        ("Verse 7", 13, "the verse of a song. 13 short lines that rhyme."),
        ("Verse", 1, "the verse of a song. One short line that rhyme."),
    ],
)
def test_ordinals_and_counts_are_words_as_far_as_there_are_words(label: str, count: int, words: str) -> None:
    assert request("verse", label, count).endswith(words)


def test_a_language_is_named_unless_it_is_english() -> None:
    assert " in German." in request("verse", "Verse 1", 2, language="German")
    assert " in " not in request("verse", "Verse 1", 2, language="EN")


def test_missing_lines_are_requested_after_the_lines_that_exist() -> None:
    song = LyricsRequest("rain", None, "English", ("verse",), 4, instructions="No adjectives.")
    messages = build_messages(song, Section("verse", "Verse 1", ["a", "b"]), 2, Section("chorus", "Chorus"))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert str(messages[0]["content"]).endswith("Two short lines that rhyme. No adjectives.")
    assert messages[1]["content"] == "a\nb"
    assert messages[2]["content"] == "Go on: two more short lines of this verse, and nothing else."


def test_a_conversation_that_ends_with_an_assistant_is_continued_and_not_joined() -> None:
    history: tuple[Message, ...] = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    song = LyricsRequest(None, None, "English", ("verse",), 1, messages=history)
    messages = build_messages(song, Section("verse", "Verse 1"), 1, None)
    assert messages[:2] == list(history) and len(messages) == 3


# Structure


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Rock-'n'-roll, it’s 9 o'clock", ["rock", "'n", "roll", "it's", "9", "o'clock"]),
        ("singin’ ‘til dawn", ["singin'", "'til", "dawn"]),
        ("ÉTÉ…", ["été"]),
        ("— !", []),
    ],
)
def test_a_line_is_split_into_words_with_their_apostrophes(line: str, words: list[str]) -> None:
    assert split_words(line) == words


def test_lines_that_rhyme_share_a_letter_and_an_unknown_word_has_none() -> None:
    song = "[Verse 1]\nUnder the moon\nover the sea\nall in June\nxqzzt\nyou and me\n\n[Chorus]\na cat\n"
    first, second = describe_lyrics(song, "English")["sections"]
    assert first["rhyme_scheme"] == "ABA?B" and [line["rhyme"] for line in first["lines"]][3] is None
    assert second["rhyme_scheme"] == "A", "each section starts with its own A"
    assert first["lines"][0] == {"text": "Under the moon", "syllables": 4, "rhyme": "A"}
    assert first["lines"][3]["syllables"] is None


def test_in_another_language_lines_have_neither_syllables_nor_rhymes() -> None:
    described = describe_lyrics("[Verse 1]\nDer Mond", "German")
    assert described["sounds"] is None and described["sections"][0]["rhyme_scheme"] is None
    assert described["sections"][0]["lines"] == [{"text": "Der Mond", "syllables": None, "rhyme": None}]
