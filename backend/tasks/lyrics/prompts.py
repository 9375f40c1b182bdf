"""The prompts that request the lines of a section: the song's description and the text written so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.common.engine_api import Message
from backend.tasks.lyrics.sections import Section

_NUMBER_WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class LyricsRequest:
    """The song to write. `sections` are kinds in order; `instructions` and `messages` are the client's text."""

    theme: str | None
    style: str | None
    language: str
    sections: tuple[str, ...]
    lines_per_section: int
    instructions: str | None = None
    messages: tuple[Message, ...] = ()


def build_messages(song: LyricsRequest, part: Section, missing: int, before: Section | None) -> list[Message]:
    """Return the chat messages that request `missing` more lines of the section `part`.

    The section `before` is included as an assistant message. More of the song would fill the context and lead a small
    model to copy it. All instructions are user messages, since some templates reject system messages.
    """
    turns: list[Message] = []
    if before and before.lines:
        turns += _exchange(_section_request(song, before.kind, before.label, len(before.lines)), before.lines)
    if part.lines:
        turns += _exchange(_section_request(song, part.kind, part.label, len(part.lines)), part.lines)
        turns.append(_user_message(f"Go on: {_line_count(missing, more=True)} of this {part.kind}, and nothing else."))
    else:
        turns.append(_user_message(_section_request(song, part.kind, part.label, missing)))
    return _append_turns(song.messages, turns)


def _section_request(song: LyricsRequest, kind: str, label: str, lines: int) -> str:
    number = label.rpartition(" ")[2]
    ordinal = f"{_ORDINALS[int(number) - 1]} " if number.isdecimal() and int(number) <= len(_ORDINALS) else ""
    about = f" about {song.theme}" if song.theme else ""
    style = song.style or "song"
    named = style if style.casefold().endswith("song") else f"{style} song"
    sentences = [
        "You write songs, and answer with the lines of the song alone.",
        f"Write the {ordinal}{kind} of a {named}{about}"
        f"{'' if song.language.casefold() in ('english', 'en') else f' in {song.language}'}.",
        f"{_line_count(lines).capitalize()} that rhyme.",
        song.instructions or "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _line_count(count: int, more: bool = False) -> str:
    number = _NUMBER_WORDS[count] if count < len(_NUMBER_WORDS) else str(count)
    return f"{number} {'more ' if more else ''}short line{'' if count == 1 else 's'}"


def _user_message(content: str) -> Message:
    return {"role": "user", "content": content}


def _exchange(request: str, lines: Sequence[str]) -> list[Message]:
    return [_user_message(request), {"role": "assistant", "content": "\n".join(lines)}]


def _append_turns(history: Sequence[Message], turns: list[Message]) -> list[Message]:
    """Append turns to the client's messages. Join two user messages in a row: templates need alternating roles."""
    if history and history[-1]["role"] == "user":
        joined = _user_message(f"{history[-1]['content']}\n\n{turns[0]['content']}")
        return [*history[:-1], joined, *turns[1:]]
    return [*history, *turns]
