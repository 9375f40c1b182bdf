"""What one runtime lists: one child for all backends; those that the crash or hang of one hides get another child."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.child.wire_protocol import Header
from backend.common.device_api import DetectedDevice
from backend.devices import detected_device_from
from backend.scheduling.probing.prober import Outcome, Prober


@dataclass
class Enumeration:
    """The answer for one backend: devices, or the outcome and the frame that say why there are none."""

    devices: list[DetectedDevice] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    refusal: Header | None = None
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def quiet(self) -> bool:
        """Whether nobody would expect a device."""
        return bool(self.refusal and self.refusal.get("quiet"))

    @property
    def failed(self) -> bool:
        """Whether it is not just that there are none."""
        return not self.devices and (self.refusal is None or self.refusal["op"] != "absent")


class Enumerator:
    """Lists the devices of one runtime. `answers` fill as they come; `plan` is None if no child ever got that far.

    `said` gets the name of each backend as it is answered, and None at the end.
    """

    def __init__(self, prober: Prober, python: str, runtime: str) -> None:
        self._prober = prober
        self._python = python
        self._runtime = runtime
        self.plan: list[str] | None = None
        self.answers: dict[str, Enumeration] = {}
        self.said: asyncio.Queue[str | None] = asyncio.Queue()
        self.outcome = Outcome()  # of the first child, for a runtime of which nothing at all is known

    async def run(self, only: Sequence[str] = (), visible: bool = False) -> None:
        """Lists the devices of all backends or of some; with `visible` only those that the user's variables leave."""
        try:
            await self._child("list-visible" if visible else "list", list(only))
        finally:
            self.said.put_nowait(None)

    async def _child(self, verb: str, only: list[str]) -> None:
        others: list[asyncio.Task[None]] = []

        def heard(outcome: Outcome) -> bool:
            self._take(outcome)
            back = bool(others) and outcome.frames[-1]["op"] != "step"  # another does the rest
            return not back and (self.plan is None or bool(self._unsaid(only)) or outcome.frames[-1]["op"] == "plan")

        def silent(outcome: Outcome) -> None:
            stuck = outcome.step()["backends"]
            rest = [name for name in self._unsaid(only) if name not in stuck]
            if stuck and rest:
                others.append(asyncio.ensure_future(self._child(verb, rest)))

        try:
            outcome = await self._prober.run(self._python, [verb, self._runtime, *only], heard=heard, silent=silent)
        except BaseException:
            for other in others:
                other.cancel()
            raise
        if not self.outcome.frames and not self.outcome.trouble:
            self.outcome = outcome
        blamed = outcome.step()["backends"]
        for name in blamed:
            self._answer(name, None, outcome)
        if others:
            await asyncio.gather(*others)
        elif blamed and (rest := self._unsaid(only)):  # a child that dies before it lists anything would die again
            await self._child(verb, rest)

    def _take(self, outcome: Outcome) -> None:
        frame = outcome.frames[-1]
        if frame["op"] == "plan":
            self.plan = self.plan or frame["backends"]
        elif frame["op"] != "step":
            for name in frame.get("backends", []):
                self._answer(name, frame, outcome)

    def _unsaid(self, only: list[str]) -> list[str]:
        wanted = [name for name in only if name in self.plan] if only and self.plan else self.plan or []
        return [name for name in wanted if name not in self.answers]

    def _answer(self, name: str, frame: Header | None, outcome: Outcome) -> None:
        if name in self.answers:
            return
        if frame is not None and frame["op"] == "listed":
            found = [detected_device_from(fields) for fields in frame["devices"]]
            self.answers[name] = Enumeration(found, frame["versions"], frame["left_out"], None, outcome)
        else:
            self.answers[name] = Enumeration(refusal=frame, outcome=outcome)
        self.said.put_nowait(name)
