"""One archive for a report: the doctor's page and data, the last jobs without what was asked or made, the log's end.

Everything in it went through the redactor, so it may be shown to anybody; it is plain text, so a person can look first.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from backend.cli.doctor.text_page import page
from backend.common.config.settings import Settings
from backend.common.errors import Configuration
from backend.common.redaction import Redactor

JOBS, LOG_BYTES = 50, 500_000
_ABOUT = """What `python -m backend doctor --bundle` gathered. Names, the home folder, tokens and keys are removed;
prompts and results are not in here. doctor.txt is the page, doctor.json the same as data, jobs.json the last jobs,
log.txt the end of the log if the server wrote one to a file.
"""
_TOLD = ("id", "task", "model", "status", "created_at", "started_at", "ended_at", "error", "receipt")


def write(file: Path, document: dict[str, Any], settings: Settings, told: Redactor) -> list[str]:
    """Writes the archive whole or not at all; returns the names in it. Raises Configuration."""
    parts = {
        "README.txt": _ABOUT,
        "doctor.txt": page(document),
        "doctor.json": json.dumps(document, indent=2),
        "jobs.json": json.dumps(told.data(_jobs(settings.data_dir / "jobs.sqlite3")), indent=2),
        "log.txt": told.text(_log(settings)),
    }
    fresh = file.with_name(f".{file.name}.part")
    try:
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in parts.items():
                archive.writestr(name, text)
        fresh.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise Configuration(
            f"The archive {file} cannot be written: {error.strerror}.", "Name a file in a folder that you may write to."
        ) from error
    return list(parts)


def _jobs(history: Path) -> list[dict[str, Any]]:
    """The last jobs, read without touching the history, whether a server has it open or not."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(history))}?mode=ro", uri=True)) as db:
            sql = f"SELECT {', '.join(_TOLD)} FROM jobs ORDER BY seq DESC LIMIT {JOBS}"
            rows = [dict(zip(_TOLD, row, strict=True)) for row in db.execute(sql)]
    except sqlite3.Error as error:
        return [{"unreadable": str(error)}]
    return [
        {**row, **{name: json.loads(row[name]) if row[name] else None for name in ("error", "receipt")}} for row in rows
    ]


def _log(settings: Settings) -> str:
    file = settings.log.file or settings.data_dir / "logs" / "touchstone.log"
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - LOG_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return f"There is no log at {file}. `start` logs there; `log.file` names another place.\n"
