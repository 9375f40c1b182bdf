"""The prober: runs a limited number of probe children at once. A silent child gives up its place and runs on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from backend.child.handle import ChildProcess, ChildStartError, Spawn
from backend.child.spawner import spawn_child
from backend.child.wire_protocol import (
    AbsentFrame,
    EndFrame,
    EnginesFrame,
    Frame,
    ListedFrame,
    NoEngineFrame,
    PlanFrame,
    ProvedFrame,
    RefusalFrame,
    StepFrame,
)
from backend.common.config.frame_schema import FrameSchema
from backend.devices import INDEX_LIMIT, backends

log = logging.getLogger(__name__)
SILENT_S = 3.0
KEPT_S = 10.0  # for which a child that is kept may wait for its turn
MAX_EXTENSIONS = 5  # times the timeout, however much progress a child reports
FRAMES_LIMIT = 1000  # of one child; a probe sends fewer than a hundred
_MILESTONES = ("step", "proved", "engines")  # frames that restart the timeout: each step may take that long
_REFUSALS = ("absent", "missing", "wrong", "failed")
_SCHEMA = FrameSchema(
    PlanFrame,
    StepFrame,
    ListedFrame,
    AbsentFrame,
    RefusalFrame,
    ProvedFrame,
    EnginesFrame,
    NoEngineFrame,
    EndFrame,
)


@dataclass
class Outcome:
    """The frames of a probe child, and how it failed if it did. `hung`: it was killed for its timeout.

    `python` is its interpreter, empty if unknown. `is_invalid`: it broke the protocol.
    """

    frames: list[Frame] = field(default_factory=list)
    trouble: str | None = None
    hung: bool = False
    python: str = ""
    is_invalid: bool = False

    def step(self) -> Frame:
        """Return the last `step` frame: what the child was about to do."""
        default = {"op": "step", "what": "starting", "backends": []}
        return next((frame for frame in reversed(self.frames) if frame["op"] == "step"), default)

    def first(self, op: str) -> Frame | None:
        """Return the first frame of a kind, or None."""
        return next((frame for frame in self.frames if frame["op"] == op), None)

    def last(self, op: str) -> Frame | None:
        """Return the last frame of a kind, or None."""
        return next((frame for frame in reversed(self.frames) if frame["op"] == op), None)


class Prober:
    """Runs probe children, at most `at_once`, each with a timeout of `limit_s`."""

    def __init__(self, spawn: Spawn, limit_s: float, at_once: int) -> None:
        self._spawn = spawn
        self._limit_s = limit_s
        self._places = asyncio.Semaphore(at_once)
        self.patience = 1.0  # factor of the timeout

    async def run(
        self,
        python: str,
        arguments: list[str],
        turn: contextlib.AbstractAsyncContextManager[object] | None = None,
        on_start: Callable[[], None] = lambda: None,
        on_frame: Callable[[Outcome], bool] = lambda _: True,
        on_silence: Callable[[Outcome], None] = lambda _: None,
        keep: Callable[[ChildProcess, Outcome], bool] = lambda *_: False,
        kept: ChildProcess | None = None,
    ) -> Outcome:
        """Run one child to its end, its timeout, or until the callback `on_frame` returns False.

        `turn` (in a device's queue) is held as long as the place. Both are released at the first silence, after the
        callback `on_silence`. `on_start` is called when the child starts. `keep` returns whether it takes over the
        child, which then goes on. `kept` is such a child: it gets the arguments as an order. All of them are optional.
        """
        outcome = Outcome(python=python)
        # A child that waits for a job to end holds memory.
        ending = asyncio.get_running_loop().call_later(KEPT_S, kept.kill) if kept else None
        async with contextlib.AsyncExitStack() as held:
            if turn is not None:
                await held.enter_async_context(turn)
            await held.enter_async_context(self._place())
            if ending:
                ending.cancel()
            on_start()
            try:
                child = kept or await spawn_child(self._spawn, python, ["probe", *arguments], _SCHEMA)
            except ChildStartError as error:
                outcome.trouble = str(error)
                return outcome
            if kept:
                kept.send({"op": "probe", "arguments": arguments})
            is_taken = False
            try:
                await self._read_frames(child, outcome, held, on_frame, on_silence)
                is_taken = not outcome.trouble and keep(child, outcome)
            finally:
                if not is_taken:
                    await end_child(child)
        return outcome

    async def _read_frames(
        self,
        child: ChildProcess,
        outcome: Outcome,
        held: contextlib.AsyncExitStack,
        on_frame: Callable[[Outcome], bool],
        on_silence: Callable[[Outcome], None],
    ) -> None:
        """Read the child's frames into `outcome` until it ends, times out (logged), or is not needed."""
        clock = asyncio.get_running_loop().time
        limit_s = self._limit_s * self.patience
        started_at = step_at = clock()
        timeout_at = started_at + limit_s
        silent_at: float | None = clock() + SILENT_S  # None once the place is released
        frames = asyncio.ensure_future(child.receive())
        try:
            while True:
                until = timeout_at if silent_at is None else min(timeout_at, silent_at)
                done, _ = await asyncio.wait({frames}, timeout=max(0.0, until - clock()))
                if done:
                    frame = frames.result()
                    if frame is None:
                        code = await child.ended()
                        outcome.trouble = None if code == 0 and not child.protocol_error else child.exit_summary()
                        outcome.is_invalid = child.is_rejected
                        return
                    if why := _order_error(outcome.frames, frame):
                        child.reject(why)
                        outcome.trouble, outcome.is_invalid = child.exit_summary(), True
                        return
                    outcome.frames.append(frame)
                    if not on_frame(outcome):
                        return
                    if frame["op"] in _MILESTONES:
                        step_at = clock()
                        timeout_at = min(step_at + limit_s, started_at + MAX_EXTENSIONS * limit_s)
                    frames = asyncio.ensure_future(child.receive())
                    silent_at = None if silent_at is None else clock() + SILENT_S
                elif clock() >= timeout_at:
                    line = child.last_line()
                    last_line = f"; last line: {line}" if line else ""
                    timeout_s = timeout_at - step_at  # of the step, not of the probe
                    outcome.hung, outcome.trouble = True, f"it hung: timeout after {timeout_s:.3g} s{last_line}"
                    log.warning("probe timed out", extra={"pid": child.pid, "cause": outcome.trouble})
                    return
                elif silent_at is not None:
                    silent_at = None
                    on_silence(outcome)
                    await held.aclose()
        finally:
            frames.cancel()

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        async with self._places:
            yield


async def end_child(child: ChildProcess) -> None:
    """Kill a child and wait for its end, a moment at most."""
    child.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2.0):
            await child.ended()


def _order_error(frames: list[Frame], frame: Frame) -> str | None:
    """Return why a frame cannot follow the earlier ones of its child, or contradicts itself; None if it can."""
    op, earlier = frame["op"], {each["op"] for each in frames}
    if len(frames) >= FRAMES_LIMIT:
        return f"it is the last of more than {FRAMES_LIMIT}"
    if op in ("plan", "proved") and op in earlier:
        return f"`{op}` came twice"
    if op in ("engines", "no_engine") and "proved" not in earlier:
        return f"`{op}` came before `proved`"
    if unknown := next((name for name in frame.get("backends", []) if name not in backends()), None):
        return f"`{op}` names the unknown backend {unknown!r}"
    if op == "proved":
        refusal = next((name for name in _REFUSALS if name in earlier), None)
        proof = frame["proof"]
        if refusal:
            return f"`proved` came after `{refusal}`"
        return "its proof has an error above its tolerance" if proof.max_abs_error > proof.tolerance else None
    if op in _REFUSALS and "proved" in earlier:
        return f"`{op}` came after `proved`"
    if op == "listed" or (op in _REFUSALS and "plan" in earlier):
        return _answer_error(frames, frame)
    return None


def _answer_error(frames: list[Frame], frame: Frame) -> str | None:
    """Return why the answer of a list is invalid, None if it is valid."""
    op = frame["op"]
    plan = next((each["backends"] for each in frames if each["op"] == "plan"), None)
    if plan is None:
        return f"`{op}` came before `plan`"
    answered = {name for each in frames if each["op"] in ("listed", *_REFUSALS) for name in each["backends"]}
    for name in frame["backends"]:
        if name not in plan:
            return f"`{op}` names {name}, which is not in the plan"
        if name in answered:
            return f"`{op}` answers for {name} twice"
    if len(frame.get("devices", [])) > INDEX_LIMIT:
        return f"`{op}` has more than {INDEX_LIMIT} devices"
    return None
