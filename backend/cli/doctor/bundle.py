"""One archive for a bug report: the doctor's report, the last jobs without prompts or results, the end of the log.

All of it is redacted, so it may be published. It is plain text, so the user can check it first.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import zipfile
from pathlib import Path
from urllib.parse import quote

from backend.cli.doctor.text_page import page
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.errors import Configuration
from backend.common.redaction import Redactor
from backend.common.types import JsonObject

JOBS, LOG_BYTES = 50, 500_000
_ABOUT = """Written by `doctor --bundle`. Names, the home folder, tokens and keys are removed; prompts and results are
not included. doctor.txt is the report, doctor.json the same as JSON, jobs.json the last jobs, log.txt the end of the
log if the server logs to a file.
"""
_PROMPT_FIELDS = ("prompt", "messages")
# They are the last fields of a text line, and a prompt may contain anything but a line break.
_TEXT_PROMPT = re.compile(rf" (?:{'|'.join(_PROMPT_FIELDS)})=.*")
_COLUMNS = ("id", "task", "model", "status", "created_at", "started_at", "ended_at", "error", "receipt")


def write(file: Path, document: JsonObject, settings: Settings, redact: Redactor) -> list[str]:
    """Write the archive completely or not at all; return the names of its files. Raises Configuration."""
    parts = {
        "README.txt": _ABOUT,
        "doctor.txt": page(document),
        "doctor.json": json.dumps(document, indent=2),
        "jobs.json": json.dumps(redact.data(_jobs(settings.data_dir / "jobs.sqlite3")), indent=2),
        "log.txt": redact.text(_log(settings)),
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
            f"The archive {file} cannot be written: {error.strerror}.", "Name a file in a writable folder."
        ) from error
    return list(parts)


def _jobs(history: Path) -> list[JsonObject]:
    """Return the last jobs. Reads the history only, also while a server uses it."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(history))}?mode=ro", uri=True)) as db:
            sql = f"SELECT {', '.join(_COLUMNS)} FROM jobs ORDER BY seq DESC LIMIT {JOBS}"
            rows = [dict(zip(_COLUMNS, row, strict=True)) for row in db.execute(sql)]
    except sqlite3.Error as error:
        return [{"unreadable": str(error)}]
    return [
        {**row, **{name: json.loads(row[name]) if row[name] else None for name in ("error", "receipt")}} for row in rows
    ]


def _log(settings: Settings) -> str:
    file = settings.log.file or settings.data_dir / "logs" / "touchstone.log"
    try:
        with file.open("rb") as log:
            start = max(0, log.seek(0, 2) - LOG_BYTES)
            log.seek(start)
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return f"No log exists at {file}. `{command('start')}` logs there; `log.file` sets another file.\n"
    # Where the file is cut, the first line is incomplete and may be the rest of a prompt.
    return "\n".join(_without_prompts(line) for line in (lines[1:] if start else lines))


def _without_prompts(line: str) -> str:
    """Return a log line without the fields that `log.prompts` adds."""
    if not line.startswith("{"):
        return _TEXT_PROMPT.sub("", line)
    try:
        fields = json.loads(line)
    except ValueError:
        return "(an incomplete line)"
    return json.dumps({name: value for name, value in fields.items() if name not in _PROMPT_FIELDS})
