"""A JSON file in the data folder for data that can be recreated: read once, rewritten after each change."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from backend.common.bounded_reads import bounded_read
from backend.common.files import read_text

log = logging.getLogger(__name__)


class JsonFile:
    """A JSON file with one `key` and a format number. `path`: optional. Without it nothing is stored."""

    def __init__(self, path: Path | None, key: str, form: int) -> None:
        self._path = path
        self._key = key
        self._form = form

    def read(self) -> Any:
        """Return the content, None if the file is missing, invalid or of another format."""
        path = self._path
        if path is None:
            return None
        try:
            document = json.loads(bounded_read(path, lambda: read_text(path)))
            return document[self._key] if document["format"] == self._form else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, content: Any) -> None:
        """Replace the content. A write error is only logged."""
        path = self._path
        if path is None:
            return
        text = json.dumps({"format": self._form, self._key: content})

        def replace() -> None:
            temporary = path.with_suffix(".tmp")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)

        try:
            bounded_read(path, replace)
        except OSError as error:
            log.warning(f"failed to write {path.name}", extra={"detail": str(error)})
