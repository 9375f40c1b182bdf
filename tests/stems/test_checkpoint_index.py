"""The reader of TensorFlow's checkpoint index, with indexes that these tests write by the format's description."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tasks.stems.spleeter.checkpoint import Tensor, read_index

MAGIC = 0xDB4775248B80FB57
FLOAT, INT64 = 1, 9


def varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(shape: tuple[int, ...], offset: int, size: int, dtype: int = FLOAT) -> bytes:
    """Return a BundleEntryProto. Zeros are left out, as protobuf does."""
    sides = b"".join(field(2, field(1, side)) for side in shape)
    message = field(1, dtype) + field(2, sides)
    return message + (field(4, offset) if offset else b"") + (field(5, size) if size else b"")


def block(entries: list[tuple[bytes, bytes]], restart: int = 16) -> bytes:
    """Return a block whose keys leave out what they share with the key before, except every `restart`-th."""
    out, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return out + b"".join(struct.pack("<I", at) for at in restarts) + struct.pack("<I", len(restarts))


def table(*blocks: bytes, kind: int = 0) -> bytes:
    """Return a table of data blocks. `kind` is the compression of the data: 0 is none, 1 Snappy."""
    out, handles = b"", []
    for content in blocks:
        handles.append((b"z", varint(len(out)) + varint(len(content))))
        out += content + bytes([kind]) + b"\0\0\0\0"
    meta = varint(len(out)) + varint(8)
    out += block([]) + b"\0" * 9
    index = block(handles)
    place = varint(len(out)) + varint(len(index))
    out += index + b"\0" * 5
    return out + (meta + place).ljust(40, b"\0") + struct.pack("<Q", MAGIC)


HEADER = (b"", field(1, 1))  # the first entry describes the checkpoint
NAMES = [b"conv2d/bias", b"conv2d/kernel", b"conv2d_1/bias", b"conv2d_1/kernel"]
ENTRIES = [HEADER, *((name, entry((5, 3), 60 * number, 60)) for number, name in enumerate(NAMES))]


def test_tensors_are_read_with_their_shapes_and_places() -> None:
    tensors = read_index(table(block(ENTRIES)))
    assert list(tensors) == [name.decode() for name in NAMES]
    assert tensors["conv2d/bias"] == Tensor((5, 3), 0, 60) and tensors["conv2d_1/kernel"] == Tensor((5, 3), 180, 60)


@pytest.mark.parametrize("restart", [1, 2, 16])
def test_keys_that_share_their_beginning_are_complete(restart: int) -> None:
    assert list(read_index(table(block(ENTRIES, restart)))) == [name.decode() for name in NAMES]


def test_the_blocks_of_a_large_index_are_all_read() -> None:
    assert len(read_index(table(block(ENTRIES[:3]), block(ENTRIES[3:])))) == 4


def test_tensors_of_other_types_and_entries_without_a_shape_are_handled() -> None:
    entries = [HEADER, (b"a", field(1, FLOAT)), (b"b", entry((2,), 0, 16, INT64)), (b"c", entry((), 4, 4))]
    assert read_index(table(block(entries))) == {"a": Tensor((), 0, 0), "c": Tensor((), 4, 4)}


def test_a_side_of_zero_which_protobuf_leaves_out_is_a_side() -> None:
    shape = field(2, field(2, b"") + field(2, field(1, 7)))
    assert read_index(table(block([(b"a", field(1, FLOAT) + shape)])))["a"].shape == (0, 7)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b"\0" * 100, "magic number"),
        (table(block(ENTRIES))[:-1], "magic number"),
        (table(block(ENTRIES), kind=1), "compressed"),
        (table(block([(b"\xff\xfe", entry((1,), 0, 4))])), "truncated or corrupt"),
        (table(block([(b"a", field(1, FLOAT) + field(4, b"x"))])), "is not a number"),
    ],
)
def test_an_index_that_cannot_be_read_is_rejected_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_index(content)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 60))
def test_a_damaged_index_is_read_or_rejected_and_never_fails_otherwise(at: int, value: int, cut: int) -> None:
    content = bytearray(table(block(ENTRIES)))
    content[at % len(content)] = value
    del content[:cut]
    try:
        tensors = read_index(bytes(content))
    except ValueError:
        return
    assert all(isinstance(tensor, Tensor) for tensor in tensors.values())
