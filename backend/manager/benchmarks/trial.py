"""One trial: what a loaded worker has to generate for a benchmark, and the figures of each round."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.child.wire_protocol import Frame
from backend.engines import RunRequest, engines
from backend.scheduling.option_support import engines_honouring
from backend.scheduling.worker import Worker
from backend.tasks.options import parse_options

WORDS = "Write a very long story about a river, a mill and a miller's daughter."
TOKENS, FEW_TOKENS = 64, 12  # per run; the second on a slow device
PROMPT_WORDS = "Once there was a river, and at the river stood a mill with a wheel of oak. "
PROMPT_TIMES = 14  # about 300 tokens
SAMPLE_TOKENS = 32  # compared between devices and engines
LONG_S = 12.0  # if the warm-up predicts a longer run, all runs are short ones
TUNE = {"form": "reel", "key": "D", "mode": "major", "backing": "none", "seed": 1}
BARS, FEW_BARS = 8, 1  # per run; the second on a slow device and for the sample


@dataclass(frozen=True)
class Sample:
    """The output of the warm-up, for comparisons: tokens as text; for a tune its bars as text and its sound."""

    tokens: tuple[str, ...] = ()
    sound: Path | None = None


@dataclass(frozen=True)
class Figures:
    """The figures of one round. Times in seconds, rates per second; None if the task has no such figure.

    `together` is the throughput of all concurrent streams.
    """

    rate: float
    first_token_s: float | None = None
    prompt_per_s: float | None = None
    together: float | None = None


class Trial:
    """Runs requests on a worker as jobs do, without a job. Setting `cancelling` ends it within one step."""

    def __init__(self, worker: Worker, task: str, streams: int, folder: Path, cancelling: asyncio.Event) -> None:
        self._worker = worker
        self._task = task
        self._streams = streams if engines()[worker.key.engine].batches else 1
        self._folder = folder
        self._cancelling = cancelling
        self._number = 0
        self._tokens, self._bars = FEW_TOKENS, FEW_BARS

    @property
    def streams(self) -> int:
        """The number of streams that the engine runs concurrently here."""
        return self._streams

    async def warm_up(self) -> Sample:
        """Run once and return the output. The time is not a result; it decides how long the rounds are."""
        started_at = time.perf_counter()
        music = self._task == "music"
        sample = await (self._sample_tune() if music else self._sample_text())
        spent_s = time.perf_counter() - started_at
        if spent_s * (BARS / FEW_BARS if music else TOKENS / SAMPLE_TOKENS) < LONG_S:
            self._tokens, self._bars = TOKENS, BARS
        return sample

    async def round(self) -> Figures:
        """Run one round: a single stream, a long prompt, and concurrent streams."""
        if self._task == "music":
            done = await self._tune("round")
            return Figures(done["audio_s"] / done["run_s"])
        single = await self._text(WORDS, self._tokens)
        prefill = await self._text(PROMPT_WORDS * PROMPT_TIMES, 2)
        together = await self._concurrent_rate() if self._streams > 1 else None
        return Figures(_rate(single), single["first_token_s"], _prompt_rate(prefill), together)

    async def _sample_tune(self) -> Sample:
        await self._tune("warm")
        return Sample(_notes(self._folder / "warm"), next((self._folder / "warm").glob("*.wav"), None))

    async def _sample_text(self) -> Sample:
        tokens: list[str] = []
        has_logprobs = bool(engines_honouring("text", {"logprobs": 0}, [self._worker.key.engine]))

        def collect(frame: Frame) -> None:
            tokens.extend(entry["token"] for entry in frame.get("logprobs", ()))
            if not has_logprobs:
                tokens.extend(frame.get("text", ""))

        await self._text(WORDS, SAMPLE_TOKENS, collect, **({"logprobs": 0} if has_logprobs else {}))
        return Sample(tuple(tokens))

    async def _concurrent_rate(self) -> float:
        """Return the tokens per second of all streams together, prefill included."""
        started_at = time.perf_counter()
        done = await asyncio.gather(*(self._text(WORDS, self._tokens) for _ in range(self._streams)))
        return float(sum(frame["counts"]["tokens"] for frame in done) / (time.perf_counter() - started_at))

    async def _text(
        self, prompt: str, tokens: int, on_frame: Callable[[Frame], None] = lambda frame: None, **options: Any
    ) -> Frame:
        parsed = parse_options("text", {"max_tokens": tokens, "temperature": 0, **options})
        return await self._run(RunRequest(None, prompt, parsed, 1, False), on_frame)

    async def _tune(self, name: str) -> Frame:
        folder = self._folder / name
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        request = RunRequest(None, None, parse_options("music", {**TUNE, "bars": self._bars}), 1, False)
        return await self._run(replace(request, folder=str(folder)))

    async def _run(self, request: RunRequest, on_frame: Callable[[Frame], None] = lambda frame: None) -> Frame:
        """Run a request and return its last frame, with counts and times. `on_frame` is called with each frame."""
        self._number += 1
        frames = self._worker.run(f"trial-{self._number}", request, self._cancelling)
        last: Frame = {}
        async with contextlib.aclosing(frames):
            async for last in frames:
                on_frame(last)
        return last


def _rate(done: Frame) -> float:
    """Return the decode rate: tokens after the first by the time they took, as in a receipt."""
    tokens, first_s = done["counts"]["tokens"], done["first_token_s"] or 0.0
    return float((tokens - 1) / (done["run_s"] - first_s)) if tokens > 1 else float(tokens / done["run_s"])


def _prompt_rate(done: Frame) -> float | None:
    """Return the prefill rate: prompt tokens by the time to first token."""
    first_s, tokens = done["first_token_s"], done["counts"].get("prompt_tokens")
    return tokens / first_s if first_s and tokens else None


def _notes(folder: Path) -> tuple[str, ...]:
    """Return the tune as text, bar by bar."""
    file = next(folder.glob("*.abc"), None)
    return tuple(file.read_text(encoding="utf-8").replace("\n", "|").split("|")) if file else ()
