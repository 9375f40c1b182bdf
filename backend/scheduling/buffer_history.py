"""The sizes of buffers that loads measured on this machine, kept in a file of the data folder for the next plan."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from backend.common.json_file import JsonFile
from backend.common.memory_plan import Corrections, correction_key
from backend.common.types import MeasuredBuffers

_FORMAT = 1
_LEAST, _MOST = 0.25, 8.0  # a ratio outside is not a property of the build
_KEPT = 64


class BufferHistory:
    """Corrections by build and backend: the highest measured, so that no plan exceeds what was seen. Read once."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, "buffers", _FORMAT)
        self._corrections: dict[str, Corrections] | None = None

    def all(self) -> Mapping[str, Corrections]:
        """Return all corrections by `correction_key`. It reads a file at the first call."""
        if self._corrections is None:
            self._corrections = {}
            with contextlib.suppress(LookupError, TypeError, AttributeError):
                self._corrections = {name: Corrections(**each) for name, each in (self._file.read() or {}).items()}
        return self._corrections

    def of_backend(self, backend: str) -> Corrections:
        """Return the correction of the last build that was used on a backend, as the server does not know the build."""
        names = [name for name in self.all() if name.endswith(correction_key("", backend))]
        return self.all()[names[-1]] if names else Corrections()

    def add(self, measured: MeasuredBuffers) -> None:
        """Keep what a load measured. It writes a file: call it in a thread."""
        corrections = dict(self.all())
        key = correction_key(measured.build, measured.backend)
        before = corrections.pop(key, Corrections(compute=_LEAST))
        drivers = [size for size in (before.driver_bytes, measured.driver_bytes) if size is not None and size >= 0]
        compute = max(before.compute, min(_MOST, max(_LEAST, measured.compute)))
        corrections[key] = Corrections(compute, max(drivers, default=None), before.loads + 1)
        self._corrections = dict(list(corrections.items())[-_KEPT:])
        self._file.write({name: asdict(each) for name, each in self._corrections.items()})
