"""A file of the data folder that keeps what can be found out again: read once, written whole after each change."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class JsonFile:
    """JSON with one `key`, and the number of its format. Without a path nothing is kept."""

    def __init__(self, path: Path | None, key: str, form: int) -> None:
        self._path = path
        self._key = key
        self._form = form

    def read(self) -> Any:
        """What is kept; None where there is no such file, or one that cannot be read or has another format."""
        if self._path is None:
            return None
        try:
            read = json.loads(self._path.read_text(encoding="utf-8"))
            return read[self._key] if read["format"] == self._form else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, content: Any) -> None:
        """Keeps it in place of what was there; a disk that does not take it is told in the log."""
        if self._path is None:
            return
        try:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps({"format": self._form, self._key: content}), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            log.warning(f"{self._path.name} is not kept", extra={"detail": str(error)})
