"""Facts about the data folder and its holder. Takes no lock and only reads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import socket
import sqlite3
import sys
import time
from pathlib import Path

from backend.cli.doctor.facts import StorageFacts
from backend.common.data_dir import STALE_S, DataDir
from backend.jobs.store.corruption import check

HISTORY = "jobs.sqlite3"
_REMOTE_DRIVE = 4  # DRIVE_REMOTE of fileapi.h


def storage_facts(data_dir: Path) -> StorageFacts:
    """Return the facts about the data folder. Raises no OSError."""
    existing = nearest(data_dir)
    return StorageFacts(
        str(data_dir),
        exists=data_dir.is_dir(),
        writable=os.access(existing, os.W_OK | os.X_OK) if existing.is_dir() else False,
        filesystem=filesystem(existing),
        free_bytes=_free_bytes(existing),
        held=held(data_dir),
        holder=_holder(data_dir),
        history=damage(data_dir / HISTORY),
    )


def nearest(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            if place.exists():
                return place
    return path


def filesystem(path: Path, mounts: str | None = None) -> str | None:
    """Return a path's file system type, by proc_pid_mountinfo(5); on Windows "remote". Optional: None if unknown."""
    if sys.platform == "win32" and mounts is None:
        return _windows_drive(path)
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(path)
    kind_found, length = None, -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if len(words) < 5 or not kind:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= length:  # of two mounts at one point the later one is visible
            # WSL can mount Windows drives by virtiofs too, with this name.
            is_drive = kind[0] == "virtiofs" and kind[1:] and kind[1].startswith("drvfs")
            kind_found, length = "drvfs" if is_drive else kind[0], len(point)
    return kind_found


def held(data_dir: Path) -> bool:
    """Return whether a process holds the folder: by its lock on Linux, else (and across WSL) by a recent heartbeat."""
    note = DataDir(data_dir).holder() or {}
    heartbeat = note.get("beat")
    is_recent = isinstance(heartbeat, (int, float)) and abs(time.time() - heartbeat) < STALE_S
    try:
        number = (data_dir / "lock").stat().st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return is_recent
    here = note.get("system") == sys.platform and note.get("host") == socket.gethostname()
    # A line is "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF" (proc_locks(5)).
    return any("FLOCK" in line and f":{number} " in line for line in locks.splitlines()) or (is_recent and not here)


def damage(history: Path) -> str | None:
    """Return why the next start would replace the history. Optional: None if it is valid or missing. Only reads."""
    if not history.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{history.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as db:
            db.execute("PRAGMA schema_version").fetchone()
            check(history, db)
    except sqlite3.Error as error:
        return None if "locked" in str(error) else str(error).splitlines()[0]
    return None


def _holder(data_dir: Path) -> dict[str, object] | None:
    note = DataDir(data_dir).holder()
    if note is None:
        return None
    kept: dict[str, object] = {name: note.get(name) for name in ("pid", "url", "system")}
    return kept | {"elsewhere": note.get("system") != sys.platform}


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _windows_drive(path: Path) -> str | None:
    if sys.platform != "win32":
        return None
    real = os.path.realpath(path)
    drive = os.path.splitdrive(real)[0]
    if real.startswith("\\\\"):
        return "remote"
    return "remote" if ctypes.windll.kernel32.GetDriveTypeW(drive + "\\") == _REMOTE_DRIVE else None
