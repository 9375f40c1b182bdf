"""Looks into an ONNX file without any library: is it whole, what does it need, where does its outside data lie.

Protobuf's wire format, by the field numbers of onnx.proto3. Weights are passed over, so that gigabytes cost no time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.files import is_reserved_windows_name
from backend.common.formats.gguf.kinds import check_foreign
from backend.common.formats.protobuf import fields

_FETCH_AGAIN = "Delete the file and fetch it again from its source."
_EXTERNAL = 1  # TensorProto.DataLocation
_DEPTH_LIMIT = 100  # four for each graph within another
# Where tensors lie in a message: its fields that hold some, by number.
_TENSOR: dict[int, Any] = {}
_SPARSE: dict[int, Any] = {1: _TENSOR, 2: _TENSOR}
_GRAPH: dict[int, Any] = {5: _TENSOR, 15: _SPARSE}
_ATTRIBUTE: dict[int, Any] = {5: _TENSOR, 10: _TENSOR, 6: _GRAPH, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE}
_NODE: dict[int, Any] = {5: _ATTRIBUTE}
_GRAPH[1] = _NODE


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
        if facts.st_size == 0:  # nothing that could be mapped
            check_foreign(path.name, b"", 0)
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
        check_foreign(path.name, bytes(data[:512]), size)
        try:
            return _model(data)
        except (IndexError, ValueError):
            raise ModelBroken(f"{path.name} is no ONNX file, or is cut short.", _FETCH_AGAIN) from None


def _model(data: mmap.mmap) -> OnnxFile:
    version, sets, graph = 0, [], None
    external: dict[str, int] = {}
    for number, value in fields(data, 0, len(data)):
        if number == 1 and isinstance(value, int):
            version = value
        elif number == 7 and isinstance(value, slice):
            graph = value
        elif number == 8 and isinstance(value, slice):
            named = dict(fields(data, value.start, value.stop))
            sets.append((text(data, named.get(1)), whole(named.get(2))))
        elif number == 25 and isinstance(value, slice):  # a function of the model's own, made of nodes
            _gather(data, value, {7: _NODE}, external)
    if not version or graph is None:
        raise ValueError("no version, or no graph")
    operators: set[tuple[str, str]] = set()
    for number, value in fields(data, graph.start, graph.stop):
        if number == 1 and isinstance(value, slice):
            node = dict(fields(data, value.start, value.stop))
            operators.add((text(data, node.get(7)), text(data, node.get(4))))
    _gather(data, graph, _GRAPH, external)
    return OnnxFile(version, tuple(sets), frozenset(operators), tuple(sorted(external.items())))


def _gather(data: mmap.mmap, where: slice, inside: Mapping[int, Any], external: dict[str, int], depth: int = 0) -> None:
    """Notes the outside data of all tensors in a message, also of the graphs within its nodes."""
    if depth > _DEPTH_LIMIT:
        raise ValueError("graphs within graphs without an end")
    for number, value in fields(data, where.start, where.stop):
        kind = inside.get(number)
        if kind is None or not isinstance(value, slice):
            continue
        if kind is not _TENSOR:
            _gather(data, value, kind, external, depth + 1)
        elif outside := _outside(data, value):
            location, end = outside
            external[location] = max(end, external.get(location, 0))


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


def text(data: mmap.mmap, where: int | slice | None) -> str:
    return bytes(data[where]).decode("utf-8", "replace") if isinstance(where, slice) else ""


def whole(value: int | slice | None) -> int:
    return value if isinstance(value, int) else 0


def _check_external(path: Path, location: str, end: int) -> None:
    """Outside data may lie beside the file, or be a link to where the file itself is a link to."""
    place = PurePosixPath(location.replace("\\", "/"))
    file = path.parent / place
    named_outside = not location or place.is_absolute() or ".." in place.parts or ":" in location or "\0" in location
    if named_outside or any(map(is_reserved_windows_name, place.parts)) or not _is_beside(path, file):
        raise ModelBroken(
            f"{path.name} wants its data from {location[:200]!r}, which is outside its folder.",
            "Fetch the model from a source you trust.",
        )
    try:
        size = file.stat().st_size
    except OSError:
        detail = f"{path.name} needs the file {location[:200]}, which is not beside it."
        raise ModelBroken(detail, _FETCH_AGAIN) from None
    if size < end:
        raise ModelBroken(f"{location[:200]} is cut short: it has {size} bytes and should have {end}.", _FETCH_AGAIN)


def _is_beside(path: Path, file: Path) -> bool:
    """Whether a file lies, after all links, in the folder of `path`, or in the one that `path` is a link to."""
    homes = (os.path.realpath(path.parent), str(Path(os.path.realpath(path)).parent))
    return any(Path(os.path.realpath(file)).is_relative_to(home) for home in homes)
