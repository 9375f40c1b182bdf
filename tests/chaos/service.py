"""The real server under test, across restarts on one data folder."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from pathlib import Path

from tests.chaos.disk import Disk
from tests.chaos.ledger import Ledger
from tests.chaos.processes import MARK, bytes_of, gone
from tests.service import ROOT, Server, first_line

TINY = ROOT / "tests" / "cases" / "gguf" / "tiny_no_template.gguf"
SILENCE_S = 2.5  # a worker says each second that it lives
STOP_S = 5.0  # from SIGTERM to the exit
AFTER_DEATH_S = 2.0  # then no child of a dead server lives


class Service:
    """Starts, kills, stops and pauses the server; `life` counts the starts. Whoever strikes it holds `striking`."""

    def __init__(self, folder: Path, ledger: Ledger, model_file: Path) -> None:
        self.ledger = ledger
        self.disk = Disk(folder / "data")
        self.scratch = folder / "tmp"
        self.log = folder / "server.log"
        self.run = secrets.token_hex(8)
        self.life = 0
        self.up = threading.Event()  # cleared before the server is struck dead, set when it listens
        self.striking = threading.RLock()
        self.paused_spans: list[tuple[float, float]] = []
        self.deaths: list[tuple[float, float]] = []  # from the signal to the end
        self.stop_seconds: list[float] = []
        self.resident: list[tuple[int, int]] = []  # of each round's end: life, bytes
        self._config = folder / "config.yaml"
        self._settings = {
            "models": {"tiny": {"path": str(TINY)}, "large": {"path": str(model_file)}},
            "default_models": {"text": "tiny"},
            "supervision": {"silence_s": SILENCE_S, "load_s": 20, "step_s": 10, "cancel_s": 1, "probe_s": 10},
            "text": {"context_tokens": 1024, "slots": 2, "keep_alive_s": 20},
        }

    def prepare(self) -> None:
        """Makes the folders and the settings."""
        self.disk.mount()
        self.scratch.mkdir()
        self._config.write_text(json.dumps(self._settings))

    def start(self) -> None:
        """Starts it; on a full disk it may refuse in words, and room is made for it."""
        began = time.time()
        while not self._listens():
            if not self.disk.was_full(began):
                tail = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server does not start: {tail}")
            self.ledger.refuse("start on a full disk")
            self.disk.free()
            began = time.time()
        self.life += 1
        self.up.set()

    def kill(self) -> None:
        """SIGKILL; nothing that it started may outlive it."""
        self.up.clear()
        signalled = time.time()
        self.server.stop(signal.SIGKILL)
        self._bury(signalled)

    def stop(self) -> None:
        """SIGTERM: prompt, exit code 0, no child left."""
        self.up.clear()
        began, signalled = time.monotonic(), time.time()
        try:
            code = self.server.stop()
        except subprocess.TimeoutExpired:
            self.ledger.wrong("SIGTERM: the server did not end within 20 s")
            self.server.process.kill()
            self.server.process.wait()
        else:
            seconds = time.monotonic() - began
            self.stop_seconds.append(seconds)
            if code != 0:
                self.ledger.wrong(f"SIGTERM: exit code {code}")
            if seconds > STOP_S:
                self.ledger.wrong(f"SIGTERM: the end took {seconds:.1f} s")
        self._bury(signalled)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        began = time.time()
        self.server.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.server.process.send_signal(signal.SIGCONT)
        self.paused_spans.append((began, time.time()))

    def check_alive(self) -> None:
        """Only we may end it."""
        with self.striking:
            if self.server.process.poll() is not None:
                self.ledger.wrong(f"the server ended by itself with code {self.server.process.returncode}")
                self.kill()
                self.start()

    def note_memory(self) -> None:
        """Takes down its resident bytes."""
        self.resident.append((self.life, bytes_of(self.server.process.pid, "VmRSS")))

    def _listens(self) -> bool:
        flags = ["--config", str(self._config), "--data-dir", str(self.disk.folder)]
        process, line = first_line(self.log, flags, {MARK: self.run, "TMPDIR": str(self.scratch)})
        if " listening on " not in line:
            process.wait(20)
            return False
        self.server = Server(process, line.split()[-1], self.disk.folder, self.log)
        return True

    def _bury(self, signalled: float) -> None:
        self.deaths.append((signalled, time.time()))
        for process in gone(self.run, AFTER_DEATH_S):
            self.ledger.wrong(f"process {process.pid} ({' '.join(process.words)}) outlived its server")
            os.kill(process.pid, signal.SIGKILL)
