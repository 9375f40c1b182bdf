"""Proofs: what each device is worth, found by children that may crash, hang or lie without harm.

A child lists the devices of a runtime; then one child per device, which sees that device alone, computes there. At most
two at once, one after the other on one hardware; who is silent holds nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, replace

from backend.child.handle import Spawn
from backend.common.device_api import DetectedDevice
from backend.common.types import Device, Hardware
from backend.devices import Backend, backends, device_id, library_of, visibility_variables
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing.classification import BASE, REINSTALL, proved, refused, unproved
from backend.scheduling.probing.device_table import DeviceTable, Trouble
from backend.scheduling.probing.enumeration import Enumeration, Enumerator
from backend.scheduling.probing.installable import beside_card, fitting
from backend.scheduling.probing.inventory import query_hardware
from backend.scheduling.probing.prober import Prober
from backend.scheduling.probing.proof_cache import ProofCache

AT_ONCE = 2
SURVEY_S = 3.0  # a driver's tool that hangs holds up no proof
_INTERPRETER = (
    "See that `runtimes` in config.yaml names a Python with torch, onnxruntime or the like; then start again."
)


class ProbeService:
    """Keeps the known devices. `lane_of` gives the lane of a hardware id, so that no probe meets a running job.

    `occupied` tells whether a worker lives on a device, which is then not probed from outside.
    """

    def __init__(
        self,
        pythons: Mapping[str, str],
        limit_s: float,
        spawn: Spawn,
        lane_of: Callable[[str], DeviceQueue],
        on_change: Callable[[Device], None] = lambda _: None,
        wanted: Callable[[str], bool] = lambda _: True,
        occupied: Callable[[str], bool] = lambda _: False,
        book: ProofCache | None = None,
        inventory: Callable[[Spawn], Awaitable[list[Hardware]]] = query_hardware,
    ) -> None:
        self._pythons = pythons
        self._spawn = spawn
        self._lane_of = lane_of
        self._occupied = occupied
        self._book = book or ProofCache()
        self._inventory = inventory
        self._prober = Prober(spawn, limit_s, AT_ONCE)
        self._prober.patience = 3.0 if sys.platform == "win32" else 1.0  # there the first start scans every file
        self._running = 0
        self._turns: dict[str | None, asyncio.Lock] = {}
        self._next: set[str | None] = set()  # the rounds that wait for one of their own kind to end
        self._idle = asyncio.Event()  # not before the first round
        self.started = False
        self.table = DeviceTable(on_change, wanted)
        for backend in backends().values():
            if backend.kind == "cpu":
                self.table.set_device(BASE, unproved(device_id(backend, 0), backend, BASE))

    @property
    def devices(self) -> dict[str, Device]:
        """All known devices by id."""
        return self.table.devices

    @property
    def hardware(self) -> dict[str, Hardware]:
        """All hardware by id, with the devices that reach it."""
        return self.table.hardware

    @property
    def probing(self) -> bool:
        """Whether anything is being probed, or the first round has not ended."""
        return self._running > 0 or not self.started

    def driver(self, hardware_id: str) -> str | None:
        """Name and version of a hardware's driver, if they are known."""
        known = self.hardware.get(hardware_id)
        return known.driver if known else None

    def detected_device(self, device: str, runtime: str) -> DetectedDevice | None:
        """A device as a runtime lists it."""
        return self.table.found.get((device, runtime))

    async def wait_until_idle(self) -> None:
        """Waits until nothing is being probed."""
        await self._idle.wait()

    async def probe(self, only: str | None = None, runtime: str | None = None) -> None:
        """Lists and proves the devices of all runtimes or of one, or one device alone.

        While such a round runs, at most one more waits for its end: whoever asks meanwhile is served by that one.
        """
        kind = only if runtime is None else f"runtime {runtime}"
        if kind in self._next:
            await self.wait_until_idle()
            return
        self._running += 1
        self._idle.clear()
        try:
            async with self._turn(kind), asyncio.TaskGroup() as group:
                survey = group.create_task(self._survey())
                for name, python in list(self._pythons.items()):
                    if runtime in (None, name):
                        group.create_task(self._runtime(name, python, only, group, survey))
            self.table.offer()
            self.table.compare()
        finally:
            self._running -= 1
            self.started, self._prober.patience = True, 1.0
            if not self._running:
                self._idle.set()

    @contextlib.asynccontextmanager
    async def _turn(self, kind: str | None) -> AsyncIterator[None]:
        self._next.add(kind)
        turn = self._turns.setdefault(kind, asyncio.Lock())
        try:
            await turn.acquire()
        finally:
            self._next.discard(kind)
        try:
            yield
        finally:
            turn.release()

    async def _survey(self) -> None:
        self.table.surveyed = {item.id: item for item in await self._inventory(self._spawn)}

    async def _runtime(
        self, runtime: str, python: str, only: str | None, group: asyncio.TaskGroup, survey: asyncio.Task[None]
    ) -> None:
        backend = [only.partition(":")[0]] if only else []
        visible = await self._visible(runtime, python, backend)
        listing = Enumerator(self._prober, python, runtime)
        running = group.create_task(listing.run(backend))
        while (name := await listing.said.get()) is not None:
            answer = listing.answers[name]
            if answer.failed:
                continue
            if runtime not in self._pythons:  # removed meanwhile: nothing is said of it any more
                continue
            hidden = _hidden(name, answer.devices, visible.get(name)) if visible else {}
            for id_, found in self.table.numbered(name, runtime, answer.devices):
                if only not in (None, id_):
                    continue
                if why := hidden.get(found.position):
                    self.table.set_device(runtime, _hidden_device(self.table.listed(id_, runtime, found), why))
                else:
                    group.create_task(self._device(id_, runtime, python, found, answer.versions, survey))
        await running
        await survey  # whose cards decide which of those that are not there are worth a word
        if runtime in self._pythons:
            self._conclude(runtime, listing, only)

    async def _visible(self, runtime: str, python: str, only: list[str]) -> dict[str, Enumeration]:
        """What is listed under the variables that hide devices, where the user has set such."""
        if not any(name in os.environ for name in visibility_variables()):
            return {}
        listing = Enumerator(self._prober, python, runtime)
        await listing.run(only, visible=True)
        return listing.answers

    async def _device(
        self,
        id_: str,
        runtime: str,
        python: str,
        found: DetectedDevice,
        versions: dict[str, str],
        survey: asyncio.Task[None],
    ) -> None:
        if found.identity:  # which card is it, and so whose lane does it take?
            await asyncio.wait({survey}, timeout=SURVEY_S)
        device = self.table.listed(id_, runtime, found)
        before = self.table.by(runtime, id_)
        if before and before.state == "ready" and device.kind not in ("cpu", "emulated") and self._occupied(id_):
            return
        hardware = self.table.surveyed.get(device.hardware_id or "")
        key = self._book.key(device, runtime, python, versions, hardware.driver if hardware else None)
        earlier = self._book.get(key) if not self.started else None
        if earlier:
            self.table.set_device(runtime, earlier)
        order = {"backend": device.backend, "found": asdict(found), "runtime": runtime, "device": id_}
        cut_off = replace(device, state="broken", reason="Its check was cut off.", remedy="Refresh: it is done again.")
        judged = earlier or (before if before and before.state != "probing" else cut_off)
        try:
            outcome = await self._prober.run(
                python,
                ["prove", json.dumps(order)],
                before=self._lane_of(device.hardware_id or id_).acquire("probe"),
                started=lambda: (
                    None if earlier or runtime not in self._pythons else self.table.set_device(runtime, device)
                ),
            )
            judged = proved(device, runtime, outcome)
            self._book.put(key, judged)
        finally:  # whatever ends a round leaves nothing `probing`
            if runtime in self._pythons:
                self.table.set_device(runtime, judged)

    def _conclude(self, runtime: str, listing: Enumerator, only: str | None) -> None:
        """Says what did not come of a runtime, of the devices that somebody would expect, and of itself."""
        if listing.plan is None:  # no child ever got as far as to look which libraries there are
            refusals = {facts.name: Enumeration(outcome=listing.outcome) for facts in _of_runtime(runtime)}
        else:
            refusals = {name: one for name, one in listing.answers.items() if not one.devices}
        if only is None:
            self._note_trouble(runtime, refusals, listing)
        served = {
            library_of(name) for name, one in listing.answers.items() if one.devices and backends()[name].kind != "cpu"
        }
        missed = [name for name, one in refusals.items() if one.failed or not (one.quiet or library_of(name) in served)]
        for name in self._expected(runtime, missed):
            for id_ in self.table.ids(runtime, name):
                if only in (None, id_):
                    self.table.set_device(runtime, self._refused(id_, runtime, refusals[name]))

    def _refused(self, id_: str, runtime: str, listed: Enumeration) -> Device:
        backend = backends()[id_.partition(":")[0]]
        judged = refused(unproved(id_, backend, runtime), listed.outcome, listed.refusal)
        cards = [] if backend.kind == "cpu" else fitting(backend, self.table.surveyed.values())
        return beside_card(judged, cards[0]) if cards else judged

    def _note_trouble(self, runtime: str, refusals: Mapping[str, Enumeration], listing: Enumerator) -> None:
        self.table.troubles.pop(runtime, None)
        failed = next((name for name, one in refusals.items() if one.failed), None)
        beyond = [f"{one.left_out} more {name} devices" for name, one in listing.answers.items() if one.left_out]
        if failed:
            judged = self._refused(device_id(backends()[failed], 0), runtime, refusals[failed])
            self.table.troubles[runtime] = Trouble(str(judged.reason), str(judged.remedy))
        elif listing.plan is None:
            trouble = (listing.outcome.trouble or "it ended without an answer").rstrip(".")
            self.table.troubles[runtime] = Trouble(
                f"The runtime {runtime} cannot be looked at: {trouble}.", _INTERPRETER
            )
        elif not listing.plan:
            detail = f"The interpreter of the runtime {runtime} has none of the libraries that reach devices."
            self.table.troubles[runtime] = Trouble(detail, _INTERPRETER)
        elif beyond:
            detail = f"The runtime {runtime} lists {', '.join(beyond)} than can have a name here; they are left out."
            self.table.troubles[runtime] = Trouble(detail, REINSTALL)

    def _expected(self, runtime: str, names: list[str]) -> list[str]:
        """Those of which somebody would expect a device: by the cards here, by the runtime's name, or else one."""
        always = [name for name in names if backends()[name].kind == "cpu"]
        others = sorted((n for n in names if n not in always), key=lambda name: backends()[name].rank)
        fit = [name for name in others if fitting(backends()[name], self.table.surveyed.values())]
        if runtime == BASE:
            return always + [name for name in fit if BASE in backends()[name].runtimes]
        own = [name for name in others if backends()[name].runtimes[0] == runtime]
        by_library = {library_of(name): name for name in reversed(others)}
        return always + (fit or own or list(by_library.values()))


def _of_runtime(runtime: str) -> list[Backend]:
    """The backends that a runtime is made for, by its name."""
    return [facts for facts in backends().values() if runtime in facts.runtimes]


def _hidden(backend: str, listed: list[DetectedDevice], visible: Enumeration | None) -> dict[int, str]:
    """By position: the variables that hide a device, with their values. Without identity it cannot be told which."""
    names = [name for name in visibility_variables(backend) if name in os.environ]
    if not names or visible is None:
        return {}
    words = ", ".join(f"{name}={os.environ[name]}" for name in names)
    left = [found.identity for found in visible.devices]
    gone = [found for found in listed if not left or (found.identity and found.identity not in left)]
    return {found.position: words for found in gone}


def _hidden_device(device: Device, why: str) -> Device:
    return replace(
        device,
        state="unavailable",
        reason=f"The server was started with {why}, which hides it.",
        remedy="Start the server without that variable, or with this card in it.",
        layer="permission",
    )
