"""A TCP proxy that delays, throttles, resets or drops responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit


@dataclass
class FaultProxy:
    """`with FaultProxy(url, …) as line:` has at `line.url` the server behind faults, which hit what it sends."""

    target: str
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    cut_after_bytes: int | None = None
    swallows: bool = False
    url: str = field(init=False, default="")
    _loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.new_event_loop)

    def __enter__(self) -> FaultProxy:
        ready = threading.Event()
        threading.Thread(target=self._serve, args=(ready,), daemon=True).start()
        assert ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)

        async def listen() -> None:
            self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
            ready.set()

        self._loop.run_until_complete(listen())
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = urlsplit(self.target).port
        there, back = await asyncio.open_connection("127.0.0.1", port)
        pumps = [
            asyncio.create_task(self._pump(reader, back, False)),
            asyncio.create_task(self._pump(there, writer, True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.transport.abort()
            back.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, faulty: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await source.read(4096):
                if faulty:
                    await asyncio.sleep(self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0))
                    if self.swallows:
                        continue
                    if self.cut_after_bytes is not None and passed + len(data) > self.cut_after_bytes:
                        sink.write(data[: self.cut_after_bytes - passed])
                        await sink.drain()
                        _reset(sink)
                        return
                passed += len(data)
                sink.write(data)
                await sink.drain()


def _reset(sink: asyncio.StreamWriter) -> None:
    """Closes as a broken line does, not in order."""
    sink.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sink.transport.abort()
