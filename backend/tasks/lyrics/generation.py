"""A song by any text engine: each section is asked for by itself, and its lines are kept until there are enough.

Runs in the child that holds the model, around the `run` of its session.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

from backend.common.engine_api import Emit, RunRequest, RunResult, Session
from backend.common.seeds import offset_seed
from backend.tasks.lyrics.line_filter import Keeper
from backend.tasks.lyrics.prompts import Song, messages
from backend.tasks.lyrics.sections import REPEATED, TOKENS_PER_LINE, Section, labels
from backend.tasks.text.stop_sequences import Stops

MOST_ASKS = 4  # for one section; a small model can go on saying what is no line for ever
MOST_LEFT_OUT = 6  # lines of one answer; after that it goes in circles, and is asked again with another seed
ROOM_TOKENS = 64  # beside the lines, for what a model says before and after them
TOLD_S = 1.0  # as often as this the server hears that the work goes on, however slow the model is


def write(session: Session, request: RunRequest, emit: Emit) -> RunResult:
    """Writes `request.song`; its text has a line naming each section, and `[Chorus]` has the same words each time.

    `max_tokens` and `stop` are of the whole song. Raises what the session's `run` raises.
    """
    assert request.song, "a job for lyrics has a song"
    wished = {**request.song, "sections": tuple(request.song["sections"])}
    song = Song(**wished, wishes=request.prompt, messages=tuple(request.messages or ()))
    return _Writing(session, request, song, emit).write()


class _Writing:
    def __init__(self, session: Session, request: RunRequest, song: Song, emit: Emit) -> None:
        self._session = session
        self._request = request
        self._song = song
        self._emit = emit
        self._most_tokens: int = request.options["max_tokens"] or _enough(song)
        self._tokens_left = self._most_tokens
        stop = request.options["stop"]
        self._stops = Stops([stop] if isinstance(stop, str) else stop or [])
        self._counts: Counter[str] = Counter()
        self._template: Any = None
        self._finish = ""  # how the song ended, once it did
        self._unsaid = 0  # tokens that were generated since something was shown
        self._told_at = 0.0
        self._asks: dict[str, int] = {}
        self._short: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()

    def write(self) -> RunResult:
        written: list[Section] = []
        for kind, label in zip(self._song.sections, labels(self._song.sections), strict=True):
            same = next((old for old in written if old.kind == kind and kind in REPEATED), None)
            if not same and self._tokens_left <= 0:
                self._finish = "length"
                break
            self._say(f"{chr(10) * 2 if written else ''}[{label}]")
            if same:
                self._say("".join(f"\n{line}" for line in same.lines))
            written.append(same or self._section(Section(kind, label), written))
            if self._finish:
                break
        if self._unsaid:
            self._say("")
        chosen = {
            "max_tokens": self._most_tokens,
            "lines": {section.label: len(section.lines) for section in written},
            "asked": self._asks,
            "left_out": dict(self._left_out),
            "missing": self._short,
        }
        return RunResult(dict(self._counts), self._finish or "stop", self._template, chosen=chosen)

    def _section(self, part: Section, written: list[Section]) -> Section:
        """Asks for the section until it has its lines, or for the last time."""
        wanted = self._song.lines_per_section
        self._progress(part)
        for number in range(MOST_ASKS):
            if len(part.lines) == wanted or self._finish:
                break
            if self._tokens_left <= 0:
                self._finish = "length"
                break
            self._asks[part.label] = number + 1
            self._ask(part, written)
        if len(part.lines) < wanted:
            self._short[part.label] = wanted - len(part.lines)
        return part

    def _ask(self, part: Section, written: list[Section]) -> None:
        missing = self._song.lines_per_section - len(part.lines)
        keeper = Keeper(missing, [line for section in [*written, part] for line in section.lines])
        room = min(self._tokens_left, missing * TOKENS_PER_LINE + ROOM_TOKENS)
        asked = replace(
            self._request,
            messages=messages(self._song, part, missing, written[-1] if written else None),
            prompt=None,
            seed=offset_seed(self._request.seed, sum(self._asks.values()) - 1),
            options={**self._request.options, "max_tokens": room, "stop": None},
        )
        ended, heard = False, 0  # ended by us: the lines are there, a stop was met, or the job was cancelled

        def hear(event: str, data: dict[str, Any]) -> bool:
            nonlocal ended, heard
            if event == "token":
                heard += data["count"]
                self._unsaid += data["count"]
                ended = self._keep(part, keeper, self._stops.feed(data["text"]))
            if not ended and self._emit("poll", {}):
                self._finish, ended = "cancelled", True
            elif time.monotonic() - self._told_at >= TOLD_S:
                self._progress(part)
            return ended

        result = self._session.run(asked, hear)
        self._template = result.chat_template
        self._counts.update(result.counts)
        self._tokens_left -= result.counts["tokens"]
        self._unsaid += result.counts["tokens"] - heard  # such as the one that ends a text
        self._show(part, [*keeper.feed(self._stops.rest()), *keeper.rest()])  # its last line has no end
        self._left_out.update(keeper.left_out)
        if self._stops.found:
            self._finish = self._finish or "stop"

    def _keep(self, part: Section, keeper: Keeper, text: str) -> bool:
        self._show(part, list(keeper.feed(text)))
        circles = keeper.left_out.total() >= MOST_LEFT_OUT
        return bool(self._finish) or keeper.full or circles or self._stops.found

    def _show(self, part: Section, lines: list[str]) -> None:
        for line in lines:
            part.lines.append(line)
            self._say(f"\n{line}")
        if lines:
            self._progress(part)

    def _say(self, text: str) -> None:
        """Shows text, and counts the tokens that were generated since the last."""
        count, self._unsaid = self._unsaid, 0
        if self._emit("token", {"text": text, "count": count}):
            self._finish = "cancelled"

    def _progress(self, part: Section) -> None:
        self._told_at = time.monotonic()
        total = self._song.lines_per_section
        self._emit("progress", {"phase": part.label.lower(), "done": len(part.lines), "total": total, "unit": "lines"})


def _enough(song: Song) -> int:
    """Tokens for all the sections that are written, with room for what is left out of them."""
    written = [
        kind for place, kind in enumerate(song.sections) if kind not in REPEATED or kind not in song.sections[:place]
    ]
    return len(written) * (song.lines_per_section * TOKENS_PER_LINE + 2 * ROOM_TOKENS)
