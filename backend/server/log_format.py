"""The log: lines for people, or one JSON object a line. Nothing in it can colour or steer a terminal."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from logging.handlers import RotatingFileHandler

from backend.common.config.settings import Settings
from backend.common.config.settings.schema import Log
from backend.common.errors import Configuration

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def configure(settings: Settings) -> None:
    """Sets up the root logger."""
    handler = _handler(settings.log)
    handler.setFormatter(JsonFormatter() if settings.log.json else TextFormatter())
    logging.basicConfig(level=settings.log.level.upper(), handlers=[handler], force=True)
    for name in ("asyncio", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are of what strangers send, a line each


def _handler(log: Log) -> logging.Handler:
    if log.file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        log.file.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(log.file, maxBytes=log.file_bytes, backupCount=log.files - 1, encoding="utf-8")
    except OSError as error:
        raise Configuration(
            f"The log cannot be written to {log.file}: {error.strerror}.", "Set log.file to a file that can be."
        ) from error


class TextFormatter(logging.Formatter):
    """`time level module: message key=value`, the time in UTC, control and direction characters as escapes."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it where there is one."""
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        moment = self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ")
        line = f"{moment} {record.levelname.lower()} {record.name}: {record.getMessage()}{extra}"
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join(map(escaped, (line, *trace)))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record with its extra members."""
        fields = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps({**fields, **_extra(record)}, default=str)


def escaped(text: str) -> str:
    """The text with everything that could steer a terminal as a visible escape."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN and value is not None}
