"""The measured speeds of a device that still hold: same card, driver, versions and model file."""

from __future__ import annotations

from collections.abc import Callable

from backend.common.types import Device, Speed
from backend.manager.benchmarks.history import Measurement, Measurements
from backend.models import Catalogue
from backend.models.file_checks import file_bytes


class MeasuredSpeeds:
    """Looks up the valid measurements of devices."""

    def __init__(
        self, history: Measurements, catalogue: Catalogue, driver_of: Callable[[str | None], str | None]
    ) -> None:
        """`driver_of` returns the driver of a hardware id."""
        self._history = history
        self._catalogue = catalogue
        self._driver_of = driver_of

    def of(self, device: Device) -> list[Speed]:
        """Return the measured speeds of a device, none for one that is not ready."""
        return [measurement.speed for measurement in self.valid(device)] if device.state == "ready" else []

    def valid(self, device: Device) -> list[Measurement]:
        """Return the measurements that hold for a device and the models' files as they are now."""
        return self._history.valid(lambda measurement: self._holds(measurement, device))

    def _holds(self, measurement: Measurement, device: Device) -> bool:
        driver = self._driver_of(device.hardware_id)
        if measurement.device != device.id or not measurement.counts_for(device, driver):
            return False
        entry = self._catalogue.entries().get(measurement.speed.model)
        return entry is not None and measurement.model_bytes == file_bytes(entry.path_for(measurement.speed.engine))
