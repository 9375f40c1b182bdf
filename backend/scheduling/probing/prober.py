"""Runs probe children, so many at once. One that is silent for a while gives its place up and runs on to its limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from backend.child.handle import ChildProcess, Spawn
from backend.child.wire_protocol import Header

SILENT_S = 3.0
LONGEST = 5  # times the limit, whatever a child says
_ACHIEVED = ("proved", "engines")  # after which a child has its limit anew: each library may be as slow as the first


@dataclass
class Outcome:
    """What a probe child said, and in words how it failed if it did. `hung` where its limit ended it."""

    frames: list[Header] = field(default_factory=list)
    trouble: str | None = None
    hung: bool = False

    def step(self) -> Header:
        """The last thing that the child said it was about to do."""
        nothing = {"op": "step", "what": "starting", "backends": []}
        return next((frame for frame in reversed(self.frames) if frame["op"] == "step"), nothing)

    def first(self, op: str) -> Header | None:
        """The first frame of a kind."""
        return next((frame for frame in self.frames if frame["op"] == op), None)

    def last(self, op: str) -> Header | None:
        """The last frame of a kind."""
        return next((frame for frame in reversed(self.frames) if frame["op"] == op), None)


class Prober:
    """Runs probe children."""

    def __init__(self, spawn: Spawn, limit_s: float, at_once: int) -> None:
        self._spawn = spawn
        self._limit_s = limit_s
        self._places = asyncio.Semaphore(at_once)
        self.patience = 1.0  # by which the limit is longer

    async def run(
        self,
        python: str,
        arguments: list[str],
        before: contextlib.AbstractAsyncContextManager[object] | None = None,
        started: Callable[[], None] = lambda: None,
        heard: Callable[[Outcome], bool] = lambda _: True,
        silent: Callable[[Outcome], None] = lambda _: None,
    ) -> Outcome:
        """Runs one child to its end, its limit, or until `heard` says False to a frame.

        `before` (a lane's turn) is held as long as the place. Both are given up at the first silence, after `silent`.
        """
        outcome = Outcome()
        async with contextlib.AsyncExitStack() as held:
            if before is not None:
                await held.enter_async_context(before)
            await held.enter_async_context(self._place())
            started()
            try:
                process = self._spawn(python, ["probe", *arguments])
            except OSError as error:
                outcome.trouble = f"its interpreter {python} cannot be started ({error.strerror or error})"
                return outcome
            child = ChildProcess(process, asyncio.get_running_loop())
            try:
                await self._listen(child, outcome, held, heard, silent)
            finally:
                child.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2.0):
                        await child.ended()
        return outcome

    async def _listen(
        self,
        child: ChildProcess,
        outcome: Outcome,
        held: contextlib.AsyncExitStack,
        heard: Callable[[Outcome], bool],
        silent: Callable[[Outcome], None],
    ) -> None:
        clock = asyncio.get_running_loop().time
        limit_s = self._limit_s * self.patience
        begun_at = clock()
        late_at = begun_at + limit_s
        quiet_at: float | None = clock() + SILENT_S  # None once the place is given up
        frames = asyncio.ensure_future(child.receive())
        try:
            while True:
                until = late_at if quiet_at is None else min(late_at, quiet_at)
                done, _ = await asyncio.wait({frames}, timeout=max(0.0, until - clock()))
                if done:
                    frame = frames.result()
                    if frame is None:
                        code = await child.ended()
                        outcome.trouble = None if code == 0 and not child.protocol_error else child.exit_summary()
                        return
                    outcome.frames.append(frame)
                    if not heard(outcome):
                        return
                    if frame["op"] in _ACHIEVED:
                        late_at = min(clock() + limit_s, begun_at + LONGEST * limit_s)
                    frames = asyncio.ensure_future(child.receive())
                    quiet_at = None if quiet_at is None else clock() + SILENT_S
                elif clock() >= late_at:
                    line = child.last_line()
                    said = f"; last line: {line}" if line else ""
                    outcome.hung, outcome.trouble = True, f"it hung: no end after {late_at - begun_at:.3g} s{said}"
                    return
                elif quiet_at is not None:
                    quiet_at = None
                    silent(outcome)
                    await held.aclose()
        finally:
            frames.cancel()

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        async with self._places:
            yield
