"""Find or fetch uv, and run it so that it never outlives this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.child import process
from backend.child.download.errors import Refused, explain_pip
from backend.child.install.orders import InstallOrder
from backend.child.progress_report import ProgressReport
from backend.common.installer_errors import UV_KILLED


class Uv:
    """Runs uv, one command at a time."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program = program
        self._environ = dict(environ)
        self._running: subprocess.Popen[bytes] | None = None

    def run(self, arguments: list[str]) -> tuple[int, str]:
        """Run a command; return its exit code and output. A signal that killed it is appended as an error line."""
        options: dict[str, Any] = {"preexec_fn": process.die_with_parent} if sys.platform == "linux" else {}
        self._running = subprocess.Popen(
            [self._program, *arguments, "--no-progress", "--color", "never"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ,
            **options,
        )
        raw_output, _ = self._running.communicate()
        code, output = self._running.returncode, raw_output.decode("utf-8", "replace")
        return code, f"{output}\nerror: {UV_KILLED}{signal.Signals(-code).name}" if code < 0 else output

    def kill(self) -> None:
        """Kill the running command, if there is one."""
        if self._running and self._running.poll() is None:
            with contextlib.suppress(OSError):
                self._running.kill()


def find_uv(order: InstallOrder, report: ProgressReport) -> str:
    """Return uv next to this interpreter or in the tools folder, where pip installs it if absent. Raises Refused."""
    name = "uv.exe" if os.name == "nt" else "uv"
    local = Path(sysconfig.get_path("scripts")) / name
    folder = Path(order["tools"]) / order["uv"].replace("=", "")
    installed = folder / "bin" / name
    for candidate in (local, installed):
        if candidate.is_file():
            return str(candidate)
    report.progress("tool", 0, None)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-I", "-m", "pip", "install", "--target", str(folder), "--upgrade", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "-vv", order["uv"]]
    options: dict[str, Any] = {"preexec_fn": process.die_with_parent} if sys.platform == "linux" else {}
    environ = {**os.environ, "PIP_USER": "0"}
    completed = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environ, stdin=subprocess.DEVNULL, **options
    )
    if completed.returncode or not installed.is_file():
        refused = explain_pip(completed.stdout + completed.stderr, order["uv"], folder)
        why = refused.detail.removeprefix("The model could not be downloaded: ").rstrip(".")
        raise Refused(
            refused.code if refused.code == "disk_full" else "runtime_failed",
            f"The installer {order['uv']} could not be fetched: {why}.",
            "Check the network, HTTPS_PROXY and pip's configuration (`pip config list`), then install again; or put uv "
            f"into this Python's environment: `{sys.executable} -m pip install {order['uv']}`.",
        )
    return str(installed)
