"""The wire protocol: frames arrive complete, and anything else is rejected."""

from __future__ import annotations

import io
import struct

import pytest

from backend.child.wire_protocol import BODY_LIMIT_BYTES, HEADER_LIMIT_BYTES, Channel, Frame, WireError


def received(raw: bytes) -> tuple[Frame, bytes] | None:
    return Channel(io.BytesIO(raw), io.BytesIO()).receive()


def sent(header: Frame, body: bytes = b"") -> bytes:
    out = io.BytesIO()
    Channel(io.BytesIO(), out).send(header, body)
    return out.getvalue()


@pytest.mark.parametrize("text", ["", "plain", "é👩‍👩‍👧\u2028\x00\x1b[31m", "x" * 1_000_000])
@pytest.mark.parametrize("body", [b"", b"\x00\xff" * 1000])
def test_what_goes_in_comes_out(text: str, body: bytes) -> None:
    assert received(sent({"op": "token", "text": text}, body)) == ({"op": "token", "text": text}, body)


def test_the_end_between_frames_is_an_end() -> None:
    assert received(b"") is None


@pytest.mark.parametrize("cut", range(1, len(sent({"op": "x"}, b"ab"))))
def test_the_end_inside_a_frame_is_no_end(cut: int) -> None:
    with pytest.raises(WireError):
        received(sent({"op": "x"}, b"ab")[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        b"Segmentation fault\n" * 3,
        struct.pack("!II", HEADER_LIMIT_BYTES + 1, 0),
        struct.pack("!II", 2, BODY_LIMIT_BYTES + 1) + b"{}",
        struct.pack("!II", 2, 0) + b"{]",
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 2, 0) + b"{}",
        struct.pack("!II", 8, 0) + b'{"op":1}',
        struct.pack("!II", 2, 0) + b"\xff\xfe",
    ],
)
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        received(raw)
