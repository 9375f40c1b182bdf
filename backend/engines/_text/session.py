"""A text model that our own loop drives: from a request to its prompt's tokens, and from tokens to what is shown."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from backend.common import error_patterns
from backend.common.errors import ContextLengthExceeded, OutOfMemory
from backend.common.types import Placement
from backend.engines import Emit, RunRequest, RunResult
from backend.engines._text.batch_decoder import Decoder, Step, Text
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.logit_bias import check_biases
from backend.engines._text.logprobs import Logprobs
from backend.tasks.text.stop_sequences import Stops

_POLL_S = 0.1  # within this a text that waits for a row hears of a cancel; the others hear of it before each step


class Tokens(Protocol):
    """A model's vocabulary. `begin` is the token that stands before every text, `ends` are those that end one."""

    begin: int | None
    ends: frozenset[int]
    vocabulary_size: int | None

    def encode(self, piece: str) -> list[int]:
        """The tokens of a text, in which the marks of a template are tokens, and nothing added."""
        ...

    def stream(self) -> Callable[[int], str]:
        """What a token adds to a text, called for one after the other; empty amid a character."""
        ...

    def text(self, token: int) -> str:
        """One token by itself."""
        ...


class TextSession:
    """One loaded model. `run` may be called from as many threads at once as it has rows."""

    def __init__(
        self,
        decoder: Decoder,
        tokens: Tokens,
        chat: Chat,
        context_tokens: int,
        placement: Placement,
        threads: int,
        versions: dict[str, str],
        device_bytes: Callable[[], int | None] = lambda: None,
        said: Callable[[Mapping[str, int]], str] | None = None,
    ) -> None:
        """`said` tells in words how the steps of a text were computed, where there are several ways."""
        self._decoder = decoder
        self._tokens = tokens
        self._chat = chat
        self._context = context_tokens
        self.placement = placement
        self.threads: int | None = threads
        self.versions = versions
        self.device_bytes = device_bytes
        self._said = said

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Generates until a stop, the limit or a cancel. Raises ContextLengthExceeded, Validation, OutOfMemory."""
        options = request.options
        pieces, template = self._chat.pieces(request)
        prompt = self._prompt(pieces)
        if len(prompt) >= self._context:
            raise ContextLengthExceeded(
                f"The prompt has {len(prompt)} tokens and the context holds {self._context}.",
                "Shorten the prompt, or raise text.context_tokens in config.yaml.",
                prompt_tokens=len(prompt),
                context_tokens=self._context,
            )
        if self._tokens.vocabulary_size is not None:
            check_biases(options["logit_bias"], self._tokens.vocabulary_size)
        limit = min(options["max_tokens"], self._context - len(prompt))
        text = Text(prompt, options, request.seed, limit, self._tokens.ends, lambda: emit("poll", {}))
        writing = _Writing(self._tokens, emit, options["stop"], options["logprobs"])
        finish = "cancelled"
        self._decoder.add(text)
        try:
            while finish == "cancelled":
                try:
                    news = text.news.get(timeout=_POLL_S)
                except queue.Empty:
                    if emit("poll", {}):
                        break
                    continue
                if isinstance(news, Exception):
                    raise _run_error(news)
                if isinstance(news, int):
                    progress = {"phase": "prompt", "done": news, "total": len(prompt), "unit": "tokens"}
                    if emit("progress", progress):
                        break
                    continue
                ended, cancelled = writing.take(news)
                finish = ended or finish
                if cancelled or not news:
                    break
        finally:
            text.cancelled = True
        counts = {"tokens": writing.tokens, "prompt_tokens": len(prompt), "cached_tokens": 0}
        return RunResult(counts, finish, template, evidence=self._said(text.ways) if self._said else "")

    def _prompt(self, pieces: list[str]) -> list[int]:
        begin = self._tokens.begin
        found = [token for piece in pieces for token in self._tokens.encode(piece)]
        if begin is not None and found[:1] != [begin]:
            found.insert(0, begin)
        return found or [min(self._tokens.ends, default=0)]


class _Writing:
    """Tokens become text, up to a stop."""

    def __init__(self, tokens: Tokens, emit: Emit, stop: str | list[str] | None, logprobs: int | None) -> None:
        self._vocabulary = tokens
        self._stream = tokens.stream()
        self._emit = emit
        self._stops = Stops([stop] if isinstance(stop, str) else stop or [])
        self._logprobs = None if logprobs is None else Logprobs(logprobs)
        self._shown = 0
        self.tokens = 0

    def take(self, steps: list[Step]) -> tuple[str | None, bool]:
        """Shows what can be shown; returns how the text ended, if it did, and whether to stop at once."""
        shown, finish = "", None
        for step in steps:
            self.tokens += 1
            piece = "" if step.drawn.token in self._vocabulary.ends else self._stream(step.drawn.token)
            if piece and self._logprobs:
                self._logprobs.take([self._listed(step, piece)])
            shown += self._stops.feed(piece) if piece else ""
            if self._stops.found:
                return "stop", self._show(shown)
            finish = step.finish
        if finish:
            shown += self._stops.rest()
        return finish, self._show(shown)

    def _show(self, text: str) -> bool:
        if not text:
            return self._emit("poll", {})
        count, self._shown = self.tokens - self._shown, self.tokens
        listed = {"logprobs": self._logprobs.of(text)} if self._logprobs else {}
        return self._emit("token", {"text": text, "count": count, **listed})

    def _listed(self, step: Step, piece: str) -> dict[str, Any]:
        likeliest = [_named(token, self._vocabulary.text(token), value) for token, value in step.drawn.likeliest]
        return {**_named(step.drawn.token, piece, step.drawn.logprob), "top_logprobs": likeliest}


def _named(token: int, text: str, logprob: float | None) -> dict[str, Any]:
    return {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob}


def _run_error(error: Exception) -> Exception:
    if error_patterns.classify_error_text(f"{error}") == "out_of_memory":
        return OutOfMemory(f"The device ran out of memory: {error}"[:600], "Lower text.context_tokens or text.slots.")
    return error
