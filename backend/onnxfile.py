"""Looks into an ONNX file without any library: is it whole, what does it need, where does its outside data lie.

Protobuf's wire format, by the field numbers of onnx.proto3. Weights are passed over, so that gigabytes cost no time.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from backend.errors import ModelBroken

_FETCH_AGAIN = "Delete the file and fetch it again from its source."
_EXTERNAL = 1  # TensorProto.DataLocation


@dataclass(frozen=True)
class OnnxFile:
    """What a file says of itself. `external` are files beside it, with the bytes that each must have."""

    ir_version: int
    operator_sets: tuple[tuple[str, int], ...]
    operators: frozenset[tuple[str, str]]  # domain and name, of the outer graph
    external: tuple[tuple[str, int], ...]


def read_onnx(path: Path) -> OnnxFile:
    """Reads a file and looks for its outside data. Raises ModelBroken, whose detail says what is wrong."""
    try:
        facts = path.stat()
        if facts.st_size == 0:
            raise ModelBroken(f"{path.name} is empty.", _FETCH_AGAIN)
        found = _read(path, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror}.", "Correct the path or its permissions.") from None
    for location, size in found.external:
        _check_external(path, location, size)
    return found


def outside_files(path: Path) -> list[str]:
    """The files beside it that hold its weights, whether they are there or not. Raises ModelBroken, OSError."""
    facts = path.stat()
    return [location for location, _ in _read(path, facts.st_size, facts.st_mtime_ns).external]


@lru_cache(maxsize=64)
def _read(path: Path, size: int, mtime_ns: int) -> OnnxFile:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = bytes(data[:512]).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
        if start.startswith((b"<!doctype", b"<html", b"<?xml")):
            raise ModelBroken(
                f"{path.name} is a web page, not a model: probably a sign-in page was saved in its place.",
                f"{_FETCH_AGAIN} Sign in there first if the source asks for it.",
            )
        if start.startswith(b"version https://git-lfs"):
            raise ModelBroken(f"{path.name} is a git-lfs pointer, not the file itself.", "Run `git lfs pull` there.")
        if start[:2] in (b"pk", b"\x80\x02", b"\x80\x04"):
            raise ModelBroken(
                f"{path.name} is a zip or pickle file, which can carry programs and is never loaded.",
                "Fetch the model as ONNX from a source you trust.",
            )
        try:
            return _model(data)
        except (IndexError, ValueError):
            raise ModelBroken(f"{path.name} is no ONNX file, or is cut short.", _FETCH_AGAIN) from None


def _model(data: mmap.mmap) -> OnnxFile:
    version, sets, graph = 0, [], None
    for number, value in fields(data, 0, len(data)):
        if number == 1 and isinstance(value, int):
            version = value
        elif number == 7 and isinstance(value, slice):
            graph = value
        elif number == 8 and isinstance(value, slice):
            named = dict(fields(data, value.start, value.stop))
            sets.append((text(data, named.get(1)), whole(named.get(2))))
    if not version or graph is None:
        raise ValueError("no version, or no graph")
    operators: set[tuple[str, str]] = set()
    external: dict[str, int] = {}
    for number, value in fields(data, graph.start, graph.stop):
        if number == 1 and isinstance(value, slice):
            node = dict(fields(data, value.start, value.stop))
            operators.add((text(data, node.get(7)), text(data, node.get(4))))
        elif number == 5 and isinstance(value, slice) and (outside := _outside(data, value)):
            location, end = outside
            external[location] = max(end, external.get(location, 0))
    return OnnxFile(version, tuple(sets), frozenset(operators), tuple(sorted(external.items())))


def _outside(data: mmap.mmap, tensor: slice) -> tuple[str, int] | None:
    """Where a tensor's bytes lie and end, if that is outside."""
    entries: dict[str, str] = {}
    outside = False
    for number, value in fields(data, tensor.start, tensor.stop):
        outside = outside or (number == 14 and value == _EXTERNAL)
        if number == 13 and isinstance(value, slice):
            pair = dict(fields(data, value.start, value.stop))
            entries[text(data, pair.get(1))] = text(data, pair.get(2))
    end = int(entries.get("offset") or 0) + int(entries.get("length") or 0)
    return (entries.get("location", ""), end) if outside else None


def fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int | slice]]:
    """The fields between two places: numbers as such, everything else as where it lies. Raises ValueError."""
    while at < end:
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("a kind that there is not")
        if at + length > end:
            raise ValueError("cut short")
        yield key >> 3, slice(at, at + length)
        at += length


def varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an endless number")


def text(data: mmap.mmap, where: int | slice | None) -> str:
    return bytes(data[where]).decode("utf-8", "replace") if isinstance(where, slice) else ""


def whole(value: int | slice | None) -> int:
    return value if isinstance(value, int) else 0


def _check_external(path: Path, location: str, end: int) -> None:
    """Outside data may lie beside the file, or be a link to where the file itself is a link to."""
    place = PurePosixPath(location.replace("\\", "/"))
    if not location or place.is_absolute() or ".." in place.parts or ":" in location:
        raise ModelBroken(
            f"{path.name} wants its data from {location[:200]!r}, which is outside its folder.",
            "Fetch the model from a source you trust.",
        )
    file = path.parent / place
    try:
        size = file.stat().st_size
    except OSError:
        detail = f"{path.name} needs the file {location[:200]}, which is not beside it."
        raise ModelBroken(detail, _FETCH_AGAIN) from None
    if size < end:
        raise ModelBroken(f"{location[:200]} is cut short: it has {size} bytes and should have {end}.", _FETCH_AGAIN)
