"""One trial of a model on a loaded worker, by its task: what it is asked to do and which figures come of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.child.wire_protocol import Header
from backend.engines import RunRequest, engines
from backend.scheduling.option_support import engines_honouring
from backend.scheduling.worker import Worker
from backend.tasks.options import parse_options

WORDS = "Write a very long story about a river, a mill and a miller's daughter."
TOKENS, FEW_TOKENS = 64, 12  # of a run; few on a device that takes its time
PROMPT_WORDS = "Once there was a river, and at the river stood a mill with a wheel of oak. "
PROMPT_TIMES = 14  # about 300 tokens
SAMPLE_TOKENS = 32  # of which two devices or engines are compared
LONG_S = 12.0  # where a whole run would take longer, by the first one, all are short ones
TUNE = {"form": "reel", "key": "D", "mode": "major", "backing": "none", "seed": 1}
BARS, FEW_BARS = 8, 1  # of a run; few also of the sample


@dataclass(frozen=True)
class Sample:
    """What the first run made, to compare: tokens as text, or a tune's notation and its sound."""

    tokens: tuple[str, ...] = ()
    sound: Path | None = None


@dataclass(frozen=True)
class Figures:
    """What one round measured. Times in seconds, rates a second; None where the task has no such figure."""

    rate: float
    first_token_s: float | None = None
    prompt_per_s: float | None = None
    together: float | None = None


class Trial:
    """Runs on a worker as jobs do, and belongs to none. `cancelling` ends it within a step."""

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
        """How many of several streams the engine can run at once here."""
        return self._streams

    async def warm_up(self) -> Sample:
        """The first run, whose times do not count and whose result is compared with others'."""
        began = time.perf_counter()
        music = self._task == "music"
        sample = await (self._first_tune() if music else self._first_text())
        spent_s = time.perf_counter() - began
        if spent_s * (BARS / FEW_BARS if music else TOKENS / SAMPLE_TOKENS) < LONG_S:
            self._tokens, self._bars = TOKENS, BARS
        return sample

    async def _first_tune(self) -> Sample:
        await self._tune("warm")
        return Sample(_notes(self._folder / "warm"), next((self._folder / "warm").glob("*.wav"), None))

    async def _first_text(self) -> Sample:
        tokens: list[str] = []
        listed = engines_honouring("text", {"logprobs": 0}, [self._worker.key.engine])

        def take(frame: Header) -> None:
            tokens.extend(one["token"] for one in frame.get("logprobs", ()))
            if not listed:
                tokens.extend(frame.get("text", ""))

        await self._text(WORDS, SAMPLE_TOKENS, take, **({"logprobs": 0} if listed else {}))
        return Sample(tuple(tokens))

    async def round(self) -> Figures:
        """One round: alone, a long prompt, several streams."""
        if self._task == "music":
            done = await self._tune("round")
            return Figures(done["audio_s"] / done["run_s"])
        alone = await self._text(WORDS, self._tokens)
        read = await self._text(PROMPT_WORDS * PROMPT_TIMES, 2)
        together = await self._several() if self._streams > 1 else None
        return Figures(_rate(alone), alone["first_token_s"], _prompt_rate(read), together)

    async def _several(self) -> float:
        """Tokens a second of all streams together, prompts included."""
        began = time.perf_counter()
        done = await asyncio.gather(*(self._text(WORDS, self._tokens) for _ in range(self._streams)))
        return float(sum(one["counts"]["tokens"] for one in done) / (time.perf_counter() - began))

    async def _text(
        self, prompt: str, tokens: int, take: Callable[[Header], None] = lambda frame: None, **options: Any
    ) -> Header:
        asked = parse_options("text", {"max_tokens": tokens, "temperature": 0, **options})
        return await self._run(RunRequest(None, prompt, asked, 1, False), take)

    async def _tune(self, name: str) -> Header:
        folder = self._folder / name
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        request = RunRequest(None, None, parse_options("music", {**TUNE, "bars": self._bars}), 1, False)
        return await self._run(replace(request, folder=str(folder)))

    async def _run(self, request: RunRequest, take: Callable[[Header], None] = lambda frame: None) -> Header:
        self._number += 1
        frames = self._worker.run(f"trial-{self._number}", request, self._cancelling)
        last: Header = {}
        async with contextlib.aclosing(frames):
            async for last in frames:
                take(last)
        return last


def _rate(done: Header) -> float:
    """Tokens after the first by the time they took; as a receipt's."""
    tokens, first_s = done["counts"]["tokens"], done["first_token_s"] or 0.0
    return float((tokens - 1) / (done["run_s"] - first_s)) if tokens > 1 else float(tokens / done["run_s"])


def _prompt_rate(done: Header) -> float | None:
    first_s, tokens = done["first_token_s"], done["counts"].get("prompt_tokens")
    return tokens / first_s if first_s and tokens else None


def _notes(folder: Path) -> tuple[str, ...]:
    """The tune as text, bar by bar."""
    file = next(folder.glob("*.abc"), None)
    return tuple(file.read_text(encoding="utf-8").replace("\n", "|").split("|")) if file else ()
