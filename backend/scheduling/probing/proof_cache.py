"""Proofs of earlier starts, by runtime, driver and card: what a device was found to be, until it is looked at again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.common.json_file import JsonFile
from backend.common.types import Device, Proof, Speed

_FORMAT = 1


class ProofCache:
    """Keeps proved devices in a file; without one, for this process alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, "devices", _FORMAT)
        kept = self._file.read()
        self._entries: dict[str, dict[str, Any]] = kept if isinstance(kept, dict) else {}

    @staticmethod
    def key(device: Device, runtime: str, python: str, versions: dict[str, str], driver: str | None) -> str:
        """What must be the same for an earlier proof to count."""
        parts = [device.id, device.name, device.hardware_id, runtime, python, driver, *sorted(versions.items())]
        return json.dumps(parts)

    def get(self, key: str) -> Device | None:
        """The device as it was proved, with the moment of that proof; None where nothing is known."""
        try:
            fields = dict(self._entries[key])
            proof = Proof(**fields.pop("proof"))
            return Device(**{**fields, "proof": proof, "speed": [Speed(**one) for one in fields.pop("speed")]})
        except (LookupError, TypeError, ValueError):
            return None

    def put(self, key: str, device: Device) -> None:
        """Takes down what a probe found: a ready device is kept, any other is forgotten."""
        if device.state == "ready":
            self._entries[key] = asdict(device)
        elif self._entries.pop(key, None) is None:
            return
        self._file.write(self._entries)
