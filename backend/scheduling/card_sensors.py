"""Free memory, energy and power of cards, read by a child process: a read in a hung driver may never return.

The functions block for at most LIMIT_S: call them in a thread. The first call starts the child. It is killed when it
does not answer, and ends after an idle time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import sys
import threading
from typing import BinaryIO, cast

from backend.child.handle import Spawn, spawn
from backend.child.wire_protocol import Channel, Frame, WireError
from backend.common.hardware.free_memory import PCI, TOOL_S

log = logging.getLogger(__name__)
LIMIT_S = TOOL_S + 2.0
IDLE_S = 30.0


class SensorProcess:
    """The child that reads sensors. Its methods may be called from any thread."""

    def __init__(self, spawn: Spawn, limit_s: float = LIMIT_S, idle_s: float = IDLE_S) -> None:
        self._spawn = spawn
        self._limit_s = limit_s
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._answers: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._ending: threading.Timer | None = None

    def read(self, quantity: str, hardware_id: str) -> float | None:
        """Return a quantity of a card, None if it is unknown or if no answer comes in time."""
        if not hardware_id.startswith(PCI) or not self._lock.acquire(timeout=self._limit_s):
            return None
        try:
            answer = self._ask({"op": "read", "quantity": quantity, "hardware": hardware_id})
        except (OSError, queue.Empty) as error:
            if isinstance(error, queue.Empty):
                log.warning("sensor without an answer", extra={"quantity": quantity, "hardware": hardware_id})
            self._end()
            return None
        finally:
            self._lock.release()
        value = answer.get("value") if answer else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _ask(self, request: Frame) -> Frame | None:
        if self._ending:
            self._ending.cancel()
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._channel
        self._channel.send(request)
        answer = self._answers.get(timeout=self._limit_s)
        if answer is None:  # it died
            self._end()
            return None
        self._ending = threading.Timer(self._idle_s, self._end_idle)
        self._ending.daemon = True
        self._ending.start()
        return answer

    def _start(self) -> None:
        self._end()
        process = self._process = self._spawn(sys.executable, ["survey", "sensors"])
        channel = self._channel = Channel(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin))
        answers = self._answers = queue.SimpleQueue()
        threading.Thread(target=_collect, args=(channel, process.stdout, answers), daemon=True).start()
        threading.Thread(target=_discard, args=(process.stderr,), daemon=True).start()

    def _end_idle(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        """Kill the child without waiting for it: it may be inside a driver that does not return."""
        if self._process:
            self._process.kill()
            with contextlib.suppress(OSError):
                cast(BinaryIO, self._process.stdin).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
        self._process = self._channel = None


def _collect(channel: Channel, stream: BinaryIO, answers: queue.SimpleQueue[Frame | None]) -> None:
    with contextlib.suppress(OSError, ValueError, WireError), stream:
        while received := channel.receive():
            answers.put(received[0])
    answers.put(None)


def _discard(stream: BinaryIO) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        while stream.read(1 << 16):
            pass


_sensors = SensorProcess(spawn)


def card_free_bytes(hardware_id: str) -> int | None:
    """Return the free bytes of the card's memory, None if unknown."""
    value = _sensors.read("free_bytes", hardware_id)
    return None if value is None else int(value)


def card_j(hardware_id: str) -> float | None:
    """Return the card's energy counter in joules, None if it has no readable counter."""
    return _sensors.read("energy_j", hardware_id)


def card_w(hardware_id: str) -> float | None:
    """Return the card's power in watts, None if unknown."""
    return _sensors.read("power_w", hardware_id)
