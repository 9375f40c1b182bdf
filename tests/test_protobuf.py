"""Protobuf's wire format: numbers of any length, messages that end early, and files that a library writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.formats.protobuf import fields, varint

FEW = settings(max_examples=60, derandomize=True, database=None, deadline=None)


def encode(value: int) -> bytes:
    """Return a varint as protobuf's guide describes it: seven bits a byte, the lowest first."""
    groups = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes(group | 128 for group in groups[:-1]) + bytes(groups[-1:])


def parse(data: bytes) -> list[tuple[int, int | bytes]]:
    return [(number, value if isinstance(value, int) else data[value]) for number, value in fields(data, 0, len(data))]


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\x00", 0), (b"\x01", 1), (b"\x7f", 127), (b"\x96\x01", 150), (b"\xff" * 9 + b"\x01", 2**64 - 1)],
)
def test_examples_of_the_encoding_guide(data: bytes, value: int) -> None:
    assert varint(data, 0) == (value, len(data))


@FEW
@given(st.integers(0, 2**64 - 1), st.binary(max_size=5), st.binary(max_size=5))
def test_a_number_is_read_where_it_is_and_no_further(value: int, before: bytes, after: bytes) -> None:
    encoded = encode(value)
    assert varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


def test_a_number_that_never_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match="varint too long"):
        varint(b"\xff" * 1000, 0)
    with pytest.raises(IndexError):
        varint(b"\xff\xff", 0)


def test_each_wire_type_is_skipped_by_its_own_length() -> None:
    data = b"\x08\x05" + b"\x11" + bytes(8) + b"\x1a\x03abc" + b"\x25" + bytes(4) + b"\x28\x07"
    assert parse(data) == [(1, 5), (2, bytes(8)), (3, b"abc"), (4, bytes(4)), (5, 7)]


@pytest.mark.parametrize("kind", [3, 4, 6, 7])
def test_groups_and_unknown_wire_types_are_errors(kind: int) -> None:
    with pytest.raises(ValueError, match="unknown wire type"):
        parse(bytes([8 | kind, 0]))


@pytest.mark.parametrize(
    "data",
    [b"\x0a\x04abc", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fabc", b"\x09" + bytes(7), b"\x0d" + bytes(3)],
    ids=["bytes", "bytes of a huge length", "64 bits", "32 bits"],
)
def test_a_field_that_ends_after_its_message_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="truncated"):
        parse(data)


def test_a_message_is_bounded_by_its_own_end_and_not_by_the_file() -> None:
    data = b"\x0a\x03abc" + b"\x10\x01"
    assert list(fields(data, 0, 5)) == [(1, slice(2, 5))]
    with pytest.raises(ValueError, match="truncated"):
        list(fields(data, 0, 4))


def test_a_number_that_continues_after_its_message_is_an_error() -> None:
    data = b"\x08\x80\x01"
    with pytest.raises(ValueError, match="truncated"):
        list(fields(data, 0, 2))


@FEW
@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=40)))))
def test_any_message_is_read_back(message: list[tuple[int, int | bytes]]) -> None:
    data = b""
    for number, value in message:
        if isinstance(value, int):
            data += encode(number << 3) + encode(value)
        else:
            data += encode(number << 3 | 2) + encode(len(value)) + value
    assert parse(data) == message


@FEW
@given(st.binary(max_size=80))
def test_random_bytes_give_fields_inside_them_or_an_error(data: bytes) -> None:
    try:
        for number, value in fields(data, 0, len(data)):
            assert number >= 0
            if isinstance(value, slice):
                assert 0 <= value.start <= value.stop <= len(data)
    except (ValueError, IndexError):
        pass
