"""Proofs: what each device is worth, found by children that may crash, hang or lie without harm.

One child lists the devices of a runtime; then one child per device computes there. At most two at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from backend.child.wire import Header
from backend.children import Child, Spawn
from backend.devices import Found, backends, device_id, reachable
from backend.engines import engines
from backend.lanes import Lane
from backend.types import Device, Hardware, Proof

AT_ONCE = 2
# What the packages need of the system, by the name in the loader's complaint.
_SYSTEM_LIBRARIES = {
    "libgomp.so.1": "Install it with the system's packages: sudo apt-get install -y libgomp1 (Debian, Ubuntu), "
    "sudo dnf install -y libgomp (Fedora); then refresh.",
}
_REINSTALL = "Install the runtime's packages again (for `base`: delete .venv and start the launcher), then refresh."
_DRIVER = "Update the device's driver, then refresh; run `doctor` for the details."


class Probes:
    """Keeps the known devices. `lane_of` gives the lane of a hardware id, so that no probe meets a running job."""

    def __init__(
        self,
        pythons: Mapping[str, str],
        limit_s: float,
        spawn: Spawn,
        lane_of: Callable[[str], Lane],
        on_change: Callable[[Device], None] = lambda _: None,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._pythons = pythons
        self._limit_s = limit_s
        self._spawn = spawn
        self._lane_of = lane_of
        self._on_change = on_change
        self._wanted = wanted
        self._places = asyncio.Semaphore(AT_ONCE)
        self._running = 0
        self._turns: dict[str | None, asyncio.Lock] = {}
        self._next: set[str | None] = set()  # the rounds that wait for one of their own kind to end
        self._idle = asyncio.Event()  # not before the first round
        self.started = False
        self.hardware: dict[str, Hardware] = {}
        self.devices: dict[str, Device] = {
            name: _probing(name, runtime)
            for runtime in pythons
            for name in reachable(runtime)
            if not backends()[name].indexed
        }

    @property
    def probing(self) -> bool:
        """Whether anything is being probed, or the first round has not ended."""
        return self._running > 0 or not self.started

    async def settled(self) -> None:
        """Waits until nothing is being probed."""
        await self._idle.wait()

    async def round(self, only: str | None = None) -> None:
        """Lists and proves the devices of all runtimes, or one device alone.

        While such a round runs, at most one more waits for its end: whoever asks meanwhile is served by that one.
        """
        if only in self._next:
            await self.settled()
            return
        self._running += 1
        self._idle.clear()
        try:
            async with self._turn(only), asyncio.TaskGroup() as group:
                for runtime in self._pythons:
                    group.create_task(self._runtime(runtime, only))
        finally:
            self._running -= 1
            self.started = True
            if not self._running:
                self._idle.set()

    @contextlib.asynccontextmanager
    async def _turn(self, only: str | None) -> AsyncIterator[None]:
        self._next.add(only)
        turn = self._turns.setdefault(only, asyncio.Lock())
        try:
            await turn.acquire()
        finally:
            self._next.discard(only)
        try:
            yield
        finally:
            turn.release()

    async def _runtime(self, runtime: str, only: str | None) -> None:
        async with self._places:
            frames, trouble = await self._child(runtime, ["list", runtime])
        listed = next((frame["devices"] for frame in frames if frame["op"] == "listed"), None)
        if listed is None:
            for name in reachable(runtime):
                id_ = device_id(backends()[name], 0)
                if only in (None, id_):
                    self._set(_refused(_probing(id_, runtime), frames, trouble))
            return
        async with asyncio.TaskGroup() as group:
            for fields in listed:
                backend = backends()[fields.pop("backend")]
                found = Found(**fields)
                id_ = device_id(backend, found.index)
                if only in (None, id_) and self._wanted(id_):
                    group.create_task(self._device(id_, backend.name, runtime, found))

    async def _device(self, id_: str, backend: str, runtime: str, found: Found) -> None:
        async with self._lane_of(found.hardware_id or id_).turn("probe"), self._places:
            device = replace(
                _probing(id_, runtime),
                name=found.name,
                kind=found.kind,
                stage="visible",
                hardware_id=found.hardware_id,
                memory_bytes=found.memory_bytes,
                memory_free_bytes=found.memory_free_bytes,
            )
            self._set(device)
            frames, trouble = await self._child(runtime, ["prove", backend, str(found.index), runtime])
            self._set(_judged(device, frames, trouble))
            if found.hardware_id:
                self._note_hardware(found)

    def _set(self, device: Device) -> None:
        self.devices[device.id] = device
        self._on_change(device)

    def _note_hardware(self, found: Found) -> None:
        assert found.hardware_id
        ids = [device.id for device in self.devices.values() if device.hardware_id == found.hardware_id]
        self.hardware[found.hardware_id] = Hardware(
            found.hardware_id, found.name, None, found.kind, found.memory_bytes, None, ids
        )

    async def _child(self, runtime: str, arguments: list[str]) -> tuple[list[Header], str | None]:
        """Runs one probe child; returns its frames, and in words how it failed if it did."""
        try:
            process = self._spawn(self._pythons[runtime], ["probe", *arguments])
        except OSError as error:
            return [], f"its interpreter {self._pythons[runtime]} cannot be started ({error.strerror})"
        child = Child(process, asyncio.get_running_loop())
        frames: list[Header] = []
        try:
            async with asyncio.timeout(self._limit_s):
                while frame := await child.receive():
                    frames.append(frame)
            code = await child.ended()
            return frames, None if code == 0 and not child.nonsense else child.ending()
        except TimeoutError:
            line = child.last_line()
            return frames, f"it hung: no end after {self._limit_s:g} s" + (f"; last line: {line}" if line else "")
        finally:
            child.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await child.ended()


def _probing(id_: str, runtime: str) -> Device:
    backend = backends()[id_.partition(":")[0]]
    return Device(
        id=id_,
        name=backend.label,
        backend=backend.name,
        kind=backend.kind,
        state="probing",
        runtimes=[runtime],
        reason="The device is being checked.",
        remedy="Wait a moment; the result follows by itself.",
        aliases=list(dict.fromkeys([*backend.aliases, *(alias for alias, _, _ in backend.engine_aliases)])),
    )


def _judged(device: Device, frames: list[Header], trouble: str | None) -> Device:
    by_op: dict[str, Any] = {frame["op"]: frame for frame in frames}
    if "proved" not in by_op:
        return _refused(device, frames, trouble)
    proof = Proof(**by_op["proved"]["proof"])
    checked: dict[str, dict[str, str]] = by_op.get("engines", {}).get("engines", {})
    versions = {**proof.versions, **{k: v for found in checked.values() for k, v in found.items()}}
    tasks = sorted({task for name in checked for task in engines()[name].tasks})
    if not checked:
        missing = by_op.get("no_engine", {}).get("detail", trouble or "none is made for it")
        return replace(
            device,
            state="broken",
            stage="runs",
            reason=f"The device computes, but no engine can be used on it: {missing}.",
            remedy=_remedy_for(missing),
            proof=proof,
            versions=versions,
        )
    return replace(
        device,
        state="ready",
        stage="runs",
        reason=None,
        remedy=None,
        proof=proof,
        versions=versions,
        engines=list(checked),
        tasks=tasks,
    )


def _refused(device: Device, frames: list[Header], trouble: str | None) -> Device:
    step = next((frame["what"] for frame in reversed(frames) if frame["op"] == "step"), "starting")
    for frame in frames:
        if frame["op"] == "wrong":
            reason = f"Wrong result: {frame['detail']}."
            return replace(device, state="broken", stage="visible", reason=reason, remedy=_DRIVER, proof=None)
        if frame["op"] == "missing":
            reason = f"The runtime's packages do not load ({step}): {frame['detail']}."
            remedy = _remedy_for(frame["detail"])
            return replace(device, state="unavailable", stage="none", reason=reason, remedy=remedy, proof=None)
    reason = f"The check failed while {step}: {trouble or 'it ended without an answer'}."
    return replace(device, state="broken", reason=reason, remedy=_DRIVER, proof=None)


def _remedy_for(missing: str) -> str:
    return next((remedy for library, remedy in _SYSTEM_LIBRARIES.items() if library in missing), _REINSTALL)
