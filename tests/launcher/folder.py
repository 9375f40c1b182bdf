"""One folder under test: run its launcher, wait for its output, and end its processes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 120.0


def write_ballast(wheels: Path, version: str) -> None:
    """A wheel small enough to be written by hand, so that pip really installs and no network is touched."""
    wheels.mkdir(exist_ok=True)
    info = f"ballast-{version}.dist-info"
    files = {
        "ballast.py": f"WEIGHT = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: ballast\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD,,\n"
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    with zipfile.ZipFile(wheels / f"ballast-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


def plain_environment() -> dict[str, str]:
    """That of someone who has set nothing."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}


class Running:
    """A launcher that has been started; both its streams are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._fresh: queue.Queue[str | None] = queue.Queue()
        self._passed_over: list[str] = []  # lines that came before an expected one; the order of two streams varies
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        with stream:
            for line in stream:
                self._fresh.put(line.rstrip())
        self._fresh.put(None)

    def expect(self, words: str, limit_s: float = LIMIT_S) -> str:
        """Return the first line with these words. Fails with all output so far if it does not come."""
        if early := next((line for line in self._passed_over if words in line), None):
            self._passed_over.remove(early)
            return early
        deadline, open_streams = time.monotonic() + limit_s, 2
        while open_streams:
            try:
                line = self._fresh.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                open_streams -= 1
                continue
            self.lines.append(line)
            if words in line:
                return line
            self._passed_over.append(line)
        raise AssertionError(f"{words!r} was not said in:\n" + "\n".join(self.lines))

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes_file = root / "notes.jsonl"
        self._started: list[Running] = []

    def plan(self, **behaviour: Any) -> None:
        (self.root / "plan.json").write_text(json.dumps(behaviour))

    @property
    def notes(self) -> list[dict[str, Any]]:
        return (
            [json.loads(line) for line in self.notes_file.read_text().splitlines()] if self.notes_file.exists() else []
        )

    def calls(self) -> list[list[str]]:
        return [note["arguments"] for note in self.notes if "arguments" in note]

    def server_pid(self) -> int:
        return next(int(note["pid"]) for note in self.notes if note.get("arguments", [""])[0] == "serve")

    @property
    def stamp(self) -> Path:
        return self.root / ".venv/touchstone.json"

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        script: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        command = [str(script or self.root / "launch_wsl.sh"), *arguments]
        environment = {**plain_environment(), **(env or {})}
        done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, env=environment, timeout=LIMIT_S)
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, command: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Running:
        process = subprocess.Popen(
            [*command, *([] if command else [str(self.root / "launch_wsl.sh"), *arguments])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**plain_environment(), **(env or {})},
            start_new_session=True,
        )
        self._started.append(Running(process))
        return self._started[-1]

    def end_all(self) -> None:
        for running in self._started:
            if running.process.poll() is None:
                os.killpg(running.process.pid, signal.SIGKILL)
                running.process.wait()
        for pid in (note.get("pid", 0) for note in self.notes):
            if alive(pid) and str(self.root) in command_line(pid):  # a number may belong to another process by now
                os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    """Empty where it cannot be read, as on macOS."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which only its parent can bury, does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return ") Z " not in status.read_text() if Path("/proc/self/stat").exists() else True
    except (ProcessLookupError, FileNotFoundError):
        return False
