"""Several texts in one loaded model: a step makes the next token of each, and newcomers join at any step.

How a step is computed is the matter of `Rows`: a cache with a row for each text, read only up to that text's length, so
no text sees what another left there. A newcomer's prompt is read in chunks; between two of them the others go on.
Short prompts that wait together are read together, as models take many tokens at once faster than one by one.

Tokens are told in handfuls, of all texts at the same moment. On a device that works by itself a step is begun before
the tokens of the one before it are looked at: what then turns out to have ended is computed once for nothing, and the
device never waits for the host.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from backend.common.error_patterns import require_finite
from backend.common.token_batching import flush_interval_s

_LATER_S = 0.01  # than a worker sends what waits, so that no handful waits twice


@dataclass(eq=False)
class Text:
    """One request in the decoder.

    `news` gets tokens as lists of `Step`, an empty one where it was stopped, how far the prompt is while some of it is
    left, or the error that ended all. `limit` is how many tokens are made at most, `ends` the tokens that end it.
    `stopped` is asked before each step, from the decoder's thread.
    """

    prompt: list[int]
    options: Mapping[str, Any]
    seed: int
    limit: int
    ends: frozenset[int]
    stopped: Callable[[], bool] = lambda: False
    news: SimpleQueue[list[Step] | int | Exception] = field(default_factory=SimpleQueue)
    cancelled: bool = False
    length: int = 0  # tokens in the cache
    made: int = 0
    last: int = 0
    begun: int = 0  # steps that were begun and not yet looked at
    left: bool = False
    ways: Counter[str] = field(default_factory=Counter)  # how its steps were computed, where a model has several ways
    untold: list[Step] = field(default_factory=list)

    def tell(self) -> None:
        """Puts what was kept back into the news."""
        if self.untold:
            self.news.put(self.untold)
            self.untold = []


@dataclass(frozen=True)
class Drawn:
    """A token that was chosen. `highest` is the highest logit, `likeliest` are (id, log probability), if asked for."""

    token: int
    highest: float
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Step:
    """One token of a text; `finish` is `stop` or `length` with the last one."""

    drawn: Drawn
    finish: str | None = None


class Rows(Protocol):
    """A model with a cache of several rows. Called from one thread alone.

    It may have `start(texts)`, which is `write` in two halves: it begins the step and gives what waits for its tokens.
    Another may be begun before that, of texts that have not moved meanwhile.
    """

    chunk_tokens: int  # of a prompt at once: a cancel is heard between chunks, and others get a token between them
    together_tokens: int  # of several prompts at once, each counted as long as the longest; 0: only one by one

    def begin(self, row: int, text: Text) -> None:
        """Gives a row to a text."""
        ...

    def read(self, row: int, text: Text, ids: list[int], last: bool) -> Drawn | None:
        """Puts tokens of the prompt behind the `text.length` in its row; after the `last` ones draws a token."""
        ...

    def read_together(self, first: int, texts: Sequence[Text]) -> list[Drawn]:
        """Puts the whole prompts of texts into rows `first` and on, and draws a token for each."""
        ...

    def write(self, texts: Sequence[Text]) -> list[Drawn]:
        """Puts each text's last token behind what its row holds, rows 0 and on, and draws the next ones."""
        ...

    def move(self, source: int, target: int, length: int) -> None:
        """A text moves to another row, `length` tokens of it."""
        ...


class Decoder:
    """The loop over the rows, in a thread of its own."""

    def __init__(self, model: Rows, rows: int) -> None:
        self._model = model
        self._start: Callable[[Sequence[Text]], Callable[[], list[Drawn]]] | None = getattr(model, "start", None)
        self._begun: tuple[list[Text], Callable[[], list[Drawn]]] | None = None
        self._rows: list[Text] = []  # in the order of the cache's rows: those that write, then the one that reads in
        self._reading: Text | None = None
        self._waiting: deque[Text] = deque()
        self._limit = rows
        self._told_at = 0.0
        self._wake = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def add(self, text: Text) -> None:
        """Takes a text on; its news come from now on."""
        with self._wake:
            self._waiting.append(text)
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._rows):
                    self._wake.wait()
            try:
                self._step()
                self._tell()
            except Exception as error:  # noqa: BLE001 (whatever the library raises ends these jobs, not the process)
                for text in [*self._rows, *self._waiting]:
                    text.tell()
                    text.news.put(error)
                self._rows, self._reading, self._begun = [], None, None
                self._waiting.clear()

    def _step(self) -> None:
        for text in [text for text in self._rows if text.cancelled or text.stopped()]:
            text.news.put([])
            self._leave(text)
        if self._reading is None:
            newcomers = self._newcomers()
            if len(newcomers) > 1:
                self._read_together(newcomers)
            elif newcomers:
                self._reading = newcomers[0]
        if self._reading:
            self._read_chunk(self._reading)
        writing = self._rows[: -1 if self._reading else None]
        before, self._begun = self._begun, self._begin(writing)
        if before:
            self._end(*before)
        if self._begun and self._start is None:
            begun, self._begun = self._begun, None
            self._end(*begun)

    def _begin(self, texts: list[Text]) -> tuple[list[Text], Callable[[], list[Drawn]]] | None:
        """Begins a step of these texts, unless all of them end with the one that was begun before."""
        if all(text.made + text.begun >= text.limit for text in texts):
            return None
        if self._start:
            wait = self._start(texts)
        else:
            drawn = self._model.write(texts)
            wait = lambda: drawn  # noqa: E731
        for text in texts:  # all of them before any leaves: its row is then filled with another's
            text.length += 1
            text.begun += 1
        return texts, wait

    def _end(self, texts: list[Text], wait: Callable[[], list[Drawn]]) -> None:
        """Takes what a step brought, but for texts that have left since it was begun."""
        for text, one in zip(texts, wait(), strict=True):
            text.begun -= 1
            if not text.left:
                self._take(text, one)

    def _newcomers(self) -> list[Text]:
        """Gives rows to those that wait: to one, or to as many with short prompts as can be read at once."""
        newcomers: list[Text] = []
        while self._waiting and len(self._rows) < self._limit:
            longest = max(len(text.prompt) for text in [*newcomers, self._waiting[0]])
            if newcomers and longest * (len(newcomers) + 1) > self._model.together_tokens:
                break
            newcomers.append(self._waiting.popleft())
            self._model.begin(len(self._rows), newcomers[-1])
            self._rows.append(newcomers[-1])
        return newcomers

    def _read_together(self, texts: list[Text]) -> None:
        drawn = self._model.read_together(len(self._rows) - len(texts), texts)
        for text in texts:
            text.length = len(text.prompt)
        for text, one in zip(texts, drawn, strict=True):
            self._take(text, one)

    def _read_chunk(self, text: Text) -> None:
        chunk = text.prompt[text.length : text.length + self._model.chunk_tokens]
        last = text.length + len(chunk) == len(text.prompt)
        drawn = self._model.read(len(self._rows) - 1, text, chunk, last)
        text.length += len(chunk)
        if not last:
            text.news.put(text.length)
            return
        assert drawn is not None, "the last chunk gives a token"
        self._reading = None
        self._take(text, drawn)

    def _take(self, text: Text, drawn: Drawn) -> None:
        require_finite(drawn.highest)
        text.made, text.last = text.made + 1, drawn.token
        finish = "stop" if drawn.token in text.ends else "length" if text.made >= text.limit else None
        text.untold.append(Step(drawn, finish))
        if finish or text.made == 1:
            text.tell()
        if finish:
            self._leave(text)

    def _tell(self) -> None:
        """Tells what came of all texts at the same moment, for which the server then wakes once."""
        now = time.monotonic()
        # Beside a device that works by itself small handfuls cost little; large ones of many texts hold up the loop.
        texts = 1 if self._start else len(self._rows)
        if now - self._told_at >= flush_interval_s(texts) + _LATER_S:
            self._told_at = now
            for text in self._rows:
                text.tell()

    def _leave(self, text: Text) -> None:
        """Frees the row: the last writing one moves there, then the one that reads in moves down."""
        text.left = True
        row = self._rows.index(text)
        if text is self._reading:
            self._rows.pop()
            self._reading = None
            return
        last = len(self._rows) - (2 if self._reading else 1)
        if row != last:
            self._model.move(last, row, self._rows[last].length)
        if self._reading:
            self._model.move(last + 1, last, self._reading.length)
        self._rows[row] = self._rows[last]
        del self._rows[last]
