"""A text model driven by `BatchDecoder`: from a request to prompt tokens, and from generated tokens to shown text."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from backend.common.engine_api import TokenEvent, TokenLogprob, TokenProbability
from backend.common.errors import ContextLengthExceeded
from backend.common.types import JsonObject, Placement
from backend.engines import Emit, RunRequest, RunResult, Session
from backend.engines._memory_errors import LOWER_CONTEXT, out_of_memory_message, ran_out_of_memory
from backend.engines._text.batch_decoder import BatchDecoder, TextSequence, TokenUpdate
from backend.engines._text.chat_prompt import Chat, Prompt
from backend.engines._text.constraint import Constraints
from backend.engines._text.logit_bias import check_biases, check_tokens
from backend.engines._text.logprobs import Logprobs
from backend.tasks.text.stop_sequences import StopFilter

_PROGRESS_GAP_S = 0.1  # each progress event wakes the server while the next chunk of the prompt is computed
_POLL_S = 0.1  # how often a sequence that waits for a row polls for a cancel; running ones poll before each step


class Vocabulary(Protocol):
    """A model's vocabulary. `begin` is the BOS token, optional; `ends` are the tokens that end a text."""

    begin: int | None
    ends: frozenset[int]
    vocabulary_size: int | None

    def encode(self, piece: str) -> list[int]:
        """Return the tokens of a text. Special tokens are parsed, and none is added."""
        ...

    def stream(self) -> Callable[[int], str]:
        """Return a function that returns the text that each further token adds; empty within a character."""
        ...

    def text(self, token: int) -> str:
        """Return the text of a single token."""
        ...


class TextSession(Session):
    """One loaded model. `run` may be called from as many threads at once as the KV cache has rows."""

    def __init__(
        self,
        decoder: BatchDecoder,
        vocabulary: Vocabulary,
        chat: Chat,
        context_tokens: int,
        placement: Placement,
        threads: int,
        versions: dict[str, str],
        device_bytes: Callable[[], int | None] = lambda: None,
        describe_steps: Callable[[Mapping[str, int]], str] | None = None,
        find_placement: Callable[[], Placement | None] = lambda: None,
        constraints: Constraints | None = None,
    ) -> None:
        """`describe_steps`: optional callback that describes how a sequence's steps were computed.

        `find_placement`: optional, returns where the model is now. `constraints`: optional, needed for schemas.
        """
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._chat = chat
        self._context = context_tokens
        self.placement = placement
        self.threads: int | None = threads
        self.versions = versions
        self._device_bytes = device_bytes
        self._describe_steps = describe_steps
        self._find_placement = find_placement
        self._constraints = constraints

    def device_bytes(self) -> int | None:
        """Return the memory that the model takes on a card now, None if unknown."""
        return self._device_bytes()

    def find_placement(self) -> Placement | None:
        """Return where the model is now, None if the library cannot tell."""
        return self._find_placement()

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Generate until a stop, the limit or a cancel. Raises ContextLengthExceeded, Validation, OutOfMemory."""
        options = request.options
        made = self._chat.prompt(request)
        prompt = self._encode_prompt(made)
        self._check_fit(prompt, options)
        limit = min(options["max_tokens"], self._context - len(prompt))
        sequence = TextSequence(prompt, options, request.seed, limit, self._vocabulary.ends, lambda: emit("poll", {}))
        sequence.reuse_cache = request.reuse_cache
        if self._constraints:
            sequence.constraint = self._constraints.of(options["response_format"])
        output = _OutputStream(self._vocabulary, made.announce(emit), options["stop"], options["logprobs"])
        finish, progress = "cancelled", _PromptProgress(emit)
        self._decoder.add(sequence)
        try:
            while finish == "cancelled":
                try:
                    update = sequence.updates.get(timeout=_POLL_S)
                except queue.Empty:
                    if emit("poll", {}):
                        break
                    continue
                if isinstance(update, Exception):
                    raise _run_error(update)
                if isinstance(update, int):
                    if progress.report(update, len(prompt)):
                        break
                    continue
                reason, cancelled = output.take(update)
                finish = reason or finish
                if cancelled or not update:
                    break
        finally:
            sequence.cancelled = True
        counts = {"tokens": output.tokens, "prompt_tokens": len(prompt), "cached_tokens": sequence.cached}
        evidence = self._describe_steps(sequence.step_modes) if self._describe_steps else ""
        return RunResult(counts, finish, made.template, evidence=evidence, chosen=made.chosen)

    def _check_fit(self, prompt: list[int], options: JsonObject) -> None:
        """Raises ContextLengthExceeded, and Validation for a token that the model does not have."""
        if len(prompt) >= self._context:
            raise ContextLengthExceeded(
                f"The prompt has {len(prompt)} tokens and the context holds {self._context}.",
                "Shorten the prompt, or raise text.context_tokens in config.yaml.",
                prompt_tokens=len(prompt),
                context_tokens=self._context,
            )
        if self._vocabulary.vocabulary_size is not None:
            check_biases(options["logit_bias"], self._vocabulary.vocabulary_size)
            check_tokens(options.get("prompt_tokens") or (), self._vocabulary.vocabulary_size)

    def _encode_prompt(self, prompt: Prompt) -> list[int]:
        if prompt.tokens is not None:
            return prompt.tokens
        begin = self._vocabulary.begin
        tokens = [token for piece in prompt.pieces for token in self._vocabulary.encode(piece)]
        if begin is not None and tokens[:1] != [begin]:
            tokens.insert(0, begin)
        return tokens or [min(self._vocabulary.ends, default=0)]


class _PromptProgress:
    """Reports how much of a prompt is prefilled, at intervals; between them it only polls for a cancel."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._at = -math.inf

    def report(self, done: int, total: int) -> bool:
        """Return True if the job should stop."""
        now = time.monotonic()
        if now - self._at < _PROGRESS_GAP_S:
            return self._emit("poll", {})
        self._at = now
        return self._emit("progress", {"phase": "prompt", "done": done, "total": total, "unit": "tokens"})


class _OutputStream:
    """Turns the generated tokens of one request into text, up to a stop sequence."""

    def __init__(self, vocabulary: Vocabulary, emit: Emit, stop: str | list[str] | None, logprobs: int | None) -> None:
        self._vocabulary = vocabulary
        self._stream = vocabulary.stream()
        self._emit = emit
        self._stops = StopFilter([stop] if isinstance(stop, str) else stop or [])
        self._logprobs = None if logprobs is None else Logprobs(logprobs)
        self._shown = 0
        self.tokens = 0

    def take(self, updates: list[TokenUpdate]) -> tuple[str | None, bool]:
        """Emit the text that is final; return the finish reason, if there is one, and whether to stop now."""
        shown, finish = "", None
        for update in updates:
            self.tokens += 1
            piece = "" if update.sampled.token in self._vocabulary.ends else self._stream(update.sampled.token)
            if piece and self._logprobs:
                self._logprobs.take([self._with_logprobs(update, piece)])
            shown += self._stops.feed(piece) if piece else ""
            if self._stops.matched:
                return "stop", self._show(shown)
            finish = update.finish
        if finish:
            shown += self._stops.flush()
        return finish, self._show(shown)

    def _show(self, text: str) -> bool:
        if not text:
            return self._emit("poll", {})
        count, self._shown = self.tokens - self._shown, self.tokens
        event: TokenEvent = {"text": text, "count": count}
        if self._logprobs:
            event["logprobs"] = self._logprobs.of(text)
        return self._emit("token", event)

    def _with_logprobs(self, update: TokenUpdate, piece: str) -> TokenLogprob:
        alternatives = [
            _token_entry(token, self._vocabulary.text(token), value) for token, value in update.sampled.top_logprobs
        ]
        return {**_token_entry(update.sampled.token, piece, update.sampled.logprob), "top_logprobs": alternatives}


def _token_entry(token: int, text: str, logprob: float | None) -> TokenProbability:
    return {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob}


def _run_error(error: Exception) -> Exception:
    if message := out_of_memory_message(error):
        return ran_out_of_memory("The device", message, LOWER_CONTEXT)
    return error
