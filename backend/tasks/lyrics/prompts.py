"""What is said to the model for each section: the song in words, and what stands of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.tasks.lyrics.sections import Section

_FEW = "no one two three four five six seven eight nine ten eleven twelve".split()
_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class Song:
    """What is wished for. `sections` are kinds in their order; `wishes` and `messages` are the caller's own words."""

    theme: str | None
    style: str | None
    language: str
    sections: tuple[str, ...]
    lines_per_section: int
    wishes: str | None = None
    messages: tuple[dict[str, Any], ...] = ()


def messages(song: Song, part: Section, missing: int, before: Section | None) -> list[dict[str, Any]]:
    """The conversation that asks for `missing` lines of a section, of which `part` has those that are there.

    The section before it is told as the model's own answer: more of a song would lead a small model to copy it, and
    fill the context. Everything of ours is said by the user, since some templates take no system message.
    """
    turns: list[dict[str, Any]] = []
    if before and before.lines:
        turns += _turn(_wish(song, before.kind, before.label, len(before.lines)), before.lines)
    if part.lines:
        turns += _turn(_wish(song, part.kind, part.label, len(part.lines)), part.lines)
        turns.append(_said(f"Go on: {_lines(missing, more=True)} of this {part.kind}, and nothing else."))
    else:
        turns.append(_said(_wish(song, part.kind, part.label, missing)))
    return _after(song.messages, turns)


def _wish(song: Song, kind: str, label: str, lines: int) -> str:
    number = label.rpartition(" ")[2]
    place = f"{_PLACES[int(number) - 1]} " if number.isdecimal() and int(number) <= len(_PLACES) else ""
    about = f" about {song.theme}" if song.theme else ""
    style = song.style or "song"
    named = style if style.casefold().endswith("song") else f"{style} song"
    sentences = [
        "You write songs, and answer with the lines of the song alone.",
        f"Write the {place}{kind} of a {named}{about}"
        f"{'' if song.language.casefold() in ('english', 'en') else f' in {song.language}'}.",
        f"{_lines(lines).capitalize()} that rhyme.",
        song.wishes or "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _lines(count: int, more: bool = False) -> str:
    number = _FEW[count] if count < len(_FEW) else str(count)
    return f"{number} {'more ' if more else ''}short line{'' if count == 1 else 's'}"


def _said(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def _turn(words: str, lines: Sequence[str]) -> list[dict[str, Any]]:
    return [_said(words), {"role": "assistant", "content": "\n".join(lines)}]


def _after(given: Sequence[dict[str, Any]], turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Templates want turns of user and assistant one after the other: two of the user become one."""
    if given and given[-1]["role"] == "user":
        joined = _said(f"{given[-1]['content']}\n\n{turns[0]['content']}")
        return [*given[:-1], joined, *turns[1:]]
    return [*given, *turns]
