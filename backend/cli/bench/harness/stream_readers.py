"""Reads many concurrent streams of a server and counts tokens and events. A separate process without our imports.

Arguments: address, number of streams, seconds. It prints a line when all streams have started, and at the end
`{tokens, events, seconds}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

BODY = {"prompt": "Go on.", "stream": True, "options": {"max_tokens": 100_000}}
COUNT = b'"count":'


class Crowd:
    """All streams."""

    def __init__(self, address: str, streams: int) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._waiting = streams
        self.begun = asyncio.Event()
        self.tokens = self.events = 0

    async def read(self) -> None:
        """Read one stream. It counts as started from its first token."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        body = json.dumps(BODY).encode()
        head = f"POST /api/generate HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        first = True
        async for line in reader:
            if first and line.startswith(b"event: error"):
                raise RuntimeError(f"a stream failed before its first token: {await reader.readline()!r}")
            if line.startswith(b"data:") and (place := line.find(COUNT)) > 0:
                self.tokens += int(line[place + len(COUNT) :].split(b",")[0].split(b"}")[0])
                self.events += 1
                if first:
                    first = False
                    self._waiting -= 1
                    if not self._waiting:
                        self.begun.set()


async def main(address: str, streams: int, seconds: float) -> None:
    """Count for a time, then close the streams."""
    crowd = Crowd(address, streams)
    reading = [asyncio.create_task(crowd.read()) for _ in range(streams)]
    begun = asyncio.create_task(crowd.begun.wait())
    done, _ = await asyncio.wait({begun, *reading}, return_when=asyncio.FIRST_COMPLETED)
    for task in done - {begun}:
        task.result()  # raises why a stream ended before all had started
    _say("begun")
    before, began = (crowd.tokens, crowd.events), time.perf_counter()
    await asyncio.sleep(seconds)
    spent_s = time.perf_counter() - began
    counts = {"tokens": crowd.tokens - before[0], "events": crowd.events - before[1], "seconds": spent_s}
    _say(json.dumps(counts))
    for task in reading:
        task.cancel()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
