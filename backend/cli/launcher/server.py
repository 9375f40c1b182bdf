"""The server as a child process of the launcher: start, health, stop and exit code."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, build_opener

from backend.cli.launcher import subprocesses

STOP_TIMEOUT_S = 8.0  # the server promises 5
LISTENING = re.compile(r"Touchstone \S+ listening on (\S+)")
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
DIRECT = build_opener(ProxyHandler({}))  # proxies of the environment must not get loopback requests


class Server:
    """The server process. Signals reach the launcher, which sends one SIGTERM: a second would abort the shutdown."""

    def __init__(self, command: Sequence[str]) -> None:
        self.url: str | None = None
        self.everywhere = False  # listens on all addresses
        self.stopping = False
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server. From now on signals to the launcher stop it."""
        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
        for name in names:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=sys.platform != "win32",
        )
        threading.Thread(target=self._relay, args=(self._process,), daemon=True).start()
        if self.stopping:  # a signal came while the child was started
            self.stop()

    def exit_code(self) -> int | None:
        """Return the exit code; for a death by signal N 128 + N, as in shells. Optional: None while it runs."""
        assert self._process
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self) -> int:
        """Wait for the server to end; return its exit code, 0 if it was never started."""
        if self._process is None:
            return 0
        subprocesses.wait(self._process)
        return self.exit_code() or 0

    def stop(self) -> None:
        """Terminate the server, and kill it after a timeout. May be called again."""
        self.stopping = True
        if self._process is None or self._process.poll() is not None:
            return
        if sys.platform != "win32":  # on Windows Ctrl-C reaches the server itself, and terminate() kills
            self._process.terminate()
        killer = threading.Timer(STOP_TIMEOUT_S, self._process.kill)
        killer.daemon = True
        killer.start()

    def healthy(self) -> bool:
        """Return whether `/api/health` answers 200, whatever its status."""
        if self.url is None:
            return False
        try:
            with DIRECT.open(self.url.rstrip("/") + "/api/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError, ValueError):
            return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stop()

    def _relay(self, process: subprocess.Popen[bytes]) -> None:
        """Copy the server's stdout and read the address from it. Continues to read if our stdout is closed."""
        assert process.stdout
        for line in process.stdout:
            match = LISTENING.match(line.decode("utf-8", "replace"))
            if match and self.url is None:
                self.everywhere = urlsplit(match[1]).hostname in WILDCARDS
                self.url = reachable(match[1])
            try:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            except OSError:
                continue


def reachable(url: str) -> str:
    """Return an address that works for a server that listens on all interfaces."""
    parts = urlsplit(url)
    if parts.hostname in WILDCARDS:
        parts = parts._replace(netloc=f"{WILDCARDS[parts.hostname]}:{parts.port}")
    return urlunsplit(parts)
