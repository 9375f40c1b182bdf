"""The server as the launcher's child: started, watched until it answers, stopped, and its exit code kept."""

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

STOP_LIMIT_S = 8.0  # the server promises 5
LISTENING = re.compile(r"Touchstone \S+ listening on (\S+)")
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
DIRECT = build_opener(ProxyHandler({}))  # a proxy from the environment must not see loopback


class Server:
    """Signals reach the launcher alone, which passes on one SIGTERM: a second Ctrl-C would cut the good-bye short."""

    def __init__(self, command: Sequence[str]) -> None:
        self.url: str | None = None
        self.everywhere = False  # listens on all addresses
        self.stopping = False
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; from now on signals to the launcher stop it."""
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
        if self.stopping:  # the signal came while the child was being made
            self.stop()

    def exit_code(self) -> int | None:
        """None while it runs; a death by signal N is 128 + N, as in shells."""
        assert self._process
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self) -> int:
        """Waits for its end; returns the exit code, 0 if it was never started."""
        if self._process is None:
            return 0
        subprocesses.wait(self._process)
        return self.exit_code() or 0

    def stop(self) -> None:
        """Asks it to end, and kills it if it does not. May be called again."""
        self.stopping = True
        if self._process is None or self._process.poll() is not None:
            return
        if sys.platform != "win32":  # there Ctrl-C has reached the server already, and terminate() would be a kill
            self._process.terminate()
        killer = threading.Timer(STOP_LIMIT_S, self._process.kill)
        killer.daemon = True
        killer.start()

    def healthy(self) -> bool:
        """Whether `/api/health` answers 200, whatever it says."""
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
        """Passes stdout on as it comes and reads the address from it; keeps draining if nobody listens any more."""
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
    """The address to call where the server listens on every interface."""
    parts = urlsplit(url)
    if parts.hostname in WILDCARDS:
        parts = parts._replace(netloc=f"{WILDCARDS[parts.hostname]}:{parts.port}")
    return urlunsplit(parts)
