"""The server's access token: from the settings, or generated and kept in the data folder.

In a container the server generates one at its first start, so that the address with the token stays valid; elsewhere
`token rotate` does. A flag declares the container. The marker files of container runtimes are not used: development
containers have them too, without a port that was published on purpose.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from backend.common.bounded_reads import bounded_read
from backend.common.config.settings import Settings, is_loopback
from backend.common.errors import Configuration
from backend.common.files import read_text

_TOKEN = re.compile(r"[!-~]{16,}")


class Token:
    """The token that callers have to send. A change of the token file takes effect at once."""

    def __init__(self, settings: Settings) -> None:
        self._fixed = settings.server.token
        self._file = None if self._fixed or is_loopback(settings.server.host) else _file(settings.data_dir)
        self._stamp: int | None = None
        self._kept: str | None = None

    @property
    def value(self) -> str | None:
        """The token, None if none is required. A missing or invalid file keeps the last valid token in force."""
        if self._file:
            file = self._file
            with contextlib.suppress(OSError):
                stamp = bounded_read(file, lambda: file.stat().st_mtime_ns)
                if stamp != self._stamp:
                    self._stamp, self._kept = stamp, _read(self._file) or self._kept
        return self._fixed or self._kept


def kept_token(data_dir: Path) -> str | None:
    """Return the token of the data folder, None if there is none."""
    return _read(_file(data_dir))


def token_for_calls(settings: Settings) -> str | None:
    """Return the token that the command line sends to the server of this data folder. Optional."""
    return settings.server.token or kept_token(settings.data_dir)


def make_token(data_dir: Path) -> str:
    """Generate a token and store it readable for this user only. Returns it. Raises Configuration."""
    token = secrets.token_urlsafe(24)
    fresh = data_dir / f"token.{os.getpid()}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write(token + "\n")
        fresh.replace(_file(data_dir))
    except OSError as error:
        raise Configuration(
            f"The token cannot be stored in {data_dir}: {error.strerror}.",
            "Make the data folder writable for this user, or set TOUCHSTONE_TOKEN.",
        ) from error
    return token


def _file(data_dir: Path) -> Path:
    return data_dir / "token"


def _read(file: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        token = bounded_read(file, lambda: read_text(file)).strip()
        return token if _TOKEN.fullmatch(token) else None
    return None
