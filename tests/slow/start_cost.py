"""Measure what starting the server costs: `python -m tests.slow.start_cost [ROUNDS]`.

It prints the seconds from the start of `serve` to the first line, to the proof of each device, and to the end of the
checks of all engines. Then it prints the longest times for which a round of proofs held the event loop, with the line
that held it. On a busy machine both are longer: compare the processor time that is printed with them.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import httpx

from backend.common.config.settings import load_settings
from backend.manager import ModelManager
from tests.service import start_server

GOAL_S, GOAL_WITH_CARD_S, GOAL_MS = 3.0, 6.0, 5.0
_LOOK_S = 0.001


@dataclass(frozen=True)
class Hold:
    """A time for which the event loop ran one callback."""

    ms: float
    where: str


class LoopWatch(threading.Thread):
    """Asks the event loop again and again for a sign of life, and notes where it is when none comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self.holds: list[Hold] = []
        self.goes_on = True
        self._loop = loop
        self._watched = threading.get_ident()
        self.start()

    def run(self) -> None:
        while self.goes_on:
            answered, began = threading.Event(), time.perf_counter()
            self._loop.call_soon_threadsafe(answered.set)
            if not answered.wait(GOAL_MS / 1000):
                stack = traceback.extract_stack(sys._current_frames()[self._watched])
                ours = [frame for frame in stack if "backend" in frame.filename] or list(stack)
                answered.wait()
                if "selectors" in stack[-1].filename:  # it waited: the system ran other programs
                    continue
                where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].line}"
                self.holds.append(Hold((time.perf_counter() - began) * 1000, where))
            time.sleep(_LOOK_S)


def measure_start() -> None:
    """Print the seconds until the server listens, until its devices are proved, and until their engines are checked."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        server = start_server(Path(folder) / "data")
        listening_s = time.perf_counter() - began
        ready_s: dict[str, float] = {}
        is_probing = True
        while is_probing:
            found = httpx.get(f"{server.url}/api/devices", timeout=90, trust_env=False).json()
            now_s, is_probing = time.perf_counter() - began, found["probing"]
            for device in found["devices"]:
                if device["state"] == "ready":
                    ready_s.setdefault(device["id"], now_s)
            time.sleep(0.02)
        checked_s = time.perf_counter() - began
        server.stop()
    proved = ", ".join(f"{device} {seconds:.2f} s" for device, seconds in ready_s.items())
    goal_s = GOAL_S if set(ready_s) <= {"cpu"} else GOAL_WITH_CARD_S
    print(f"listening after {listening_s:.2f} s; proved: {proved} (goal {goal_s:g} s); checked after {checked_s:.2f} s")


async def measure_holds(rounds: int) -> None:
    """Print the longest holds of the event loop in rounds of proofs."""
    with tempfile.TemporaryDirectory() as folder:
        manager = ModelManager(load_settings({"storage.data_dir": folder}, {}))
        watch = LoopWatch(asyncio.get_running_loop())
        for _ in range(rounds):
            await manager.probes.probe()
        watch.goes_on = False
    print(f"{len(watch.holds)} holds above {GOAL_MS:g} ms in {rounds} rounds")
    for hold in sorted(watch.holds, key=lambda hold: -hold.ms)[:5]:
        print(f"{hold.ms:6.1f} ms  {hold.where}")


def main() -> None:
    """Measure both, and print the load of the machine."""
    measure_start()
    asyncio.run(measure_holds(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"children used {used.ru_utime + used.ru_stime:.1f} s of processor time; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
