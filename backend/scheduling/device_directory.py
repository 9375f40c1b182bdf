"""The directory of devices: what each device can do now, its queue, and which device a caller's name means."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from backend.child.handle import Spawn
from backend.common.config.settings import Settings
from backend.common.device_api import DetectedDevice
from backend.common.errors import Configuration, UnknownDevice
from backend.common.types import Device, Hardware, Speed
from backend.devices import backends
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.device_resolution import Resolution, apply_default, in_order, resolve, unreachable
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.proof_cache import ProofCache
from backend.scheduling.quarantine import Quarantine, WorkerDeath
from backend.scheduling.ranking import ANY, RankingQuery

log = logging.getLogger(__name__)
StartTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Revisioned(Protocol):
    """A collection that counts its changes."""

    revision: int


class DeviceDirectory:
    """The devices of this machine, overlaid with the user's settings, the quarantine and the measured speeds.

    No method waits. Without `open` proofs are kept for this process alone.
    """

    def __init__(
        self,
        settings: Settings,
        pythons: Mapping[str, str],
        spawn: Spawn,
        *,
        start_task: StartTask,
        measurements: Revisioned,
        measured_speeds: Callable[[Device], list[Speed]],
        is_occupied: Callable[[str], bool],
        on_change: Callable[[Device], None],
    ) -> None:
        """`pythons` are the interpreters to probe, by runtime; a later change of the mapping counts.

        `start_task` runs a coroutine in the background. `measured_speeds` returns the speeds of a device that hold, and
        `measurements` counts the changes of what they are made from. `is_occupied` returns whether a worker uses a
        device, which is then not probed. `on_change` is called with a device whenever it changes, the overlay included.
        Raises Configuration if `device` in the settings names no device.
        """
        self._settings = settings
        self._start_task = start_task
        self._measurements = measurements
        self._measured_speeds = measured_speeds
        self._on_change = on_change
        # By device id: the device as probes left it, the stamp of its overlay, and the device with the overlay.
        self._overlaid: dict[str, tuple[Device, tuple[int, int, str | None], Device]] = {}
        self._queues: dict[str, DeviceQueue] = {}
        self._loading_locks: dict[str, asyncio.Lock] = {}
        self._proofs = ProofCache()
        self._check_default_device()
        self.quarantine = Quarantine()
        self.probes = ProbeService(
            pythons,
            settings.supervision.probe_s,
            spawn,
            self.queue,
            self._note_change,
            self._is_enabled,
            is_occupied,
            self._proofs,
        )

    def open(self, proofs_file: Path) -> None:
        """Load the proofs of earlier starts, and keep new ones in the same file."""
        self._proofs.open(proofs_file)

    def known_devices(self) -> list[Device]:
        """Return all devices found so far, in the documented order."""
        return [self._overlay(device) for device in sorted(self.probes.devices.values(), key=in_order)]

    def device(self, device_id: str) -> Device:
        """Return one device. A well-formed id without hardware behind it returns an `unavailable` device."""
        if device := self.probes.devices.get(device_id):
            return self._overlay(device)
        return self._overlay(unreachable(device_id, backends()[device_id.partition(":")[0]]))

    def hardware(self) -> list[Hardware]:
        """Return the hardware behind the devices found so far."""
        return list(self.probes.hardware.values())

    def driver(self, hardware_id: str | None) -> str | None:
        """Return name and version of a hardware's driver, None if unknown."""
        hardware = self.probes.table.surveyed.get(hardware_id or "")
        return hardware.driver if hardware else None

    def detected_device(self, device_id: str, runtime: str) -> DetectedDevice | None:
        """Return a device as a runtime lists it, None if the runtime does not list it."""
        return self.probes.detected_device(device_id, runtime)

    def resolve(
        self, asked: str, task: str = "text", engine: str | None = None, query: RankingQuery = ANY
    ) -> Resolution:
        """Return the device that an id, an alias or `auto` means now. Raises UnknownDevice, Validation.

        `auto` takes the device that the settings name, else the one measured fastest with the query's model.
        """
        name = apply_default(asked, self._settings.device)
        devices = {device.id: device for device in self.known_devices()}
        surveyed = self.probes.table.surveyed.values()
        return resolve(name, devices, surveyed, task=task, engine=engine, query=query)

    def refresh(self, asked: str | None = None) -> None:
        """Probe one device again, or all by default. Raises UnknownDevice."""
        self._start_task(self.probes.probe(self.resolve(asked).resolved if asked else None))

    def release(self, asked: str, model: str | None) -> None:
        """Lift the quarantine of a model on a device (default: of all models) and probe it. Raises UnknownDevice."""
        if device_id := self.resolve(asked).resolved:
            self.quarantine.release(device_id, model)
            log.info("quarantine lifted", extra={"device": device_id, "model": model})
        self.refresh(asked)

    def record_worker_death(self, death: WorkerDeath) -> None:
        """Count the death of a worker. One that starts a quarantine is logged, and the device is probed again."""
        if self.quarantine.record_death(death):
            extra = {**death.place._asdict(), "code": death.error.code, "request": death.request}
            log.error("quarantined", extra=extra)
            self.refresh(death.place.device)

    def queue(self, hardware_id: str) -> DeviceQueue:
        """Return the queue of a hardware id."""
        return self._queues.setdefault(hardware_id, DeviceQueue(hardware_id))

    def queue_ids(self) -> list[str]:
        """Return the hardware ids of all queues."""
        return list(self._queues)

    def loading_lock(self, hardware_id: str) -> asyncio.Lock:
        """Return the lock under which models are loaded on a hardware."""
        return self._loading_locks.setdefault(hardware_id, asyncio.Lock())

    def _note_change(self, device: Device) -> None:
        """Log the result of a probe and publish the device."""
        if device.state in ("ready", "broken"):
            reason = device.reason if device.state == "broken" else None
            fields = {"device": device.id, "state": device.state, "stage": device.stage, "reason": reason}
            log.log(logging.WARNING if reason else logging.INFO, "probe result", extra=fields)
        self._on_change(self._overlay(device))

    def _overlay(self, device: Device) -> Device:
        """Return the device with its measured speeds, its quarantine, and the user's choice to disable it.

        Computed again only after the device, its driver, the measurements or the quarantine changed.
        """
        driver = self.driver(device.hardware_id) if device.state == "ready" else None  # others have no speeds
        stamp = self._measurements.revision, self.quarantine.revision, driver
        cached = self._overlaid.get(device.id)
        if cached is None or cached[0] is not device or cached[1] != stamp:
            cached = self._overlaid[device.id] = device, stamp, self._with_overlay(device)
        return cached[2]

    def _with_overlay(self, device: Device) -> Device:
        if speeds := self._measured_speeds(device):
            device = replace(device, speed=speeds)
        if models := self.quarantine.models(device.id, device.engines):
            device = replace(device, quarantined_models=models)
            if device.state == "broken":  # the models alone are not to blame: the proof failed as well
                reason = f"Workers kept crashing on it, and its check failed: {device.reason}"
                device = replace(device, state="quarantined", reason=reason)
        if self._is_enabled(device.id):
            return device
        reason, remedy = f"devices.{device.id}.enabled is false in the settings.", "Set it to true in config.yaml."
        return replace(device, state="unavailable", reason=reason, remedy=remedy)

    def _is_enabled(self, device_id: str) -> bool:
        rules = self._settings.devices.get(device_id)
        return rules is None or rules.enabled

    def _check_default_device(self) -> None:
        """Check that `device` in the settings names a device, present or not. Raises Configuration."""
        try:
            resolve(self._settings.device, {}, [], task="text", engine=None)
        except UnknownDevice as error:
            raise Configuration(
                f"`device` is {self._settings.device[:100]!r}, which names no device.",
                "Use auto, an id such as cpu or cuda:0, or an alias such as gpu.",
            ) from error
