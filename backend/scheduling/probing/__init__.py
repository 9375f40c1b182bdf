"""Probing: lists the devices of each runtime and proves each of them, in child processes that may crash or hang.

One child lists the devices of a runtime. Then one child for each device, which sees only that device, computes there.
Where one library lists a single card, or the processor alone, the listing child computes there itself: importing torch
takes seconds. Its list was sent before, so a crash or hang makes that device alone `broken`. A card is offered as soon
as its first engine is checked.
At most two run at once, and one at a time on one hardware. A child without output gives its place to the next one.
Each device is caught alone: an exception while one is listed, judged or stored makes that device `broken`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from backend.child.handle import ChildProcess, Spawn
from backend.common.clean_text import clean_name
from backend.common.device_api import DetectedDevice
from backend.common.known_errors import remedy as remedies
from backend.common.known_errors.place import BASE, place_of
from backend.common.types import Device, Hardware
from backend.devices import Backend, backends, device_id, library_of, visibility_variables
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing.classification import (
    proved,
    refused,
    sees_nothing,
    undescribed,
    unproved,
)
from backend.scheduling.probing.device_table import DeviceTable, RuntimeProblem
from backend.scheduling.probing.enumeration import Enumeration, Enumerator
from backend.scheduling.probing.failure_layers import cause_of
from backend.scheduling.probing.hidden_devices import (
    CUDA,
    Hiding,
    as_hidden,
    find_hidden,
    instance_backends,
    instance_entries,
    with_instances,
)
from backend.scheduling.probing.installable import fitting, missing_device_of_card
from backend.scheduling.probing.inventory import query_hardware
from backend.scheduling.probing.prober import Outcome, Prober, end_child
from backend.scheduling.probing.proof_cache import ProofCache

log = logging.getLogger(__name__)
AT_ONCE = 2
SURVEY_S = 3.0  # timeout of the hardware survey for a proof: a driver's tool may hang
_INTERPRETER = (
    "Set `runtimes` in config.yaml to a Python that has torch, onnxruntime or similar; then restart the server."
)
_REPORT = "Refresh the device to repeat the check. If it fails again, report the server's log."


@dataclass(frozen=True)
class _Listed:
    """A device as a runtime lists it, with the versions of the library."""

    id: str
    runtime: str
    python: str
    backend: str
    detected: DetectedDevice
    versions: dict[str, str]


class ProbeService:
    """Probes devices and keeps what is known of them."""

    def __init__(
        self,
        pythons: Mapping[str, str],
        limit_s: float,
        spawn: Spawn,
        queue_of: Callable[[str], DeviceQueue],
        on_change: Callable[[Device], None] = lambda _: None,
        is_enabled: Callable[[str], bool] = lambda _: True,
        is_occupied: Callable[[str], bool] = lambda _: False,
        proofs: ProofCache | None = None,
        inventory: Callable[[Spawn], Awaitable[list[Hardware]]] | None = None,
    ) -> None:
        """`pythons` are the interpreters by runtime; `limit_s` is the timeout of a probe.

        `queue_of` returns the queue of a hardware id, so that no probe meets a running job. `is_occupied` returns
        whether a worker uses a device, which is then not probed. `is_enabled` returns whether the settings allow it.
        `on_change` is a callback for each device that changes. The last five are optional.
        """
        self._pythons = pythons
        self._spawn = spawn
        self._queue_of = queue_of
        self._is_occupied = is_occupied
        self._proofs = proofs or ProofCache()
        self._inventory = inventory or self._query_hardware
        self._prober = Prober(spawn, limit_s, AT_ONCE)
        self._prober.patience = (
            3.0 if sys.platform == "win32" else 1.0
        )  # a virus scanner reads every file at the first start
        self._running = 0
        self._turns: dict[str | None, asyncio.Lock] = {}
        self._waiting_rounds: set[str | None] = set()  # kinds of rounds that wait for one of their kind to end
        self._idle = asyncio.Event()  # first set after the first round
        self._checking: dict[str, set[str]] = {}  # by device: the runtimes whose proofs run
        self._checked = asyncio.Event()
        self.started = False
        self.probing = True  # whether anything is being probed, or the first round has not ended
        self.table = DeviceTable(on_change, is_enabled)
        self.devices = self.table.devices  # all known devices by id
        for backend in backends().values():
            if backend.kind == "cpu":
                self.table.set_device(BASE, unproved(device_id(backend, 0), backend, BASE))

    @property
    def hardware(self) -> dict[str, Hardware]:
        """All hardware by id, with the devices that reach it."""
        return self.table.hardware

    def driver(self, hardware_id: str) -> str | None:
        """Return name and version of a hardware's driver, None if unknown."""
        hardware = self.hardware.get(hardware_id)
        return hardware.driver if hardware else None

    def detected_device(self, device: str, runtime: str) -> DetectedDevice | None:
        """Return a device as a runtime lists it, None if it does not."""
        return self.table.detected.get((device, runtime))

    async def wait_until_idle(self) -> None:
        """Wait until all probes have ended."""
        await self._idle.wait()

    async def probe(self, only: str | None = None, runtime: str | None = None) -> None:
        """List and prove the devices of all runtimes (default), of one runtime, or only one device.

        While such a round runs, at most one more of its kind waits: later callers wait for that one.
        """
        kind = only if runtime is None else f"runtime {runtime}"
        if kind in self._waiting_rounds:
            await self.wait_until_idle()
            return
        self._running += 1
        self.probing = True
        self._idle.clear()
        log.info("probing started", extra={"device": only, "runtime": runtime})
        try:
            async with self._turn(kind), asyncio.TaskGroup() as group:
                survey = group.create_task(self._survey())
                for name, python in list(self._pythons.items()):
                    if runtime in (None, name):
                        group.create_task(self._probe_runtime(name, python, only, group, survey))
            for step in (self.table.offer, self.table.compare):
                with _logged("updating the device list failed"):
                    step()
        finally:
            self._running -= 1
            self.started, self._prober.patience = True, 1.0
            if not self._running:
                self.probing = False
                self._idle.set()
                log.info("probing finished", extra={"ready": self._ready_devices()})

    def _ready_devices(self) -> list[str]:
        return [device.id for device in self.devices.values() if device.state == "ready"]

    @contextlib.asynccontextmanager
    async def _turn(self, kind: str | None) -> AsyncIterator[None]:
        self._waiting_rounds.add(kind)
        turn = self._turns.setdefault(kind, asyncio.Lock())
        try:
            await turn.acquire()
        finally:
            self._waiting_rounds.discard(kind)
        try:
            yield
        finally:
            turn.release()

    async def _survey(self) -> None:
        with _logged("listing the hardware failed"):
            self._note_hardware(await self._inventory(self._spawn))

    async def _query_hardware(self, spawn: Spawn) -> list[Hardware]:
        return await query_hardware(spawn, on_list=self._note_hardware)

    def _note_hardware(self, items: list[Hardware]) -> None:
        self.table.surveyed = {item.id: item for item in items}

    async def _probe_runtime(
        self, runtime: str, python: str, only: str | None, group: asyncio.TaskGroup, survey: asyncio.Task[None]
    ) -> None:
        """List the devices of a runtime and start their proofs. An exception becomes a problem of the runtime."""
        try:
            await self._list_and_prove(runtime, python, only, group, survey)
        except Exception as error:  # noqa: BLE001 (the other runtimes and the CPU stay)
            log.exception("probing a runtime failed", extra={"runtime": runtime})
            detail = f"The runtime {runtime} cannot be probed: {_one_line(error)}."
            self.table.runtime_problems[runtime] = RuntimeProblem(detail, _REPORT)

    async def _list_and_prove(
        self, runtime: str, python: str, only: str | None, group: asyncio.TaskGroup, survey: asyncio.Task[None]
    ) -> None:
        backend = [only.partition(":")[0]] if only else []
        visible = await self._list_visible(runtime, python, backend)
        instances = await self._list_instances(runtime, python, backend)
        listing = Enumerator(self._prober, python, runtime)
        running = group.create_task(listing.run(backend))
        waiting: list[_Listed] = []  # until it is known whether the listing child can prove one of them
        try:
            while (name := await listing.answered.get()) is not None:
                if name and not listing.answers[name].failed and runtime in self._pythons:  # else removed meanwhile
                    waiting += self._listed(name, runtime, python, only, listing.answers[name], visible, instances)
                if not listing.may_keep:
                    self._start_proofs(waiting, group, survey)
            sole = None
            if listing.kept:
                sole = next((each for each in waiting if (each.backend, each.detected) == listing.sole_device()), None)
            proof = group.create_task(self._probe_device(sole, survey, listing.kept)) if sole else None
            self._start_proofs([each for each in waiting if each is not sole], group, survey)
            await running
            await survey  # its cards decide which missing devices are worth reporting
            if runtime in self._pythons:
                self._conclude(runtime, listing, only)
            if proof:
                await proof
        finally:
            if listing.kept:
                await end_child(listing.kept)

    def _start_proofs(self, listed: list[_Listed], group: asyncio.TaskGroup, survey: asyncio.Task[None]) -> None:
        for each in listed:
            group.create_task(self._probe_device(each, survey))
        listed.clear()

    def _listed(
        self,
        name: str,
        runtime: str,
        python: str,
        only: str | None,
        answer: Enumeration,
        visible: dict[str, Enumeration],
        instances: dict[str, dict[str, list[DetectedDevice]]],
    ) -> list[_Listed]:
        """Return the devices of a backend that are to be proved; record those that are hidden or not described."""
        found = []
        with _logged("judging listed devices failed", runtime=runtime, backend=name):
            devices = with_instances(answer.devices, {entry: each.get(name, []) for entry, each in instances.items()})
            hidden = find_hidden(name, devices, visible.get(name)) if visible else {}
            for id_, detected in self.table.numbered(name, runtime, devices):
                if only in (None, id_):
                    hiding = hidden.get(detected.position)
                    if self._note_listed(id_, runtime, detected, hiding, answer.outcome):
                        found.append(_Listed(id_, runtime, python, name, detected, answer.versions))
        return found

    def _note_listed(
        self, id_: str, runtime: str, detected: DetectedDevice, hiding: Hiding | None, outcome: Outcome
    ) -> bool:
        """Record a device that is hidden or that its library could not describe; return whether to prove it."""
        try:
            if hiding is None and not detected.fault:
                return True
            listed = self.table.listed(id_, runtime, detected)
            if hiding:
                device = as_hidden(listed, hiding)
            else:
                device = undescribed(listed, str(detected.fault), outcome)
            self.table.set_device(runtime, device)
        except Exception as error:  # noqa: BLE001 (any fault of one device)
            self._set_unjudged(id_, runtime, error)
        return False

    async def _list_visible(self, runtime: str, python: str, only: list[str]) -> dict[str, Enumeration]:
        """Return what a runtime lists under the user's visibility variables; empty if none is set."""
        if not any(name in os.environ for name in visibility_variables()):
            return {}
        listing = Enumerator(self._prober, python, runtime)
        await listing.run(only, "list-visible")
        return listing.answers

    async def _list_instances(
        self, runtime: str, python: str, only: list[str]
    ) -> dict[str, dict[str, list[DetectedDevice]]]:
        """Return what a runtime lists for each MIG instance that the user's variable names, by entry and backend."""
        names = [name for name in instance_backends() if not only or name in only]
        found = {}
        for entry in instance_entries() if names else []:
            listing = Enumerator(self._prober, python, runtime)
            await listing.run(names, "list-with", f"{CUDA}={entry}")
            found[entry] = {name: answer.devices for name, answer in listing.answers.items()}
        return found

    async def _probe_device(
        self, listed: _Listed, survey: asyncio.Task[None], kept: ChildProcess | None = None
    ) -> None:
        """Prove one device, in the child that listed it if that was kept. An exception makes this device `broken`."""
        try:
            await self._prove_device(listed, survey, kept)
        except Exception as error:  # noqa: BLE001 (any fault of one device)
            self._set_unjudged(listed.id, listed.runtime, error)

    def _set_unjudged(self, id_: str, runtime: str, error: Exception) -> None:
        log.error("judging a device failed", exc_info=error, extra={"device": id_, "runtime": runtime})
        backend = backends()[id_.partition(":")[0]]
        device = self.table.report(runtime, id_) or unproved(id_, backend, runtime)
        reason = f"Its check failed in the server: {_one_line(error)}."
        failed = replace(device, state="broken", reason=reason, remedy=_REPORT, proof=None, layer="computation")
        with _logged("storing a device failed", device=id_, runtime=runtime):
            self.table.set_device(runtime, failed)

    async def _prove_device(
        self, listed: _Listed, survey: asyncio.Task[None], kept: ChildProcess | None = None
    ) -> None:
        id_, runtime, detected = listed.id, listed.runtime, listed.detected
        if detected.identity:  # the survey is needed to match it to a card, and so to a queue
            await asyncio.wait({survey}, timeout=SURVEY_S)
        device = self.table.listed(id_, runtime, detected)
        before = self.table.report(runtime, id_)
        if before and before.state == "ready" and device.kind not in ("cpu", "emulated") and self._is_occupied(id_):
            log.debug("probe skipped, a worker uses the device", extra={"device": id_, "runtime": runtime})
            return
        hardware = self.table.surveyed.get(device.hardware_id or "")
        driver = hardware.driver if hardware else None
        key = self._proofs.key(device, runtime, listed.python, listed.versions, driver)
        earlier = self._proofs.get(key) if not self.started else None
        if earlier:
            self.table.set_device(runtime, earlier)
        cut_off = replace(
            device, state="broken", reason="Its check was interrupted.", remedy="Refresh the device to repeat it."
        )
        judged = earlier or (before if before and before.state != "probing" else cut_off)
        is_new = judged is cut_off
        self._checking.setdefault(id_, set()).add(runtime)
        try:

            def announce() -> None:
                if not earlier and runtime in self._pythons:
                    self.table.set_device(runtime, device)

            def on_frame(outcome: Outcome) -> bool:
                """Offer a new card with the engines that are checked so far: those to come may import for seconds."""
                if is_new and device.kind != "cpu" and outcome.frames[-1]["op"] == "engines":
                    with _logged("offering a device early failed", device=id_, runtime=runtime):
                        so_far = proved(device, runtime, outcome, is_complete=False)
                        if so_far.state == "ready" and so_far.engines and runtime in self._pythons:
                            self.table.set_device(runtime, so_far)
                return True

            outcome = await self._prove(listed, device, announce, on_frame, kept)
            judged = proved(device, runtime, outcome)
            with _logged("storing a proof failed", device=id_, runtime=runtime):
                self._proofs.put(key, judged)
            _log_proof(judged, runtime)
        finally:  # no device stays `probing` after a round, however it ends
            if runtime in self._pythons:
                self.table.set_device(runtime, judged)
            self._checking[id_].discard(runtime)
            self._checked.set()

    async def _prove(
        self,
        listed: _Listed,
        device: Device,
        announce: Callable[[], None],
        on_frame: Callable[[Outcome], bool],
        kept: ChildProcess | None,
    ) -> Outcome:
        """Run the proof; while the process sees no device by one selector, run it again with the next one."""
        detected = listed.detected
        while True:
            request = {"backend": device.backend, "found": asdict(detected), "runtime": listed.runtime}
            outcome = await self._prober.run(
                listed.python,
                ["prove", json.dumps({**request, "device": device.id})],
                turn=self._queue_of(device.hardware_id or device.id).acquire("probe"),
                on_start=announce,
                on_frame=on_frame,
                kept=kept,
            )
            if kept and not outcome.frames:  # it had ended: another child proves the device
                kept = None
                continue
            if kept and detected.selectors:  # no variable was used, so a worker gets the position, which is certain
                detected = replace(detected, selectors=[])
                self.table.detected[device.id, listed.runtime] = detected
            if len(detected.selectors) < 2 or not sees_nothing(outcome, device.backend):
                return outcome
            detected = replace(detected, selectors=detected.selectors[1:])
            self.table.detected[device.id, listed.runtime] = detected  # a worker uses the same selector

    async def wait_until_checked(self, devices: Collection[str]) -> None:
        """Wait until no engine of these devices is being checked."""
        while any(self._checking.get(device) for device in devices):
            self._checked.clear()
            await self._checked.wait()

    def is_checking(self, device: str) -> bool:
        """Return whether engines of a device are being checked, so that it may offer more in a moment."""
        return bool(self._checking.get(device))

    def _conclude(self, runtime: str, listing: Enumerator, only: str | None) -> None:
        """Record expected devices that a runtime does not have, and problems of the runtime as such."""
        if listing.plan is None:  # no child came as far as listing the libraries
            refusals = {facts.name: Enumeration(outcome=listing.outcome) for facts in _of_runtime(runtime)}
        else:
            refusals = {name: answer for name, answer in listing.answers.items() if not answer.devices}
        if only is None:
            self._note_trouble(runtime, refusals, listing)
        served = {
            library_of(name)
            for name, answer in listing.answers.items()
            if answer.devices and backends()[name].kind != "cpu"
        }
        missing = [
            name
            for name, answer in refusals.items()
            if answer.failed or not (answer.quiet or library_of(name) in served or (served and self._has_none(name)))
        ]
        for name in self._expected(runtime, missing):
            for id_ in self.table.ids(runtime, name):
                if only not in (None, id_):
                    continue
                try:
                    self.table.set_device(runtime, self._refused(id_, runtime, refusals[name]))
                except Exception as error:  # noqa: BLE001 (any fault of one device)
                    self._set_unjudged(id_, runtime, error)

    def _refused(self, id_: str, runtime: str, listed: Enumeration) -> Device:
        backend = backends()[id_.partition(":")[0]]
        judged = refused(unproved(id_, backend, runtime), listed.outcome, listed.refusal)
        cards = [] if backend.kind == "cpu" else fitting(backend, self.table.surveyed.values())
        return missing_device_of_card(judged, cards[0]) if cards else judged

    def _note_trouble(self, runtime: str, refusals: Mapping[str, Enumeration], listing: Enumerator) -> None:
        self.table.runtime_problems.pop(runtime, None)
        failed = next((name for name, answer in refusals.items() if answer.failed), None)
        omitted = [
            f"{answer.left_out} more {name} devices" for name, answer in listing.answers.items() if answer.left_out
        ]
        if failed:
            judged = self._refused(device_id(backends()[failed], 0), runtime, refusals[failed])
            self.table.runtime_problems[runtime] = RuntimeProblem(str(judged.reason), str(judged.remedy))
        elif listing.plan is None:
            trouble = (listing.outcome.trouble or "it ended without an answer").rstrip(".")
            place = place_of(runtime, self._pythons[runtime])
            remedy = cause_of(f"while starting: {trouble}", remedy=_INTERPRETER, place=place).remedy
            self.table.runtime_problems[runtime] = RuntimeProblem(
                f"The runtime {runtime} cannot be probed: {trouble}.", remedy
            )
        elif not listing.plan:
            detail = f"The interpreter of the runtime {runtime} has no library that reaches devices."
            self.table.runtime_problems[runtime] = RuntimeProblem(detail, _INTERPRETER)
        elif omitted:
            detail = f"The runtime {runtime} lists {', '.join(omitted)} than there are ids for; they are left out."
            remedy = remedies.reinstalled(place_of(runtime, self._pythons[runtime]))
            self.table.runtime_problems[runtime] = RuntimeProblem(detail, remedy)

    def _has_none(self, name: str) -> bool:
        """Return whether this machine has no card for a backend, so that its absence needs no reason."""
        return backends()[name].kind != "cpu" and not fitting(backends()[name], self.table.surveyed.values())

    def _expected(self, runtime: str, names: list[str]) -> list[str]:
        """Return the backends that should have a device: by cards, by the runtime's name, else one for each library."""
        always = [name for name in names if backends()[name].kind == "cpu"]
        others = sorted((n for n in names if n not in always), key=lambda name: backends()[name].rank)
        fitting_names = [name for name in others if fitting(backends()[name], self.table.surveyed.values())]
        if runtime == BASE:
            return always + [name for name in fitting_names if BASE in backends()[name].runtimes]
        own = [name for name in others if runtime in _made_for(backends()[name])]
        by_library = {library_of(name): name for name in reversed(others)}
        return always + (fitting_names or own or list(by_library.values()))


@contextlib.contextmanager
def _logged(message: str, **fields: str) -> Iterator[None]:
    """Log an exception of the body and go on: one runtime or device must not end the round of the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the border of one device or runtime)
        log.error(message, exc_info=error, extra=fields)


def _one_line(error: Exception) -> str:
    return clean_name(f"{type(error).__name__}: {error}", 300).rstrip(".")


def _log_proof(device: Device, runtime: str) -> None:
    level = logging.INFO if device.state == "ready" else logging.WARNING
    fields = {"device": device.id, "runtime": runtime, "state": device.state, "engines": device.engines or None}
    log.log(level, "device probed", extra={**fields, "reason": device.reason, "layer": device.layer})


def _made_for(facts: Backend) -> set[str]:
    """Return the runtimes that are made for a backend: its first one, and those that are offered for its hardware."""
    return {facts.runtimes[0], *(offer.runtime for offer in facts.offers)}


def _of_runtime(runtime: str) -> list[Backend]:
    """Return the backends that a runtime is made for, by its name."""
    return [facts for facts in backends().values() if runtime in facts.runtimes]
