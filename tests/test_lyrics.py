"""Lyrics without a model: the line filter, prompts, generation section by section, syllables and rhymes."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from typing import Any

import pytest

from backend.common.engine_api import Message
from backend.common.errors import Validation
from backend.common.types import Placement
from backend.engines import Emit, RunRequest, RunResult, Session
from backend.tasks.lyrics.generation import MAX_ATTEMPTS, write_lyrics
from backend.tasks.lyrics.line_filter import MAX_LINE_CHARS, LineFilter
from backend.tasks.lyrics.make_english_data import build_table
from backend.tasks.lyrics.prompts import LyricsRequest, build_messages
from backend.tasks.lyrics.pronunciation import FILE, EnglishDictionary
from backend.tasks.lyrics.sections import Section, parse_sections, section_labels
from backend.tasks.lyrics.structure import describe_lyrics
from backend.tasks.options import fill_defaults, options_schema, parse_options
from backend.tasks.options.lyrics import split_song_options


def kept(text: str, wanted: int = 4, earlier: tuple[str, ...] = ()) -> list[str]:
    keeper = LineFilter(wanted, earlier)
    return [line for letter in text for line in keeper.feed(letter)] + list(keeper.flush())


# Lines


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("Sure! Here is a verse:\n\n[Verse 1]\nThe tide goes out\n", ["The tide goes out"]),
        ("**Verse 2:**\nVerse 2: The tide\n(Chorus)\nChorus of gulls above\n", ["The tide", "Chorus of gulls above"]),
        ("1. The tide\n2) The moon\n- The gulls\n> The end\n", ["The tide", "The moon", "The gulls", "The end"]),
        ('"The tide goes out"\n“Come home,” she said\n', ["The tide goes out", "“Come home,” she said"]),
        ("The tide\nTHE TIDE!\nThe moon\n", ["The tide", "The moon"]),
        ("Bridge over water\nPart of me\n", ["Bridge over water", "Part of me"]),
        ("a\r\nb\n\n\nc", ["a", "b", "c"]),
        ("one\ntwo\nthree\nfour\nfive\n", ["one", "two", "three", "four"]),
        ("...\n---\n***\n\n", []),
    ],
)  # fmt: skip
def test_lines_of_the_song_are_kept_and_no_others(said: str, lines: list[str]) -> None:
    assert kept(said) == lines


def test_prose_is_broken_where_it_pauses() -> None:
    said = (
        "I walked along the shore at night, the moon was high and the wind was cold; I thought of you and of the sea."
    )
    lines = kept(said)
    assert all(len(line) <= MAX_LINE_CHARS for line in lines) and " ".join(lines) == said
    assert lines[0] == "I walked along the shore at night,"
    assert kept("x" * (MAX_LINE_CHARS + 1)) == ["x" * MAX_LINE_CHARS, "x"]


def test_a_line_that_was_sung_is_not_sung_again_in_another_section() -> None:
    assert kept("The tide.\nThe moon\n", earlier=("the tide",)) == ["The moon"]


# Sections


def test_verses_are_numbered_and_a_chorus_is_not() -> None:
    kinds = ["intro", "verse", "pre-chorus", "chorus", "verse", "chorus", "bridge", "bridge"]
    assert section_labels(kinds) == [
        "Intro",
        "Verse 1",
        "Pre-chorus",
        "Chorus",
        "Verse 2",
        "Chorus",
        "Bridge",
        "Bridge 2",
    ]


def test_a_text_is_read_back_into_its_sections() -> None:
    sections = [
        Section("verse", "Verse 1", ["a", "b"]),
        Section("pre-chorus", "Pre-chorus", ["c"]),
        Section("bridge", "Bridge 2"),
    ]
    assert parse_sections("[Verse 1]\na\nb\n\n[Pre-chorus]\nc\n\n[Bridge 2]") == sections


def test_a_caller_s_conversation_leads_to_ours_in_turns() -> None:
    system: Message = {"role": "system", "content": "Be brief."}
    user: Message = {"role": "user", "content": "It is for Ann."}
    song = LyricsRequest("the sea", "shanty", "German", ("verse",), 2, messages=(system, user))
    found = build_messages(song, Section("verse", "Verse 2"), 2, Section("chorus", "Chorus", ["La"]))
    assert [turn["role"] for turn in found] == ["system", "user", "assistant", "user"]
    assert str(found[1]["content"]).startswith("It is for Ann.\n\nYou write songs") and found[2]["content"] == "La"
    assert "the second verse of a shanty song about the sea in German. Two short lines" in str(found[3]["content"])


@pytest.mark.parametrize(
    ("style", "named"), [(None, "a song"), ("blues", "a blues song"), ("folk song", "a folk song")]
)
def test_a_song_is_called_a_song_once(style: str | None, named: str) -> None:
    said = build_messages(LyricsRequest(None, style, "English", ("chorus",), 1), Section("chorus", "Chorus"), 1, None)[
        0
    ]["content"]
    assert f"Write the chorus of {named}. One short line that rhyme" in str(said)


# A song by a session with scripted responses


class Parrot(Session):
    placement = Placement(None)
    threads: int | None = None
    versions: dict[str, str] = {}

    def __init__(self, *says: str) -> None:
        self.says = list(says)
        self.asked: list[RunRequest] = []

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Emit each letter as a token. Like the engines, count one more for the end of a text."""
        self.asked.append(request)
        said = self.says.pop(0) if self.says else "\n"
        most = request.options["max_tokens"]
        for count, letter in enumerate(said[:most], 1):
            if emit("token", {"text": letter, "count": 1}):
                return RunResult({"tokens": count, "prompt_tokens": 10}, "cancelled", "model")
        ended = len(said) < most
        counts = {"tokens": min(len(said), most) + ended, "prompt_tokens": 10}
        return RunResult(counts, "stop" if ended else "length", "model")


def sung(parrot: Parrot, cancel_at: str = "\0", **options: Any) -> tuple[str, RunResult, list[dict[str, Any]]]:
    whole = parse_options(
        "lyrics", {"sections": ["verse", "chorus", "verse", "chorus"], "lines_per_section": 2, **options}
    )
    song, sampled = split_song_options(whole)
    request = RunRequest(None, None, fill_defaults("text", sampled), 7, False, song=song)
    events: list[dict[str, Any]] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        events.append({"event": event, **data})
        return any(cancel_at in seen.get("text", "") for seen in events)

    result = write_lyrics(parrot, request, emit)
    tokens = [event for event in events if event["event"] == "token"]
    assert sum(event["count"] for event in tokens) == result.counts["tokens"]
    return "".join(event["text"] for event in tokens), result, events


def test_a_song_is_written_section_by_section() -> None:
    parrot = Parrot("The tide\nThe moon\nthe rest", "La la\nLo lo\n", "A gull\nThe tide\n", "A sail")
    text, result, events = sung(parrot, theme="the sea")
    assert text == (
        "[Verse 1]\nThe tide\nThe moon\n\n[Chorus]\nLa la\nLo lo\n\n[Verse 2]\nA gull\nA sail\n\n[Chorus]\nLa la\nLo lo"
    )
    assert (result.finish_reason, result.chat_template) == ("stop", "model")
    assert result.counts["prompt_tokens"] == 40
    assert result.chosen["asked"] == {"Verse 1": 1, "Chorus": 1, "Verse 2": 2} and not result.chosen["missing"]
    assert result.chosen["left_out"] == {"repeated": 1}
    assert [request.seed for request in parrot.asked] == [7, 8, 9, 10]
    assert "Go on: one more short line" in str((parrot.asked[3].messages or [])[-1]["content"])
    phases = [(event["phase"], event["done"]) for event in events if event["event"] == "progress"]
    assert list(dict.fromkeys(phase for phase, _ in phases)) == ["verse 1", "chorus", "verse 2"]
    assert ("verse 2", 2) in phases


def test_a_model_that_has_nothing_to_say_is_asked_so_often_and_it_is_told() -> None:
    text, result, _ = sung(Parrot(), sections=["verse"])
    assert text == "[Verse 1]"
    assert (result.chosen["asked"], result.chosen["missing"]) == ({"Verse 1": MAX_ATTEMPTS}, {"Verse 1": 2})


def test_a_model_that_goes_in_circles_is_stopped_and_asked_anew() -> None:
    parrot = Parrot("The tide\n" * 100, "The moon\n")
    text, result, _ = sung(parrot, sections=["verse"])
    assert text == "[Verse 1]\nThe tide\nThe moon" and result.counts["tokens"] < 100


def test_max_tokens_is_of_the_whole_song() -> None:
    text, result, _ = sung(Parrot("The tide\nThe moon\n", "La la\n" * 9), max_tokens=24)
    assert (text, result.finish_reason) == ("[Verse 1]\nThe tide\nThe moon\n\n[Chorus]\nLa la", "length")
    assert result.counts["tokens"] == 24
    exact, result, _ = sung(Parrot("The tide\nThe moon\n"), sections=["verse"], max_tokens=18)
    assert (exact, result.finish_reason) == ("[Verse 1]\nThe tide\nThe moon", "stop")


def test_a_stop_ends_the_song_and_is_not_shown() -> None:
    text, result, _ = sung(Parrot("The tide\nThe END of it\n"), stop="END")
    assert (text, result.finish_reason) == ("[Verse 1]\nThe tide\nThe", "stop")
    held, _, _ = sung(Parrot("The tide\nThe moon\n", "La\nLo\n", "A\nB\n"), stop="\n\n\n")
    assert held.startswith("[Verse 1]\nThe tide\nThe moon\n\n[Chorus]\nLa\nLo")


def test_a_cancel_keeps_what_was_written() -> None:
    parrot = Parrot("The tide\nThe moon\n", "La la\n")
    text, result, _ = sung(parrot, cancel_at="La")
    assert (text, result.finish_reason) == ("[Verse 1]\nThe tide\nThe moon\n\n[Chorus]\nLa la", "cancelled")
    assert len(parrot.asked) == 2


# Options


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sections": ["verse", "solo"]}, "'solo'"), ({"sections": []}, "sections"),
        ({"sections": ["verse"] * 17}, "sections"),
        ({"lines_per_section": 0}, "lines_per_section"), ({"theme": "  "}, "theme"), ({"theme": "x" * 501}, "theme"),
        ({"raw": True}, "raw"), ({"tools": []}, "tools"), ({"logprobs": 1}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"bars": 4}, "bars"),
    ],
)  # fmt: skip
def test_options_that_are_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(Validation, match=word):
        parse_options("lyrics", options)


def test_options_and_their_schema() -> None:
    parsed = parse_options("lyrics", {"sections": ["Verse", "Pre Chorus"], "style": " blues "}, 99)
    assert (parsed["sections"], parsed["style"], parsed["max_tokens"]) == (["verse", "pre-chorus"], "blues", None)
    properties = options_schema("lyrics", 99)["properties"]
    assert list(properties)[-5:] == ["theme", "style", "language", "sections", "lines_per_section"]
    assert properties["max_tokens"]["default"] is None


# Sounds


@pytest.mark.parametrize(
    ("line", "syllables"),
    [
        ("The river runs down to the sea", 8), ("Moonlight, well-known", 4), ("I'm singin' tonight", 5),
        ("Don’t go", 2), ("qwzx sea", None), ("…", None),
    ],
)  # fmt: skip
def test_syllables_by_the_dictionary(line: str, syllables: int | None) -> None:
    assert EnglishDictionary().count_syllables(line) == syllables


@pytest.mark.parametrize(
    ("lines", "scheme"),
    [
        (["by the sea", "in the night", "you and me", "by the light"], "ABAB"),
        (["the moonlight", "a star", "tonight", "afar!"], "ABAB"),
        (["a river", "a qwzx", "deliver", "love", "enough"], "A?ABC"),
        (["we read", "a bed", "a reed"], "AAA"),  # "read" has two pronunciations
    ],
)
def test_rhymes_by_the_dictionary(lines: list[str], scheme: str) -> None:
    found = describe_lyrics("[Verse 1]\n" + "\n".join(lines), "en")["sections"][0]
    assert found["rhyme_scheme"] == scheme
    assert [line["rhyme"] for line in found["lines"]] == [None if letter == "?" else letter for letter in scheme]


def test_of_other_languages_nothing_is_guessed() -> None:
    found = describe_lyrics("[Verse 1]\nDas Meer", "German")
    assert found == {
        "language": "German", "sounds": None,
        "sections": [{"kind": "verse", "label": "Verse 1", "rhyme_scheme": None,
                      "lines": [{"text": "Das Meer", "syllables": None, "rhyme": None}]}],
    }  # fmt: skip


def test_the_table_of_sounds_is_made_of_the_dictionary_s_lines() -> None:
    made = build_table(
        ["sea S IY1", "read R EH1 D", "read(2) R IY1 D # verb", "moonlight M UW1 N L AY2 T", "the DH AH0"]
    )
    assert made == b"moonlight\t2 AY T\nread\t1 EH D\t1 IY D\nsea\t1 IY\nthe\t1 AH\n"
    shipped = lzma.decompress(FILE.read_bytes())
    assert b"\nmoonlight\t2 AY T\n" in shipped and shipped.count(b"\n") > 120_000
