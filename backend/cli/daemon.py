"""Starts, finds and stops a server in the background. Its log files are in its data folder."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.common.data_dir import DataDir
from backend.common.errors import Configuration, Internal
from backend.common.installation import ROOT, is_installed
from backend.common.types import JsonObject

if TYPE_CHECKING:
    from backend.common.config.settings import Settings

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0  # the server promises 5
POLL_INTERVAL_S = 0.1


def running(settings: Settings) -> JsonObject | None:
    """Return the address, process id and health of the data folder's server. Optional: None if none answers."""
    import httpx

    note = DataDir(settings.data_dir).holder() or {}
    if not note.get("url"):
        return None
    try:
        with httpx.Client(trust_env=False, timeout=2.0) as http:
            answer = http.get(f"{note['url']}/api/health")
            health = answer.json()
    except (httpx.HTTPError, ValueError):
        return None
    # After a kill the note remains. Another server, with another data folder, may use that port by now.
    is_same = answer.status_code == 200 and isinstance(health, dict) and health.get("id") == note.get("id")
    return {"url": note["url"], "pid": note.get("pid"), **health} if is_same else None


def start(settings: Settings, flags: list[str]) -> JsonObject:
    """Start a server, wait until it answers, and return the same as `running`. `flags` are flags of `serve`.

    Raises Configuration, Internal.
    """
    logs = settings.data_dir / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        output = (logs / "start.log").open("wb")
    except OSError as error:
        raise Configuration(
            f"The folder {logs} is not writable: {error.strerror}.", "Set TOUCHSTONE_DATA_DIR to another folder."
        ) from error
    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        detached = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    log_file = settings.log.file or logs / "touchstone.log"
    # A checkout is found by the working folder. An installed package keeps the caller's, whose config.yaml counts;
    # -P prevents modules in that folder from being imported.
    python = [sys.executable, "-P"] if is_installed() else [sys.executable]
    with output:
        process = subprocess.Popen(
            [*python, "-m", "backend", "serve", "--log-file", str(log_file.absolute()), *flags],
            cwd=None if is_installed() else ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **detached,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if (server := running(settings)) and server["pid"] == process.pid:
            return server
        time.sleep(POLL_INTERVAL_S)
    if process.poll() is None:
        process.kill()
        raise Internal(f"The server did not answer within {START_TIMEOUT_S:g} s.", f"See the log {log_file}.")
    raise _start_error(logs / "start.log", process.returncode)


def stop(settings: Settings) -> bool:
    """Request the data folder's server to end and wait for it. Return False if none runs. Raises Internal."""
    server = running(settings)
    if server is None:
        return False
    folder = DataDir(settings.data_dir)
    folder.ask_to_stop(server["id"])
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        if (folder.holder() or {}).get("id") != server["id"]:
            return True
        time.sleep(POLL_INTERVAL_S)
    raise Internal(
        f"The server (process {server['pid']}) did not end within {STOP_TIMEOUT_S:g} s.",
        f"See its log in {settings.data_dir / 'logs'}.",
    )


def _start_error(output: Path, exit_code: int) -> Configuration | Internal:
    """Return the error that the server printed before it ended: detail and remedy are its last two lines."""
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    if exit_code == 2 and len(lines) >= 2:
        return Configuration(lines[-2].removeprefix("touchstone: "), lines[-1].strip())
    last = f"; its last line: {lines[-1].strip()}" if lines else ""
    return Internal(f"The server ended at once with exit code {exit_code}{last}.", f"See {output}.")
