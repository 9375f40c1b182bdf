"""Frames over pipes: u32 header length, u32 body length, a JSON header, raw bytes. Both sides use this file.

A frame's header is an object with the key `op`. Limits keep a child that writes nonsense from filling the parent; the
child trusts its parent, whose orders hold whole prompts.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections.abc import Iterable
from typing import Any, BinaryIO

WIRE_VERSION = 1
HEADER_LIMIT_BYTES = 4 * 1024 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024
ORDER_LIMIT_BYTES = 2**32 - 1  # what the length can say; how much a caller may send is the guard's business
_LENGTHS = struct.Struct("!II")

Header = dict[str, Any]


class WireError(Exception):
    """What arrived is not a frame of this wire."""


class Channel:
    """One end of the wire. `send` may be called from any thread, `receive` from one."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO, header_limit_bytes: int = HEADER_LIMIT_BYTES) -> None:
        self._header_limit_bytes = header_limit_bytes
        self._reader = reader
        self._writer = writer
        self._sending = threading.Lock()

    def send(self, header: Header, body: bytes = b"") -> None:
        """Writes one frame whole. Raises OSError when the other side is gone."""
        self.write(framed(header, body))

    def send_all(self, headers: Iterable[Header]) -> None:
        """Writes several frames at once, which wakes the other side once. Raises OSError as `send`."""
        self.write(b"".join(framed(header) for header in headers))

    def write(self, frames: bytes) -> None:
        """Writes what `framed` made. Raises OSError as `send`."""
        with self._sending:
            self._writer.write(frames)
            self._writer.flush()

    def receive(self) -> tuple[Header, bytes] | None:
        """Returns the next frame, or None at the end of the stream. Raises WireError for anything else."""
        lengths = self._reader.read(_LENGTHS.size)
        if not lengths:
            return None
        if len(lengths) < _LENGTHS.size:
            raise WireError("the stream ended inside a frame")
        header_size, body_size = _LENGTHS.unpack(lengths)
        if header_size > self._header_limit_bytes or body_size > BODY_LIMIT_BYTES:
            raise WireError(f"a frame claims {header_size} + {body_size} bytes: this is not our wire")
        text, body = self._reader.read(header_size), self._reader.read(body_size)
        if len(text) < header_size or len(body) < body_size:
            raise WireError("the stream ended inside a frame")
        try:
            header = json.loads(text)
        except ValueError as error:
            raise WireError(f"a frame's header is not JSON: {error}") from error
        if not isinstance(header, dict) or not isinstance(header.get("op"), str):
            raise WireError("a frame's header has no op")
        return header, body


def framed(header: Header, body: bytes = b"") -> bytes:
    """One frame as it travels."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def claim_stdio() -> Channel:
    """Takes fds 0 and 1 for the wire and points fd 1 at stderr, so that no library's print can reach the frames.

    Must run before any other import of the child.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(incoming, os.O_BINARY)
        msvcrt.setmode(outgoing, os.O_BINARY)
    return Channel(os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb"), ORDER_LIMIT_BYTES)
