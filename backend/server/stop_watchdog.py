"""Ends the process if an orderly stop takes too long.

A thread, or the event loop itself, may be inside a read that never returns: of a dead network mount, of a hung driver.
Python waits for such threads at its exit, and runs no signal handler while its main thread is blocked.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time

log = logging.getLogger(__name__)
LIMIT_S = 4.0
_ARM = 0  # no signal has this number


class StopWatchdog:
    """A daemon thread that ends the process LIMIT_S after the first signal to stop, or after `arm`.

    Make it in the main thread. On Windows the event loop uses the wakeup descriptor, so only `arm` starts the time.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        if sys.platform != "win32":  # written by the signal itself, whatever the main thread does
            signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="stop-watchdog", daemon=True).start()

    def arm(self) -> None:
        """Start the time: the server stops."""
        self._sender.send(bytes((_ARM,)))

    def _watch(self) -> None:
        while (number := self._receiver.recv(1)) and number[0] not in (_ARM, signal.SIGINT, signal.SIGTERM):
            pass
        time.sleep(self._limit_s)
        log.warning("server did not stop in time, the process ends now", extra={"timeout_s": self._limit_s})
        for handler in logging.getLogger().handlers:
            handler.flush()
        os._exit(0)
