"""Log formats: text lines, or one JSON object per line. Control characters are escaped."""

from __future__ import annotations

import json
import logging
import sys
import time
from logging.handlers import RotatingFileHandler

from backend.common.clean_text import escape
from backend.common.config.settings import Settings
from backend.common.config.settings.schema import Log
from backend.common.errors import Configuration

escaped = escape  # the rule for all texts of other programs
_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(settings: Settings) -> None:
    """Configure the root logger by the settings. Raises Configuration if the log file cannot be written."""
    handler = _handler(settings.log)
    handler.setFormatter(JsonFormatter() if settings.log.json else TextFormatter())
    logging.basicConfig(level=settings.log.level.upper(), handlers=[handler], force=True)
    for name in ("asyncio", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of each malformed request


def _handler(log: Log) -> logging.Handler:
    if log.file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        log.file.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(log.file, maxBytes=log.file_bytes, backupCount=log.files - 1, encoding="utf-8")
    except OSError as error:
        raise Configuration(
            f"The log cannot be written to {log.file}: {error.strerror}.", "Set log.file to a writable file."
        ) from error


class TextFormatter(logging.Formatter):
    """Formats `time level module: message key=value`: time in UTC, control and direction characters escaped."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the traceback if there is one."""
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        timestamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ")
        line = f"{timestamp} {record.levelname.lower()} {record.name}: {record.getMessage()}{extra}"
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join(map(escaped, (line, *trace)))


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: `at` (Unix time), `level`, `logger`, `message`, and each extra field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON. A traceback is in `trace`."""
        fields = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps({**fields, **_extra(record)}, default=str)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN and value is not None}
