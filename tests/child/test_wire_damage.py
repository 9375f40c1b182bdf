"""Frames of the wire protocol with random content, cut, damaged and sent by several threads at once."""

from __future__ import annotations

import io
import struct
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.wire_protocol import REQUEST_LIMIT_BYTES, Channel, Frame, WireError, encode_frame

FEW = settings(max_examples=25, derandomize=True, deadline=None, database=None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.builds(
    lambda op, rest: {**rest, "op": op}, st.text(max_size=10), st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
)
FRAMES = st.lists(st.tuples(HEADERS, st.binary(max_size=50)), min_size=1, max_size=5)


class OneWrite(io.RawIOBase):
    """A stream that keeps each write as a separate item."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data))
        return len(data)


def reader(raw: bytes, limit: int = 1 << 20) -> Channel:
    return Channel(io.BytesIO(raw), io.BytesIO(), limit)


def read_all(raw: bytes) -> tuple[list[tuple[Frame, bytes]], bool]:
    """Return the frames that were read, and whether the stream ended between two frames."""
    channel, frames = reader(raw), []
    try:
        while received := channel.receive():
            frames.append(received)
    except WireError:
        return frames, False
    return frames, True


@FEW
@given(FRAMES)
def test_frames_in_a_row_arrive_as_they_were_sent(frames: list[tuple[Frame, bytes]]) -> None:
    raw = b"".join(encode_frame(header, body) for header, body in frames)
    assert read_all(raw) == (frames, True)


@settings(FEW, max_examples=10)
@given(FRAMES)
def test_a_cut_stream_gives_only_complete_frames_and_an_error_unless_it_is_cut_between_two(
    frames: list[tuple[Frame, bytes]],
) -> None:
    encoded = [encode_frame(header, body) for header, body in frames]
    raw = b"".join(encoded)
    starts = [sum(map(len, encoded[:count])) for count in range(len(encoded) + 1)]
    for cut in range(len(raw)):
        complete = sum(end <= cut for end in starts[1:])
        assert read_all(raw[:cut]) == (frames[:complete], cut in starts)


@FEW
@given(FRAMES, st.data())
def test_a_changed_byte_raises_nothing_but_a_wire_error(frames: list[tuple[Frame, bytes]], data: st.DataObject) -> None:
    raw = bytearray(b"".join(encode_frame(header, body) for header, body in frames))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    for header, _ in read_all(bytes(raw))[0]:
        assert isinstance(header["op"], str)


@FEW
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_wire_error(raw: bytes) -> None:
    frames, ended = read_all(raw)
    assert not frames
    assert ended == (raw == b"")


@pytest.mark.parametrize(("size", "accepted"), [(100, True), (101, False)])
def test_a_header_may_be_as_long_as_the_limit_and_no_longer(size: int, accepted: bool) -> None:
    text = '{"op":"x"}'.ljust(size).encode()
    raw = struct.pack("!II", len(text), 0) + text
    if accepted:
        assert reader(raw, 100).receive() == ({"op": "x"}, b"")
    else:
        with pytest.raises(WireError, match="101"):
            reader(raw, 100).receive()


def test_a_claimed_length_is_refused_before_anything_is_read() -> None:
    stream = io.BytesIO(struct.pack("!II", 1 << 31, 0) + b"x" * 100)
    with pytest.raises(WireError):
        Channel(stream, io.BytesIO()).receive()
    assert stream.tell() == 8


def test_a_child_accepts_orders_that_are_longer_than_what_it_may_send() -> None:
    text = b'{"op":"load"}'.ljust(5 * 1024 * 1024)
    raw = struct.pack("!II", len(text), 0) + text
    assert reader(raw, REQUEST_LIMIT_BYTES).receive() == ({"op": "load"}, b"")
    with pytest.raises(WireError):
        Channel(io.BytesIO(raw), io.BytesIO()).receive()


@FEW
@given(st.lists(HEADERS, max_size=5))
def test_several_frames_sent_together_are_one_write_and_the_same_bytes(headers: list[Frame]) -> None:
    together: Any = OneWrite()
    Channel(io.BytesIO(), together).send_all(headers)
    assert together.writes == [b"".join(encode_frame(header) for header in headers)]


def test_frames_of_several_threads_are_never_mixed() -> None:
    class SlowWriter(io.BytesIO):
        """A stream that other threads can interrupt between the halves of a write."""

        def write(self, data: Any) -> int:
            half = len(data) // 2
            super().write(data[:half])
            threading.Event().wait(0.0001)
            return half + super().write(data[half:])

    out = SlowWriter()
    channel = Channel(io.BytesIO(), out)

    def send(sender: int) -> None:
        for number in range(20):
            channel.send({"op": "token", "thread": sender, "number": number}, bytes(sender))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frames, ended = read_all(out.getvalue())
    assert ended
    for sender in range(4):
        own = [(header["number"], len(body)) for header, body in frames if header["thread"] == sender]
        assert own == [(number, sender) for number in range(20)]


def test_a_reader_that_is_gone_is_an_os_error() -> None:
    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Channel(io.BytesIO(), Gone()).send({"op": "beat"})
