"""The PNG decoder: every filter, depth and colour type against an encoder of the test, and damaged files."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backend.common.errors import Validation
from backend.engines._onnx.png import PIXEL_LIMIT, read_png

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
Pixels = NDArray[np.uint8] | NDArray[np.uint16]


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk with its length and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def header(width: int, height: int, bits: int = 8, colour: int = GREY, interlaced: int = 0) -> bytes:
    """Return the chunk that every picture starts with."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced))


def predict(kind: int, left: int, up: int, corner: int) -> int:
    """Return what a filter subtracts from a byte (section 9.2 of the specification)."""
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    estimate = left + up - corner
    distances = abs(estimate - left), abs(estimate - up), abs(estimate - corner)
    return (left, up, corner)[distances.index(min(distances))]


def filtered(pixels: Pixels, kinds: list[int]) -> bytes:
    """Return the scan lines of pixels [height, width, channels]; row n has the filter kinds[n]."""
    raw = pixels.astype(">u2" if pixels.dtype == np.uint16 else "u1")
    step = pixels.shape[2] * raw.dtype.itemsize
    above = bytes(pixels.shape[1] * step)
    lines = b""
    for row, kind in zip(raw, kinds, strict=True):
        line = row.tobytes()
        coded = bytearray([kind])
        for at, value in enumerate(line):
            left, corner = (line[at - step], above[at - step]) if at >= step else (0, 0)
            coded.append((value - predict(kind, left, above[at], corner)) % 256)
        lines, above = lines + bytes(coded), line
    return lines


def picture(pixels: Pixels, colour: int, kinds: list[int] | None = None, extra: bytes = b"", pieces: int = 1) -> bytes:
    """Return a PNG file. `extra` are chunks before the pixels, which come in several chunks if `pieces` is above 1."""
    height, width, _ = pixels.shape
    packed = zlib.compress(filtered(pixels, kinds or [0] * height))
    size = -(-len(packed) // pieces)
    data = b"".join(chunk(b"IDAT", packed[at : at + size]) for at in range(0, len(packed), size))
    return SIGNATURE + header(width, height, pixels.itemsize * 8, colour) + extra + data + chunk(b"IEND", b"")


def noise(height: int, width: int, channels: int, dtype: str = "uint8") -> Pixels:
    """Return random pixels, the same ones every time."""
    values: Pixels = np.random.default_rng(7).integers(0, np.iinfo(dtype).max + 1, (height, width, channels), dtype)
    return values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The place of the picture."""
    return tmp_path / "picture.png"


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize(("colour", "channels"), [(GREY, 1), (COLOUR, 3), (COLOUR_ALPHA, 4)])
@pytest.mark.parametrize("kind", range(5))
def test_each_filter_is_undone_in_each_depth_and_colour(
    path: Path, kind: int, colour: int, channels: int, dtype: str
) -> None:
    pixels = noise(6, 5, channels, dtype)
    path.write_bytes(picture(pixels, colour, [kind] * 6))
    decoded = read_png(path)
    assert decoded.dtype == dtype and np.array_equal(decoded, pixels)


@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.integers(0, 4), min_size=1, max_size=8), width=st.integers(1, 9), pieces=st.integers(1, 4))
def test_rows_may_change_the_filter_and_the_data_may_be_split(
    path: Path, kinds: list[int], width: int, pieces: int
) -> None:
    pixels = noise(len(kinds), width, 3)
    path.write_bytes(picture(pixels, COLOUR, kinds, pieces=pieces))
    assert np.array_equal(read_png(path), pixels)


def test_the_colours_of_a_palette_replace_its_indices(path: Path) -> None:
    indices = np.array([[[0], [2]], [[1], [1]]], "uint8")
    palette = chunk(b"PLTE", bytes([255, 0, 0, 0, 255, 0, 10, 20, 30]))
    path.write_bytes(picture(indices, PALETTE, extra=palette))
    assert read_png(path).tolist() == [[[255, 0, 0], [10, 20, 30]], [[0, 255, 0], [0, 255, 0]]]


def test_the_alpha_of_a_grey_picture_is_dropped(path: Path) -> None:
    pixels = noise(3, 4, 2)
    path.write_bytes(picture(pixels, GREY_ALPHA, [4, 3, 1]))
    assert np.array_equal(read_png(path), pixels[:, :, :1])


def test_sixteen_bits_are_read_with_the_high_byte_first(path: Path) -> None:
    path.write_bytes(picture(np.array([[[0x0102], [0xFF00]]], "uint16"), GREY))
    assert read_png(path).ravel().tolist() == [258, 65280]


def test_chunks_that_the_decoder_does_not_know_are_skipped(path: Path) -> None:
    pixels = noise(2, 2, 3)
    path.write_bytes(picture(pixels, COLOUR, extra=chunk(b"tEXt", b"Comment\0IDAT") + chunk(b"gAMA", b"\0\0\xb1\x8f")))
    assert np.array_equal(read_png(path), pixels)


def test_more_pixels_than_the_header_promises_are_not_decompressed(path: Path) -> None:
    packed = zlib.compress(b"\0\x07" * 2 + b"\0" * 5_000_000)
    path.write_bytes(SIGNATURE + header(1, 2) + chunk(b"IDAT", packed))
    assert read_png(path).ravel().tolist() == [7, 7]


BROKEN = {
    "no chunk": (SIGNATURE, "no header"),
    "a header of the wrong length": (SIGNATURE + chunk(b"IHDR", b"\0" * 12), "no header"),
    "four bits": (SIGNATURE + header(2, 2, bits=4), "4 bits"),
    "a palette of sixteen bits": (SIGNATURE + header(2, 2, 16, PALETTE), "16 bits"),
    "an unknown colour type": (SIGNATURE + header(2, 2, 8, 5), "not supported"),
    "interlaced": (SIGNATURE + header(2, 2, interlaced=1), "interlaced"),
    "no width": (SIGNATURE + header(0, 2), "0 × 2 pixels"),
    "one pixel too many": (SIGNATURE + header(PIXEL_LIMIT + 1, 1), f"{PIXEL_LIMIT + 1} × 1 pixels"),
    "no pixels": (SIGNATURE + header(2, 2), "truncated"),
    "a row too few": (SIGNATURE + header(2, 2) + chunk(b"IDAT", zlib.compress(b"\0\1\2")), "truncated"),
    "a sixth filter": (SIGNATURE + header(1, 1) + chunk(b"IDAT", zlib.compress(b"\5\1")), "invalid filter"),
    "an index beyond the palette": (
        picture(np.array([[[3]]], "uint8"), PALETTE, extra=chunk(b"PLTE", bytes(9))),
        "not in its palette",
    ),
    "no palette": (picture(np.array([[[0]]], "uint8"), PALETTE), "not in its palette"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_picture_that_cannot_be_decoded_is_rejected_with_the_reason(path: Path, name: str) -> None:
    content, reason = BROKEN[name]
    path.write_bytes(content)
    with pytest.raises(Validation, match=reason):
        read_png(path)


@pytest.mark.parametrize("at", [16, 20, 45, 60])
def test_a_flipped_bit_in_any_chunk_is_noticed_by_its_checksum(path: Path, at: int) -> None:
    content = bytearray(picture(noise(4, 4, 3), COLOUR))
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(Validation, match="damaged"):
        read_png(path)


def test_a_file_cut_anywhere_in_its_pixels_is_rejected(path: Path) -> None:
    content = picture(noise(4, 4, 3), COLOUR)
    for length in range(len(SIGNATURE), content.index(b"IEND") - 8, 3):
        path.write_bytes(content[:length])
        with pytest.raises(Validation):
            read_png(path)
