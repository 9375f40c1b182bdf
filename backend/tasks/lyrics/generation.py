"""Generation of lyrics with any text engine: one model request per section, repeated until the section has its lines.

Runs in the worker that holds the model and calls the `run` of its session.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

from backend.common.engine_api import Emit, EventData, RunRequest, RunResult, Session
from backend.common.seeds import offset_seed
from backend.tasks.lyrics.line_filter import LineFilter
from backend.tasks.lyrics.prompts import LyricsRequest, build_messages
from backend.tasks.lyrics.sections import REPEATED, TOKENS_PER_LINE, Section, section_labels
from backend.tasks.text.stop_sequences import StopFilter

MAX_ATTEMPTS = 4  # model requests per section; a small model may never write a usable line
MAX_REJECTED = 6  # rejected lines per response; then the model repeats itself, and gets a retry with another seed
EXTRA_TOKENS = 64  # per response, for remarks that the model writes around the lines
PROGRESS_INTERVAL_S = 1.0  # the longest time without a progress event, also for a slow model


def write_lyrics(session: Session, request: RunRequest, emit: Emit) -> RunResult:
    """Write the lyrics that `request.song` describes. A line such as `[Verse 1]` precedes each section.

    A chorus is generated once and repeated. `max_tokens` and `stop` apply to the complete text. Returns the result of
    the job. Raises the exceptions of the session's `run`.
    """
    assert request.song, "a job for lyrics has a song"
    lyrics = LyricsRequest(
        theme=request.song["theme"],
        style=request.song["style"],
        language=request.song["language"],
        sections=tuple(request.song["sections"]),
        lines_per_section=request.song["lines_per_section"],
        instructions=request.prompt,
        messages=tuple(request.messages or ()),
    )
    return _LyricsWriter(session, request, lyrics, emit).write()


class _LyricsWriter:
    def __init__(self, session: Session, request: RunRequest, song: LyricsRequest, emit: Emit) -> None:
        self._session = session
        self._request = request
        self._song = song
        self._emit = emit
        self._max_tokens: int = request.options["max_tokens"] or _default_max_tokens(song)
        self._tokens_left = self._max_tokens
        stop = request.options["stop"]
        self._stops = StopFilter([stop] if isinstance(stop, str) else stop or [])
        self._counts: Counter[str] = Counter()
        self._template: Any = None
        self._finish = ""  # the finish reason, empty while the job runs
        self._unreported_tokens = 0  # tokens generated since the last token event
        self._reported_at = 0.0
        self._attempts: dict[str, int] = {}
        self._missing_lines: dict[str, int] = {}
        self._rejected: Counter[str] = Counter()

    def write(self) -> RunResult:
        written: list[Section] = []
        for kind, label in zip(self._song.sections, section_labels(self._song.sections), strict=True):
            same = next((old for old in written if old.kind == kind and kind in REPEATED), None)
            if not same and self._tokens_left <= 0:
                self._finish = "length"
                break
            self._emit_text(f"{chr(10) * 2 if written else ''}[{label}]")
            if same:
                self._emit_text("".join(f"\n{line}" for line in same.lines))
            written.append(same or self._write_section(Section(kind, label), written))
            if self._finish:
                break
        if self._unreported_tokens:
            self._emit_text("")
        chosen = {
            "max_tokens": self._max_tokens,
            "lines": {section.label: len(section.lines) for section in written},
            "asked": self._attempts,
            "left_out": dict(self._rejected),
            "missing": self._missing_lines,
        }
        return RunResult(dict(self._counts), self._finish or "stop", self._template, chosen=chosen)

    def _write_section(self, section: Section, written: list[Section]) -> Section:
        """Request lines until the section is complete, or MAX_ATTEMPTS requests were made."""
        wanted = self._song.lines_per_section
        self._report_progress(section)
        for number in range(MAX_ATTEMPTS):
            if len(section.lines) == wanted or self._finish:
                break
            if self._tokens_left <= 0:
                self._finish = "length"
                break
            self._attempts[section.label] = number + 1
            self._request_lines(section, written)
        if len(section.lines) < wanted:
            self._missing_lines[section.label] = wanted - len(section.lines)
        return section

    def _request_lines(self, part: Section, written: list[Section]) -> None:
        missing = self._song.lines_per_section - len(part.lines)
        line_filter = LineFilter(missing, [line for section in [*written, part] for line in section.lines])
        max_tokens = min(self._tokens_left, missing * TOKENS_PER_LINE + EXTRA_TOKENS)
        section_request = replace(
            self._request,
            messages=build_messages(self._song, part, missing, written[-1] if written else None),
            prompt=None,
            seed=offset_seed(self._request.seed, sum(self._attempts.values()) - 1),
            options={**self._request.options, "max_tokens": max_tokens, "stop": None},
        )
        ended, received_tokens = False, 0  # ended: the section is complete, a stop matched, or the job was cancelled

        def on_event(event: str, data: EventData) -> bool:
            nonlocal ended, received_tokens
            if "text" in data:
                received_tokens += data["count"]
                self._unreported_tokens += data["count"]
                ended = self._accept(part, line_filter, self._stops.feed(data["text"]))
            if not ended and self._emit("poll", {}):
                self._finish, ended = "cancelled", True
            elif time.monotonic() - self._reported_at >= PROGRESS_INTERVAL_S:
                self._report_progress(part)
            return ended

        result = self._session.run(section_request, on_event)
        self._template = result.chat_template
        self._counts.update(result.counts)
        self._tokens_left -= result.counts["tokens"]
        self._unreported_tokens += result.counts["tokens"] - received_tokens  # such as an end token
        # The last line has no line break, so it is still in the filters.
        self._emit_lines(part, [*line_filter.feed(self._stops.flush()), *line_filter.flush()])
        self._rejected.update(line_filter.rejected)
        if self._stops.matched:
            self._finish = self._finish or "stop"

    def _accept(self, part: Section, line_filter: LineFilter, text: str) -> bool:
        self._emit_lines(part, list(line_filter.feed(text)))
        repeats_itself = line_filter.rejected.total() >= MAX_REJECTED
        return bool(self._finish) or line_filter.is_full or repeats_itself or self._stops.matched

    def _emit_lines(self, part: Section, lines: list[str]) -> None:
        for line in lines:
            part.lines.append(line)
            self._emit_text(f"\n{line}")
        if lines:
            self._report_progress(part)

    def _emit_text(self, text: str) -> None:
        """Emit a token event with text and the number of tokens generated since the last event."""
        count, self._unreported_tokens = self._unreported_tokens, 0
        if self._emit("token", {"text": text, "count": count}):
            self._finish = "cancelled"

    def _report_progress(self, part: Section) -> None:
        self._reported_at = time.monotonic()
        total = self._song.lines_per_section
        self._emit("progress", {"phase": part.label.lower(), "done": len(part.lines), "total": total, "unit": "lines"})


def _default_max_tokens(lyrics: LyricsRequest) -> int:
    """Return enough tokens for all generated sections, including lines that are rejected."""
    generated = [
        kind
        for place, kind in enumerate(lyrics.sections)
        if kind not in REPEATED or kind not in lyrics.sections[:place]
    ]
    return len(generated) * (lyrics.lines_per_section * TOKENS_PER_LINE + 2 * EXTRA_TOKENS)
