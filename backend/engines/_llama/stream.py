"""Convert the chunks of llama.cpp's server into the events and counts of a job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

from backend.common.engine_api import TokenEvent
from backend.common.errors import ContextLengthExceeded, ModelIncompatible, TouchstoneError
from backend.common.types import JsonObject
from backend.engines import Emit, RunResult
from backend.engines._text.logprobs import Logprobs
from backend.tasks.text.stop_sequences import StopFilter

PROGRESS_GAP_S = 0.1  # each progress event wakes the server while the next step of the prompt runs


class Stream:
    """A callback for llama.cpp's chunks. Returns True to stop the generation."""

    def __init__(
        self,
        emit: Emit,
        stop: str | list[str] | None,
        logprobs: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._told_at = -math.inf
        self._logprobs = None if logprobs is None else Logprobs(logprobs)
        self._stops = StopFilter([stop] if isinstance(stop, str) else stop or [])
        self._shown_tokens = 0
        self._counted_tokens = 0
        self._timings: JsonObject = {}
        self._finish = "cancelled"
        self._usage: JsonObject = {}
        self._error: TouchstoneError | None = None

    def __call__(self, chunk: JsonObject) -> bool:
        if "error" in chunk:
            self._error = _run_error(chunk["error"])
            return True
        if progress := chunk.get("prompt_progress"):
            done, total, now = progress["processed"], progress["total"], self._clock()
            if now - self._told_at < PROGRESS_GAP_S:
                return self._emit("poll", {})
            self._told_at = now
            return self._emit("progress", {"phase": "prompt", "done": done, "total": total, "unit": "tokens"})
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        stop = False
        for choice in chunk.get("choices", ()):
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            if self._logprobs and (listed := choice.get("logprobs")):
                self._logprobs.take(listed["content"])
            if text:
                self._counted_tokens = int(self._timings.get("predicted_n", self._counted_tokens + 1))
                stop = self._show(self._stops.feed(text))
            if self._stops.matched:
                self._finish = "stop"
                return True
            if choice.get("finish_reason"):
                self._finish = choice["finish_reason"]
                stop = self._show(self._stops.flush())
        return stop

    def _show(self, text: str) -> bool:
        if not text:
            return False
        count, self._shown_tokens = self._counted_tokens - self._shown_tokens, self._counted_tokens
        event: TokenEvent = {"text": text, "count": count}
        if self._logprobs:
            event["logprobs"] = self._logprobs.of(text)
        return self._emit("token", event)

    def result(self, template: Literal["model", "default"] | None) -> RunResult:
        """Return the counts of the last chunk; after a stop sequence, those of the chunk with the last token."""
        if self._error:
            raise self._error
        counts = {"tokens": self._usage.get("completion_tokens", self._counted_tokens)}
        if self._usage:
            counts["prompt_tokens"] = self._usage["prompt_tokens"]
            counts["cached_tokens"] = self._usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        elif self._timings:
            counts["prompt_tokens"] = self._timings["prompt_n"] + self._timings["cache_n"]
            counts["cached_tokens"] = self._timings["cache_n"]
        return RunResult(counts, self._finish, template)


def _run_error(error: JsonObject) -> TouchstoneError:
    message = str(error.get("message", "no message"))
    if error.get("type") == "exceed_context_size_error":
        needed, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
        return ContextLengthExceeded(
            f"The prompt has {needed} tokens and the context holds {limit}.",
            "Shorten the prompt, or raise text.context_tokens in config.yaml.",
            prompt_tokens=needed,
            context_tokens=limit,
        )
    return ModelIncompatible(
        f"llama.cpp refused the request: {message}", "Change the messages or choose another model."
    )
