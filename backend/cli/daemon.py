"""A server in the background: started, found, asked to end. It logs to files in its data folder."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from backend.common.config.settings import ROOT, Settings
from backend.common.data_dir import DataDir
from backend.common.errors import Configuration, Internal

START_S = 30.0
STOP_S = 15.0  # the server promises 5
LOOK_S = 0.1


def running(settings: Settings) -> dict[str, Any] | None:
    """The address and health of the server that holds the data folder; None if none answers."""
    note = DataDir(settings.data_dir).holder() or {}
    if not note.get("url"):
        return None
    try:
        with httpx.Client(trust_env=False, timeout=2.0) as http:
            answer = http.get(f"{note['url']}/api/health")
            said = answer.json()
    except (httpx.HTTPError, ValueError):
        return None
    # The note of a killed server can lead to one that now has its port, but another folder.
    known = answer.status_code == 200 and isinstance(said, dict) and said.get("id") == note.get("id")
    return {"url": note["url"], "pid": note.get("pid"), **said} if known else None


def start(settings: Settings, flags: list[str]) -> dict[str, Any]:
    """Starts one and waits until it answers; `flags` are those of `serve`. Raises Configuration, Internal."""
    logs = settings.data_dir / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        said = (logs / "start.log").open("wb")
    except OSError as error:
        raise Configuration(
            f"Nothing can be written to {logs}: {error.strerror}.", "Set TOUCHSTONE_DATA_DIR to another folder."
        ) from error
    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        detached = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    log_file = settings.log.file or logs / "touchstone.log"
    with said:
        process = subprocess.Popen(
            [sys.executable, "-m", "backend", "serve", "--log-file", str(log_file), *flags],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            **detached,
        )
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        if (found := running(settings)) and found["pid"] == process.pid:
            return found
        time.sleep(LOOK_S)
    if process.poll() is None:
        process.kill()
        raise Internal(f"The server did not answer within {START_S:g} s.", f"Look at {log_file}.")
    raise _refusal(logs / "start.log", process.returncode)


def stop(settings: Settings) -> bool:
    """Asks the server of the data folder to end and waits for it; False if none runs. Raises Internal."""
    found = running(settings)
    if found is None:
        return False
    folder = DataDir(settings.data_dir)
    folder.ask_to_stop(found["id"])
    end = time.monotonic() + STOP_S
    while time.monotonic() < end:
        if (folder.holder() or {}).get("id") != found["id"]:
            return True
        time.sleep(LOOK_S)
    raise Internal(f"The server (process {found['pid']}) did not end within {STOP_S:g} s.", "Look at its log.")


def _refusal(said: Path, code: int) -> Configuration | Internal:
    """What the server said before it ended, in the two lines of the command line's errors."""
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()]
    if code == 2 and len(lines) >= 2:
        return Configuration(lines[-2].removeprefix("touchstone: "), lines[-1].strip())
    last = f"; its last line: {lines[-1].strip()}" if lines else ""
    return Internal(f"The server ended at once with code {code}{last}.", f"Look at {said}.")
