"""The data folder belongs to one server: an OS lock, and `server.json` for those whose locks we cannot see.

Windows and WSL do not see each other's locks, so a fresh beat from another system counts as a holder too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from backend.common.errors import Configuration
from backend.common.file_lock import FileLock

BEAT_S = 5.0
STALE_S = 20.0
SCRATCH_HOME_LIMIT = 63  # bytes: 40 more for our own names make 103, the longest path of a socket on macOS (Linux: 107)


class DataDir:
    """Holds the lock between `take` and `give_back`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path / "server.json"
        self._lock = FileLock(path / "lock")
        self._stop = path / "stop"
        self._url: str | None = None
        self.id = secrets.token_hex(8)  # tells this server from another that later answers at the same address

    def acquire(self) -> None:
        """Makes the folder and locks it. Raises Configuration in words that name the holder."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = self._lock.acquire() and not _foreign_and_fresh(self.holder())
            if free:
                self._sweep()
        except OSError as error:
            self._lock.release()
            raise Configuration(
                f"The data folder {self.path} cannot be used: {error.strerror} ({error.filename}).",
                "Set TOUCHSTONE_DATA_DIR to a folder that you may write to.",
            ) from error
        if not free:
            self._lock.release()
            raise self._held()

    def heartbeat(self, url: str | None = None) -> None:
        """Says that this server is alive, and where. Called every BEAT_S."""
        self._url = url or self._url
        note = {
            "id": self.id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "system": sys.platform,
            "url": self._url,
            "beat": time.time(),
        }
        fresh = self._note.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk is told by the job history; the beat just grows old
            fresh.write_text(json.dumps(note))
            fresh.replace(self._note)

    def holder(self) -> dict[str, Any] | None:
        """What the server that holds the folder, or held it last, wrote about itself."""
        with contextlib.suppress(OSError, ValueError):
            note = json.loads(self._note.read_text())
            return note if isinstance(note, dict) else None
        return None

    def ask_to_stop(self, server_id: str) -> None:
        """Asks the server with this id, which holds the folder, to end."""
        self._stop.write_text(server_id)

    def stop_asked(self) -> bool:
        """Whether this server was asked to end."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._stop.read_text() == self.id
        return False

    def release(self) -> None:
        """Unlocks the folder."""
        if self._lock.held:
            with contextlib.suppress(OSError):
                self._note.unlink(missing_ok=True)
                self._stop.unlink(missing_ok=True)
            self._lock.release()

    def _sweep(self) -> None:
        """Removes what a server left that was killed; while we hold the lock, none of it is in use."""
        self._stop.unlink(missing_ok=True)
        for note in self.path.glob("server.[0-9]*"):
            note.unlink(missing_ok=True)
        for home in {tempfile.gettempdir(), scratch_home()}:
            for folder in Path(home).glob(scratch_prefix(self.path) + "*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _held(self) -> Configuration:
        holder = self.holder() or {}
        who = f"process {holder['pid']} on {holder.get('host')}" if holder.get("pid") else "another process"
        where = f", serving {holder['url']}" if holder.get("url") else ""
        return Configuration(
            f"The data folder {self.path} is held by {who}{where}.",
            "Use that server, stop it, or set TOUCHSTONE_DATA_DIR to another folder.",
        )


def scratch_home() -> str:
    """Where the temporary folders lie: where the system wants them, or in /tmp if no socket can be made that deep."""
    usual = tempfile.gettempdir()
    return usual if sys.platform == "win32" or len(os.fsencode(usual)) <= SCRATCH_HOME_LIMIT else "/tmp"


def scratch_prefix(data_dir: Path) -> str:
    """How the names of temporary folders of the server on this data folder begin.

    They lie elsewhere, since a socket is made in them and the path of a socket has room for some 100 bytes.
    """
    return f"touchstone-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}-"


def _foreign_and_fresh(note: dict[str, Any] | None) -> bool:
    if not note or note.get("system") == sys.platform and note.get("host") == socket.gethostname():
        return False  # a server of this very system would hold the lock
    beat = note.get("beat")
    return isinstance(beat, int | float) and abs(time.time() - beat) < STALE_S
