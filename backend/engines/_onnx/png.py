"""Decode PNG pictures into arrays, with NumPy and the standard library, which every runtime has.

Follows the PNG specification (W3C, third edition): 8 or 16 bits per sample, grey, colour or palette, with or without
alpha, not interlaced. Checksums are verified. Own code, because workers read pictures in runtimes and in users'
environments, where Pillow is not installed.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from backend.common.errors import Validation

PIXEL_LIMIT = 1 << 24  # about ten seconds to decode if every row has the Paeth filter
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_SAVE_AGAIN = "Save it again as an 8-bit PNG without interlacing."


def read_png(path: Path) -> Any:
    """Return pixels as uint8 or uint16 [height, width, channels] with 1, 3 or 4 channels. Raises Validation."""
    import numpy

    chunks = _chunks(path.read_bytes())
    width, height, bits, colour = _header(dict(chunks).get(b"IHDR", b""))
    step = _CHANNELS[colour] * bits // 8
    length = width * step
    raw = zlib.decompressobj().decompress(
        b"".join(content for kind, content in chunks if kind == b"IDAT"), (length + 1) * height
    )
    if len(raw) != (length + 1) * height:
        raise Validation("the picture is truncated", "Send the complete file.")
    rows = _unfiltered(numpy.frombuffer(raw, "uint8").reshape(height, length + 1), step)
    pixels = rows.view(">u2" if bits == 16 else "uint8").reshape(height, width, _CHANNELS[colour])
    if colour == 3:
        colours = numpy.frombuffer(dict(chunks).get(b"PLTE", b""), "uint8").reshape(-1, 3)
        if pixels.max() >= len(colours):
            raise Validation("the picture uses a colour that is not in its palette", _SAVE_AGAIN)
        return colours[pixels[:, :, 0]]
    if colour == 4:
        pixels = pixels[:, :, :1]
    return pixels.astype("uint16" if bits == 16 else "uint8")


def _header(content: bytes) -> tuple[int, int, int, int]:
    """Return width, height, bits per sample and colour type. Raises Validation."""
    if len(content) != 13:
        raise Validation("the picture has no header", _SAVE_AGAIN)
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content)
    if bits not in (8, 16) or interlaced or colour not in _CHANNELS or (colour == 3 and bits != 8):
        raise Validation(f"pictures of {bits} bits, or interlaced ones, are not supported", _SAVE_AGAIN)
    if not 0 < width * height <= PIXEL_LIMIT:
        raise Validation(f"the picture has {width} × {height} pixels", f"Send at most {PIXEL_LIMIT} pixels.")
    return width, height, bits, colour


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        check = data[at + 8 + length : at + 12 + length]
        if int.from_bytes(check, "big") != zlib.crc32(kind + content):
            raise Validation("the picture is damaged", "Send the complete file.")
        chunks.append((kind, content))
        at += 12 + length
    return chunks


def _unfiltered(rows: Any, step: int) -> Any:
    """Undoes the five filters, row by row; `step` is bytes of a pixel."""
    import numpy

    height, length = rows.shape[0], rows.shape[1] - 1
    out = numpy.zeros((height + 1, length + step), "uint8")  # a row above and a pixel at the left, all 0
    for number in range(height):
        kind, row, above, here = rows[number, 0], rows[number, 1:], out[number], out[number + 1]
        if kind == 0:
            here[step:] = row
        elif kind == 2:
            here[step:] = row + above[step:]
        elif kind == 1:
            for offset in range(step):
                here[step + offset :: step] = numpy.cumsum(row[offset::step], dtype="uint8")
        elif kind in (3, 4):
            guess = _mean if kind == 3 else _paeth
            line, up = bytearray(here.tobytes()), above.tobytes()
            for at, value in enumerate(row.tobytes(), step):
                line[at] = value + guess(line[at - step], up[at], up[at - step]) & 255
            here[:] = numpy.frombuffer(bytes(line), "uint8")
        else:
            raise Validation("the picture has an invalid filter", "Send the complete file.")
    return numpy.ascontiguousarray(out[1:, step:])


def _mean(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
