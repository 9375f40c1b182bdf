"""uv: where it is, how it comes onto the machine, and running it so that it never outlives this process."""

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
from backend.child.progress_report import ProgressReport
from backend.common.installer_errors import UV_KILLED


class Uv:
    """Runs uv, one command at a time."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program = program
        self._environ = dict(environ)
        self._running: subprocess.Popen[bytes] | None = None

    def run(self, words: list[str]) -> tuple[int, str]:
        """Exit code, and all that it said; its end by a signal as one more error."""
        options: dict[str, Any] = {"preexec_fn": process.die_with_parent} if sys.platform == "linux" else {}
        self._running = subprocess.Popen(
            [self._program, *words, "--no-progress", "--color", "never"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ,
            **options,
        )
        raw, _ = self._running.communicate()
        code, said = self._running.returncode, raw.decode("utf-8", "replace")
        return code, f"{said}\nerror: {UV_KILLED}{signal.Signals(-code).name}" if code < 0 else said

    def kill(self) -> None:
        """Ends the command that runs, if one does."""
        if self._running and self._running.poll() is None:
            with contextlib.suppress(OSError):
                self._running.kill()


def find_uv(order: dict[str, Any], report: ProgressReport) -> str:
    """uv beside this interpreter, or in the folder of tools; brought there by pip the first time. Raises Refused."""
    name = "uv.exe" if os.name == "nt" else "uv"
    beside = Path(sysconfig.get_path("scripts")) / name
    folder = Path(order["tools"]) / order["uv"].replace("=", "")
    kept = folder / "bin" / name
    for found in (beside, kept):
        if found.is_file():
            return str(found)
    report.progress("tool", 0, None)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-I", "-m", "pip", "install", "--target", str(folder), "--upgrade", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "-vv", order["uv"]]
    options: dict[str, Any] = {"preexec_fn": process.die_with_parent} if sys.platform == "linux" else {}
    environ = {**os.environ, "PIP_USER": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environ, stdin=subprocess.DEVNULL, **options
    )
    if done.returncode or not kept.is_file():
        refused = explain_pip(done.stdout + done.stderr, order["uv"], folder)
        why = refused.detail.removeprefix("The model could not be downloaded: ").rstrip(".")
        raise Refused(
            refused.code if refused.code == "disk_full" else "runtime_failed",
            f"The installer {order['uv']} could not be fetched: {why}.",
            "Check the network, HTTPS_PROXY and pip's configuration (`pip config list`), then install again; or put uv "
            f"into this Python's environment: `{sys.executable} -m pip install {order['uv']}`.",
        )
    return str(kept)
