"""Exclusive use of the data folder by one server: an operating system lock, and a heartbeat in `server.json`.

Windows and WSL do not see each other's locks, so a recent heartbeat from another system also means that the folder is
in use. `platformdirs` is not used: the folder is a setting, by default next to config.yaml.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path

from backend.common.bounded_reads import NoAnswer, bounded_read
from backend.common.errors import Configuration
from backend.common.file_lock import FileLock
from backend.common.files import read_text
from backend.common.types import JsonObject

BEAT_S = 5.0
_HOLDER_S = 3.0  # timeout for the holder's name: the message that needs it is shown once
STALE_S = 20.0
ANSWER_S = 4.0  # for the folder at the start: a sleeping disk needs seconds
# Bytes: with 50 for appended names this is 103, the longest socket path on macOS (Linux: 107).
SCRATCH_HOME_LIMIT = 53


class DataDir:
    """The data folder of one server, locked between `acquire` and `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server_file = path / "server.json"
        self._lock = FileLock(path / "lock")
        self._stop = path / "stop"
        self._url: str | None = None
        self.id = secrets.token_hex(8)  # distinguishes this server from a later one at the same address

    def check(self) -> None:
        """Raise Configuration if the folder does not answer, or holds a pipe or a device, whose read would not end."""
        try:
            if special := bounded_read(self.path, lambda: _special_file(self.path), ANSWER_S):
                raise Configuration(
                    f"{special} in the data folder {self.path} is a pipe or a device, not a file.",
                    "Delete it, or set TOUCHSTONE_DATA_DIR to another folder.",
                )
        except NoAnswer as error:
            raise Configuration(
                f"The data folder {self.path} cannot be read: {error.strerror}. Its disk or network mount does not "
                "respond.",
                f"Check that `ls {self.path}` returns, and mount it again; or set TOUCHSTONE_DATA_DIR to another "
                "folder.",
            ) from error
        except OSError:
            return  # it is missing, or `acquire` names what is wrong

    def acquire(self) -> None:
        """Create the folder and lock it. Raises Configuration that names the holder."""
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
            raise self._in_use_error()

    def heartbeat(self, url: str | None = None) -> None:
        """Write a heartbeat with this server's address. Call it every BEAT_S.

        `url`: optional. Default: the address of the last call.
        """
        self._url = url or self._url
        note = {
            "id": self.id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "system": sys.platform,
            "url": self._url,
            "beat": time.time(),
        }
        temporary = self._server_file.with_suffix(f".{os.getpid()}")

        def replace() -> None:
            temporary.write_text(json.dumps(note))
            temporary.replace(self._server_file)

        with contextlib.suppress(OSError):  # the job history reports a full disk; here only the heartbeat gets old
            bounded_read(self._server_file, replace)

    def holder(self) -> JsonObject | None:
        """Return the last heartbeat of the server that holds or held the folder, None if there is none."""
        with contextlib.suppress(OSError, ValueError):
            note = json.loads(bounded_read(self._server_file, lambda: read_text(self._server_file), _HOLDER_S))
            return note if isinstance(note, dict) else None
        return None

    def ask_to_stop(self, server_id: str) -> None:
        """Ask the server with this id, which holds the folder, to stop."""
        self._stop.write_text(server_id)

    def stop_asked(self) -> bool:
        """Return whether this server was asked to stop."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return bounded_read(self._stop, lambda: read_text(self._stop)) == self.id
        return False

    def release(self) -> None:
        """Release the folder."""
        if self._lock.held:
            with contextlib.suppress(OSError):
                bounded_read(self._server_file, lambda: self._server_file.unlink(missing_ok=True))
                bounded_read(self._stop, lambda: self._stop.unlink(missing_ok=True))
            self._lock.release()

    def _sweep(self) -> None:
        """Delete the files of a killed server. None of them is in use while this server holds the lock."""
        self._stop.unlink(missing_ok=True)
        for note in self.path.glob("server.[0-9]*"):
            note.unlink(missing_ok=True)
        for home in {tempfile.gettempdir(), scratch_home()}:
            for folder in Path(home).glob(scratch_prefix(self.path) + "*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _in_use_error(self) -> Configuration:
        holder = self.holder() or {}
        who = f"process {holder['pid']} on {holder.get('host')}" if holder.get("pid") else "another process"
        where = f", serving {holder['url']}" if holder.get("url") else ""
        return Configuration(
            f"The data folder {self.path} is in use by {who}{where}.",
            "Use that server, stop it, or set TOUCHSTONE_DATA_DIR to another folder.",
        )


def _special_file(folder: Path) -> str | None:
    """Return the name of an entry that is a pipe or a device, None if there is none."""
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            mode = entry.stat().st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                return entry.name
    return None


def scratch_home() -> str:
    """Return the parent of temporary folders: the system's, or /tmp if a socket path below it would be too long."""
    default = tempfile.gettempdir()
    return default if sys.platform == "win32" or len(os.fsencode(default)) <= SCRATCH_HOME_LIMIT else "/tmp"


def scratch_prefix(data_dir: Path) -> str:
    """Return the prefix of the names of this data folder's temporary folders.

    They are not inside the data folder, because they contain sockets, whose paths have about 100 bytes.
    """
    return f"touchstone-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}-"


def _foreign_and_fresh(note: JsonObject | None) -> bool:
    if not note or note.get("system") == sys.platform and note.get("host") == socket.gethostname():
        return False  # a server on this system would hold the lock
    beat = note.get("beat")
    return isinstance(beat, int | float) and abs(time.time() - beat) < STALE_S
