"""Proofs of earlier starts, by runtime, driver and card: what a device was found to be, until it is looked at again."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.types import Device, Proof, Speed

log = logging.getLogger(__name__)
_FORMAT = 1


class ProofBook:
    """Keeps proved devices in a file; without one, for this process alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = {}
        if path is not None:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                read = json.loads(path.read_text(encoding="utf-8"))
                self._entries = read["devices"] if read["format"] == _FORMAT else {}

    @staticmethod
    def key(device: Device, runtime: str, python: str, versions: dict[str, str], driver: str | None) -> str:
        """What must be the same for an earlier proof to count."""
        parts = [device.id, device.name, device.hardware_id, runtime, python, driver, *sorted(versions.items())]
        return json.dumps(parts)

    def recall(self, key: str) -> Device | None:
        """The device as it was proved, with the moment of that proof; None where nothing is known."""
        try:
            fields = dict(self._entries[key])
            proof = Proof(**fields.pop("proof"))
            return Device(**{**fields, "proof": proof, "speed": [Speed(**one) for one in fields.pop("speed")]})
        except (LookupError, TypeError, ValueError):
            return None

    def note(self, key: str, device: Device) -> None:
        """Takes down what a probe found: a ready device is kept, any other is forgotten."""
        if device.state == "ready":
            self._entries[key] = asdict(device)
        elif self._entries.pop(key, None) is None:
            return
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps({"format": _FORMAT, "devices": self._entries}), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            log.warning("proofs are not kept", extra={"detail": str(error)})
