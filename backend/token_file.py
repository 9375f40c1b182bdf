"""The token that a container makes for itself: kept in the data folder, so that the address stays valid.

A flag says that it is a container, not the marks that some runtimes leave: a development container has them too, and
there nobody has published a port on purpose.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path

from backend.errors import Configuration
from backend.settings import Settings

_TOKEN = re.compile(r"[!-~]{16,}")


def kept_token(data_dir: Path) -> str | None:
    """The token that was made earlier, None if there is none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = (data_dir / "token").read_text(encoding="utf-8").strip()
        return found if _TOKEN.fullmatch(found) else None
    return None


def with_own_token(settings: Settings) -> Settings:
    """The settings with the kept token, or with a new one that only this user may read. Raises Configuration."""
    token = kept_token(settings.data_dir) or _make(settings.data_dir)
    return replace(settings, server=replace(settings.server, token=token))


def token_for_calls(settings: Settings) -> str | None:
    """What the command line sends to the server of this data folder."""
    return settings.server.token or kept_token(settings.data_dir)


def _make(data_dir: Path) -> str:
    token = secrets.token_urlsafe(24)
    fresh = data_dir / f"token.{os.getpid()}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write(token + "\n")
        fresh.replace(data_dir / "token")
    except OSError as error:
        raise Configuration(
            f"The token cannot be stored in {data_dir}: {error.strerror}.",
            "Make the data volume writable for this user, or set TOUCHSTONE_TOKEN.",
        ) from error
    return token
