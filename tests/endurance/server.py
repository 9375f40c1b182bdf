"""`python -m tests.endurance.server FLAGS…`: the real server by clocks that lines on stdin move.

`awake 900`: so many seconds pass at once. `asleep 3600`: the machine sleeps so long. `set -7200`: the clock is set.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib
import sys
import threading
import time
from typing import Any

_KINDS = ("awake", "asleep", "set")


class Clocks:
    """The system's clocks, ahead by what has been said."""

    def __init__(self) -> None:
        self.ahead = dict.fromkeys(_KINDS, 0.0)
        self._real: dict[str, Any] = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
        self._of = time.clock_gettime

    def install(self) -> None:
        """From now on everybody in this process who asks for the time gets ours."""
        modules: Any = time
        modules.time = self.wall
        modules.time_ns = lambda: int(self.wall() * 1e9)
        modules.monotonic = lambda: self._real["monotonic"]() + self.ahead["awake"]
        modules.perf_counter = lambda: self._real["perf_counter"]() + self.ahead["awake"]
        modules.clock_gettime = self._clock
        moments: Any = importlib.import_module("backend.common.timestamps")
        moments.datetime = _day(self)

    def wall(self) -> float:
        """The clock on the wall."""
        return float(self._real["time"]()) + sum(self.ahead.values())

    def _clock(self, which: int) -> float:
        return float(self._of(which)) + self.ahead["awake"] + self.ahead["asleep"]


def _day(clocks: Clocks) -> type[datetime.datetime]:
    class Day(datetime.datetime):
        """`now` by the clock on the wall, which the C code would not ask."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Day:
            return cls.fromtimestamp(clocks.wall(), tz)

    return Day


def main(flags: list[str]) -> int:
    """Serves until SIGTERM."""
    clocks = Clocks()
    clocks.install()
    from backend.common.config.settings import load_settings
    from backend.server import log_format
    from backend.server.process import serve

    config, data_dir = flags
    settings = load_settings({"config": config, "storage.data_dir": data_dir, "server.port": 0})
    log_format.configure(settings)

    async def play() -> None:
        loop = asyncio.get_running_loop()

        def listen() -> None:
            for line in sys.stdin:
                kind, seconds = line.split()
                clocks.ahead[kind] += float(seconds)
                loop.call_soon_threadsafe(lambda: None)  # its timers are looked at anew

        threading.Thread(target=listen, daemon=True).start()
        await serve(settings, lambda line: print(line, flush=True))

    asyncio.run(play())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
