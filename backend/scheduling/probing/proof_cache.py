"""The proof cache: proofs of earlier starts by runtime, driver and card, valid until the device is probed again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from backend.common.json_file import JsonFile
from backend.common.types import Device, JsonObject, Proof, Speed

_FORMAT = 2  # since 2 a proof has a verdict for each data type


class ProofCache:
    """Keeps proved devices in a file. Default: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.open(path)

    def open(self, path: Path | None) -> None:
        """Load the proofs of earlier starts from a file, which is kept up to date from now on."""
        self._file = JsonFile(path, "devices", _FORMAT)
        stored = self._file.read()
        self._entries: dict[str, JsonObject] = stored if isinstance(stored, dict) else {}

    @staticmethod
    def key(device: Device, runtime: str, python: str, versions: dict[str, str], driver: str | None) -> str:
        """Return the key: the facts that must be unchanged for an earlier proof to be valid."""
        parts = [device.id, device.name, device.hardware_id, runtime, python, driver, *sorted(versions.items())]
        return json.dumps(parts)

    def get(self, key: str) -> Device | None:
        """Return the device as it was proved, with the time of the proof; None without a valid entry."""
        try:
            fields = dict(self._entries[key])
            proof = Proof(**fields.pop("proof"))
            return Device(**{**fields, "proof": proof, "speed": [Speed(**speed) for speed in fields.pop("speed")]})
        except (LookupError, TypeError, ValueError):
            return None

    def put(self, key: str, device: Device) -> None:
        """Store a probed device if it is ready, else remove it."""
        if device.state == "ready":
            self._entries[key] = asdict(device)
        elif self._entries.pop(key, None) is None:
            return
        self._file.write(self._entries)
