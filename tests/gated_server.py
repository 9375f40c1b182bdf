"""The base of the tests' web servers: a separate thread, a gate that holds an answer, and a clean shutdown."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable
from typing import Any, Self


class GatedServer:
    """Serves GET with `answer` while it is entered. While `gate` is clear, answers that wait at it stand still."""

    def __init__(
        self,
        answer: Callable[[http.server.BaseHTTPRequestHandler], None],
        tls: ssl.SSLContext | None = None,
        shake_hands: bool = True,
    ) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.stalled = threading.Event()  # somebody waits at the gate
        self.hung_up = threading.Event()  # a client went away

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=shake_hands
            )
        self.origin = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def wait_at_gate(self, connection: Any) -> bool:
        """Stands still until the gate opens or the client is gone; tells whether to go on."""
        connection.settimeout(0.05)
        self.stalled.set()
        while not self.gate.is_set():
            try:
                if connection.recv(1) == b"":
                    self.hung_up.set()
                    return False
            except TimeoutError:
                continue
            except OSError:
                self.hung_up.set()
                return False
        connection.settimeout(None)
        return True

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
