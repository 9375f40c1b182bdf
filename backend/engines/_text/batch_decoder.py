"""Continuous batching with chunked prefill: one decode step for all running sequences; others join between steps.

`BatchModel` computes a step. Its KV cache has one row per sequence, and attention reads a row only up to that
sequence's length, so leftovers of earlier sequences are never read. A prompt is prefilled in chunks; between two chunks
the running sequences decode. Short prompts that wait at the same time are prefilled as one batch, because models
process many tokens at once faster than one by one.

Sampled tokens are coalesced and sent for all sequences at the same moment, which wakes the server once. On an
asynchronous device the next step starts before the tokens of the previous step are read: a sequence that turns out to
have ended is then computed once too often, but the device never waits for the host.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from backend.common.error_patterns import require_finite
from backend.common.token_batching import flush_interval_s

log = logging.getLogger(__name__)

_FLUSH_MARGIN_S = 0.01  # longer than the worker's own interval, so that no batch of tokens waits twice


class Constraint(Protocol):
    """What the text of one sequence must match, such as a JSON schema. It follows the generated tokens."""

    def accept(self, token: int) -> bool:
        """Append a token. Returns False, and changes nothing, if it is not allowed here."""
        ...

    def allowed(self) -> bytes:
        """Return one byte per token of the vocabulary: 0 if the token is not allowed here."""
        ...


@dataclass(eq=False)
class TextSequence:
    """One request in the decoder, and its state there.

    `updates` is a queue that the caller reads. It gets lists of `TokenUpdate`; an empty list after a cancel; while some
    of the prompt is left, an integer, the number of prefilled tokens; or the exception that ended the decoder's step.
    `should_stop` is a callback that runs before each step, in the decoder's thread. `constraint`: optional.
    `reuse_cache`: whether the prompt's beginning may be taken from the KV cache of an earlier sequence.
    """

    prompt: list[int]
    options: Mapping[str, Any]
    seed: int
    max_tokens: int
    stop_tokens: frozenset[int]
    should_stop: Callable[[], bool] = lambda: False
    constraint: Constraint | None = None
    reuse_cache: bool = False
    updates: SimpleQueue[list[TokenUpdate] | int | Exception] = field(default_factory=SimpleQueue)
    cancelled: bool = False
    length: int = 0  # tokens in the KV cache
    cached: int = 0  # of these, the tokens that an earlier sequence left there
    generated: int = 0
    last_token: int = 0
    in_flight: int = 0  # steps that were started and whose tokens were not read yet
    finished: bool = False
    step_modes: Counter[str] = field(default_factory=Counter)  # how steps were computed, if the model has several modes
    pending: list[TokenUpdate] = field(default_factory=list)

    def flush(self) -> None:
        """Move the pending tokens to the queue of updates."""
        if self.pending:
            self.updates.put(self.pending)
            self.pending = []


@dataclass(frozen=True)
class SampledToken:
    """A sampled token and the highest logit of its step. `top_logprobs` holds (id, log probability) if requested."""

    token: int
    max_logit: float
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenUpdate:
    """One token of a sequence. `finish` is `stop` or `length` for the last token, otherwise None."""

    sampled: SampledToken
    finish: str | None = None


class BatchModel(Protocol):
    """A model with a KV cache of several rows. All calls come from one thread.

    Optional: `start_decode(sequences)`, the first half of `decode` on an asynchronous device. It starts the step and
    returns a function that waits for the tokens. Another step of the same sequences may start before that.
    """

    prefill_chunk_tokens: int  # tokens of one prompt per call; cancels and decode steps happen between chunks
    prefill_batch_tokens: int  # of several prompts per call, each counted as long as the longest; 0: one prompt only

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        """Prepare a row for a new sequence. It may set `length` and `cached` to the tokens that are there already."""
        ...

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        """Append prompt tokens to the `sequence.length` tokens in the row; return a token after the `last` chunk."""
        ...

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Prefill the complete prompts of several sequences into rows `first` and up; return one token for each."""
        ...

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Append each sequence's last token to its row, rows 0 and up, and return the next tokens."""
        ...

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move a sequence with `length` cached tokens to another row."""
        ...


_WaitForTokens = Callable[[], list[SampledToken]]


class BatchDecoder:
    """The decoding loop, in its own thread. At most `rows` sequences run at once; the others wait in order."""

    def __init__(self, model: BatchModel, rows: int) -> None:
        self._model = model
        self._start_decode: Callable[[Sequence[TextSequence]], _WaitForTokens] | None
        self._start_decode = getattr(model, "start_decode", None)
        self._step_in_flight: tuple[list[TextSequence], _WaitForTokens] | None = None
        self._running: list[TextSequence] = []  # in row order: the decoding sequences, then the one in prefill
        self._in_prefill: TextSequence | None = None
        self._waiting: deque[TextSequence] = deque()
        self._max_rows = rows
        self._flushed_at = 0.0
        self._work_added = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, sequence: TextSequence) -> None:
        """Queue a sequence. Its updates arrive in `sequence.updates`."""
        with self._work_added:
            self._waiting.append(sequence)
            self._work_added.notify()

    def _run(self) -> None:
        while True:
            with self._work_added:
                while not (self._waiting or self._running):
                    self._work_added.wait()
            try:
                self._step()
                self._flush()
            except Exception as error:  # noqa: BLE001 (an exception of the library ends these jobs, not the process)
                for sequence in [*self._running, *self._waiting]:
                    sequence.flush()
                    sequence.updates.put(error)
                self._running, self._in_prefill, self._step_in_flight = [], None, None
                self._waiting.clear()

    def _step(self) -> None:
        for sequence in [each for each in self._running if each.cancelled or each.should_stop()]:
            sequence.updates.put([])
            self._remove(sequence)
        if self._in_prefill is None:
            admitted = self._admit_waiting()
            if len(admitted) > 1:
                self._prefill_batch(admitted)
            elif admitted:
                self._in_prefill = admitted[0]
        if self._in_prefill:
            self._prefill_chunk(self._in_prefill)
        decoding = self._running[: -1 if self._in_prefill else None]
        previous, self._step_in_flight = self._step_in_flight, self._start_step(decoding)
        if previous:
            self._finish_step(*previous)
        if self._step_in_flight and self._start_decode is None:
            current, self._step_in_flight = self._step_in_flight, None
            self._finish_step(*current)

    def _start_step(self, sequences: list[TextSequence]) -> tuple[list[TextSequence], _WaitForTokens] | None:
        """Start a decode step. Returns None if every sequence reaches its limit with the step in flight."""
        if all(each.generated + each.in_flight >= each.max_tokens for each in sequences):
            return None
        if self._start_decode:
            wait_for_tokens = self._start_decode(sequences)
        else:
            sampled = self._model.decode(sequences)
            wait_for_tokens = lambda: sampled  # noqa: E731
        for sequence in sequences:  # all of them before any is removed, because a removal moves rows
            sequence.length += 1
            sequence.in_flight += 1
        return sequences, wait_for_tokens

    def _finish_step(self, sequences: list[TextSequence], wait_for_tokens: _WaitForTokens) -> None:
        """Record the tokens of a step, except for sequences that finished after it was started."""
        for sequence, sampled in zip(sequences, wait_for_tokens(), strict=True):
            sequence.in_flight -= 1
            if not sequence.finished:
                self._record_token(sequence, sampled)

    def _admit_waiting(self) -> list[TextSequence]:
        """Assign rows to waiting sequences: one, or as many short prompts as fit into one prefill batch."""
        admitted: list[TextSequence] = []
        while self._waiting and len(self._running) < self._max_rows:
            longest = max(len(sequence.prompt) for sequence in [*admitted, self._waiting[0]])
            if admitted and longest * (len(admitted) + 1) > self._model.prefill_batch_tokens:
                break
            admitted.append(self._waiting.popleft())
            self._model.assign_row(len(self._running), admitted[-1])
            self._running.append(admitted[-1])
        if admitted:
            log.debug(
                "sequences joined the batch",
                extra={"joined": len(admitted), "running": len(self._running), "waiting": len(self._waiting)},
            )
        return admitted

    def _prefill_batch(self, sequences: list[TextSequence]) -> None:
        tokens = self._model.prefill_batch(len(self._running) - len(sequences), sequences)
        for sequence in sequences:
            sequence.length = len(sequence.prompt)
        for sequence, sampled in zip(sequences, tokens, strict=True):
            self._record_token(sequence, sampled)

    def _prefill_chunk(self, sequence: TextSequence) -> None:
        chunk = sequence.prompt[sequence.length : sequence.length + self._model.prefill_chunk_tokens]
        last = sequence.length + len(chunk) == len(sequence.prompt)
        sampled = self._model.prefill(len(self._running) - 1, sequence, chunk, last)
        sequence.length += len(chunk)
        if not last:
            sequence.updates.put(sequence.length)
            return
        assert sampled is not None, "the last chunk returns a token"
        self._in_prefill = None
        self._record_token(sequence, sampled)

    def _record_token(self, sequence: TextSequence, sampled: SampledToken) -> None:
        require_finite(sampled.max_logit)
        sequence.generated, sequence.last_token = sequence.generated + 1, sampled.token
        at_limit = sequence.generated >= sequence.max_tokens
        finish = "stop" if sampled.token in sequence.stop_tokens else "length" if at_limit else None
        sequence.pending.append(TokenUpdate(sampled, finish))
        if finish or sequence.generated == 1:
            sequence.flush()
        if finish:
            self._remove(sequence)

    def _flush(self) -> None:
        """Send the pending tokens of all sequences at the same moment, so that the server wakes once."""
        now = time.monotonic()
        # On an asynchronous device frequent flushes cost little, while large batches of tokens would delay the loop.
        concurrency = 1 if self._start_decode else len(self._running)
        if now - self._flushed_at >= flush_interval_s(concurrency) + _FLUSH_MARGIN_S:
            self._flushed_at = now
            for sequence in self._running:
                sequence.flush()

    def _remove(self, sequence: TextSequence) -> None:
        """Free the row: the last decoding sequence moves there, then the one in prefill moves down."""
        sequence.finished = True
        row = self._running.index(sequence)
        if sequence is self._in_prefill:
            self._running.pop()
            self._in_prefill = None
            return
        last = len(self._running) - (2 if self._in_prefill else 1)
        if row != last:
            self._model.move_row(last, row, self._running[last].length)
        if self._in_prefill:
            self._model.move_row(last + 1, last, self._in_prefill.length)
        self._running[row] = self._running[last]
        del self._running[last]
