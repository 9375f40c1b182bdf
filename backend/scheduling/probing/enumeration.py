"""Enumeration of the devices of one runtime: one child lists all backends, and another one those left after a crash."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from backend.child.handle import ChildProcess
from backend.child.wire_protocol import Frame
from backend.common.clean_text import clean_name
from backend.common.device_api import DetectedDevice
from backend.devices import backends, is_instance
from backend.scheduling.probing.prober import Outcome, Prober

log = logging.getLogger(__name__)


@dataclass
class Enumeration:
    """The answer for one backend: its devices, or the frame and the outcome that explain why it has none."""

    devices: list[DetectedDevice] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    refusal: Frame | None = None
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def quiet(self) -> bool:
        """Whether a device is not expected, so its absence is not reported."""
        return bool(self.refusal and self.refusal.get("quiet"))

    @property
    def failed(self) -> bool:
        """Whether listing failed, as opposed to an empty list."""
        return not self.devices and (self.refusal is None or self.refusal["op"] != "absent")


class Enumerator:
    """Lists the devices of one runtime.

    `plan` are the backends that it has libraries for, None if no child came that far. `answers` are by backend;
    `answered` gets the name of each backend with an answer, and None at the end. A child that lists a single card, or
    no card and the processor, through a single library can prove it without a second import: it is `kept` for that.
    While `may_keep`, no other child should prove a device. An empty name in `answered` shows that this has changed.
    """

    def __init__(self, prober: Prober, python: str, runtime: str) -> None:
        self._prober = prober
        self._python = python
        self._runtime = runtime
        self.plan: list[str] | None = None
        self.answers: dict[str, Enumeration] = {}
        self.answered: asyncio.Queue[str | None] = asyncio.Queue()
        self.outcome = Outcome()  # of the first child, for a runtime without any answer
        self._faults: dict[str, dict[int, str]] = {}  # of cards whose description ended a child, by backend
        self.may_keep = False
        self.kept: ChildProcess | None = None

    async def run(self, only: Sequence[str] = (), *action: str) -> None:
        """List the devices of all backends (default) or of some; `action`: the child's verb. Default: `list`.

        An exception becomes the trouble of its outcome.
        """
        try:
            await self._run_child(action or ("list",), list(only))
        except Exception as error:
            log.exception("listing devices failed", extra={"runtime": self._runtime})
            self.outcome.trouble = self.outcome.trouble or clean_name(f"{type(error).__name__}: {error}", 300)
        finally:
            self.answered.put_nowait(None)

    async def _run_child(self, action: Sequence[str], only: list[str]) -> None:
        """Run a child for these backends; if it hangs or dies at one, run another child for the rest."""
        others: list[asyncio.Task[None]] = []

        def on_frame(outcome: Outcome) -> bool:
            """Record the frame. Return whether the child is still needed."""
            self._record(outcome)
            op = outcome.frames[-1]["op"]
            if op == "plan":
                self.may_keep = action == ("list",) and not only and self._has_one_library()
            is_replaced = bool(others) and op != "step"
            is_ending = self.may_keep and op != "end"
            return not is_replaced and (self.plan is None or op == "plan" or bool(self._unanswered(only)) or is_ending)

        def on_silence(outcome: Outcome) -> None:
            self._keep_none()
            stuck = outcome.step()["backends"]
            rest = [name for name in self._unanswered(only) if name not in stuck]
            if stuck and rest:
                others.append(asyncio.ensure_future(self._run_child(action, rest)))

        faults = [json.dumps(self._faults)] if self._faults else []
        try:
            outcome = await self._prober.run(
                self._python,
                [*action, self._runtime, *only, *faults],
                on_frame=on_frame,
                on_silence=on_silence,
                keep=self._keep,
            )
        except BaseException:
            for other in others:
                other.cancel()
            raise
        if not self.outcome.frames and not self.outcome.trouble:
            self.outcome = outcome
        if self.kept is None:
            self._keep_none()
        await self._conclude(action, only, outcome, others)

    def _keep(self, child: ChildProcess, outcome: Outcome) -> bool:
        """Keep a child that has listed a sole device; return whether it is kept."""
        imports = [each for each in outcome.frames if each["op"] == "step" and each["what"].startswith("importing ")]
        if self.may_keep and len(imports) == 1 and self.sole_device() and outcome.frames[-1]["op"] == "end":
            self.kept = child
        return self.kept is child

    def _keep_none(self) -> None:
        if self.may_keep:
            self.may_keep = False
            self.answered.put_nowait("")

    def _has_one_library(self) -> bool:
        """Return whether one library reaches all backends of the plan: others could hide or spoil what it does."""
        plan = self.plan or []
        shared = set.intersection(*(set(backends()[name].libraries) for name in plan)) if plan else set()
        return bool(shared) and len(set(plan)) == len(plan)

    def sole_device(self) -> tuple[str, DetectedDevice] | None:
        """Return the only card with its backend, without a card the processor. None if there are more, or a fault."""
        answers = self.answers.items()
        if any(answer.failed or answer.left_out for _, answer in answers):
            return None
        listed = [(name, device) for name, answer in answers for device in answer.devices]
        cards = [each for each in listed if backends()[each[0]].kind != "cpu"] or listed
        if len(cards) != 1 or cards[0][1].fault or is_instance(cards[0][1].identity):
            return None
        ggml = backends()[cards[0][0]].ggml  # chooses its cards by a variable, when it is loaded
        return None if ggml and ggml.library == cards[0][1].library else cards[0]

    async def _conclude(
        self, action: Sequence[str], only: list[str], outcome: Outcome, others: list[asyncio.Task[None]]
    ) -> None:
        """Blame the backends of the last step, and list those that have no answer yet with another child.

        If the description of a card ended the child, that card alone is blamed.
        """
        blamed = outcome.step()["backends"]
        if self._note_fault(outcome):
            rest = blamed if others else self._unanswered(only)
            await asyncio.gather(self._run_child(action, rest), *others)
            return
        for name in blamed:
            self._answer(name, None, outcome)
        if others:
            await asyncio.gather(*others)
        elif blamed and (rest := self._unanswered(only)) and rest != only:
            await self._run_child(action, rest)
        elif outcome.trouble:  # with no step to blame, or the same one again, the next child would die as well
            for name in self._unanswered(only):
                self._answer(name, None, outcome)

    def _note_fault(self, outcome: Outcome) -> bool:
        """Note the card whose description ended a child; return whether there is one that was not known."""
        step = outcome.step()
        card = step.get("card")
        if card is None or not outcome.trouble or outcome.is_invalid or step["backends"][0] in self.answers:
            return False
        faults = self._faults.setdefault(step["backends"][0], {})
        is_new = card not in faults
        faults.setdefault(card, outcome.trouble)
        return is_new

    def _record(self, outcome: Outcome) -> None:
        frame = outcome.frames[-1]
        if frame["op"] == "plan":
            self.plan = self.plan or frame["backends"]
        elif frame["op"] != "step":
            for name in frame.get("backends", []):
                self._answer(name, frame, outcome)

    def _unanswered(self, only: list[str]) -> list[str]:
        wanted = [name for name in only if name in self.plan] if only and self.plan else self.plan or []
        return [name for name in wanted if name not in self.answers]

    def _answer(self, name: str, frame: Frame | None, outcome: Outcome) -> None:
        if name in self.answers:
            return
        if frame is not None and frame["op"] == "listed":
            devices = [replace(device, name=clean_name(device.name)) for device in frame["devices"]]
            self.answers[name] = Enumeration(devices, frame["versions"], frame["left_out"], None, outcome)
        else:
            self.answers[name] = Enumeration(refusal=frame, outcome=outcome)
        self.answered.put_nowait(name)
