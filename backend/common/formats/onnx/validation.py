"""Check an ONNX file without a library: whether it is complete, which operators it needs, where its external data is.

It parses protobuf's wire format by the field numbers of onnx.proto3, and skips weights, so gigabytes cost no time.
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
from backend.common.files import is_reserved_windows_name, open_regular_file
from backend.common.formats.gguf.kinds import check_foreign
from backend.common.formats.protobuf import fields

_DOWNLOAD_AGAIN = "Delete the file and download it again from its source."
_EXTERNAL = 1  # TensorProto.DataLocation
_DEPTH_LIMIT = 100  # four levels per nested graph
# Fields that contain tensors, by number, for each message.
_TENSOR: dict[int, Any] = {}
_SPARSE: dict[int, Any] = {1: _TENSOR, 2: _TENSOR}
_GRAPH: dict[int, Any] = {5: _TENSOR, 15: _SPARSE}
_ATTRIBUTE: dict[int, Any] = {5: _TENSOR, 10: _TENSOR, 6: _GRAPH, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE}
_NODE: dict[int, Any] = {5: _ATTRIBUTE}
_GRAPH[1] = _NODE


@dataclass(frozen=True)
class OnnxFile:
    """The facts of an ONNX file. `external`: its external data files with the minimum size of each."""

    ir_version: int
    operator_sets: tuple[tuple[str, int], ...]
    operators: frozenset[tuple[str, str]]  # domain and name, of the top-level graph
    external: tuple[tuple[str, int], ...]


def read_onnx(path: Path) -> OnnxFile:
    """Parse a file and check its external data. Raises ModelBroken with the reason."""
    try:
        facts = path.stat()
        model = _read(path, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror}.", "Correct the path or its permissions.") from None
    for location, size in model.external:
        _check_external(path, location, size)
    return model


def outside_files(path: Path) -> list[str]:
    """Return the names of its external data files, present or not. Raises ModelBroken, OSError."""
    facts = path.stat()
    return [location for location, _ in _read(path, facts.st_size, facts.st_mtime_ns).external]


@lru_cache(maxsize=64)
def _read(path: Path, size: int, mtime_ns: int) -> OnnxFile:
    if size == 0:  # an empty file cannot be mapped
        check_foreign(path.name, b"", 0)
    with open_regular_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        check_foreign(path.name, bytes(data[:512]), size)
        try:
            return _model(data)
        except (IndexError, ValueError):
            raise ModelBroken(f"{path.name} is not an ONNX file, or is truncated.", _DOWNLOAD_AGAIN) from None


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
            sets.append((text(data, named.get(1)), integer(named.get(2))))
        elif number == 25 and isinstance(value, slice):  # a function defined in the model, with nodes
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
    """Collect the external data of all tensors in a message, including nested graphs."""
    if depth > _DEPTH_LIMIT:
        raise ValueError("graphs are nested too deeply")
    for number, value in fields(data, where.start, where.stop):
        kind = inside.get(number)
        if kind is None or not isinstance(value, slice):
            continue
        if kind is not _TENSOR:
            _gather(data, value, kind, external, depth + 1)
        elif external_data := _external_data(data, value):
            location, end = external_data
            external[location] = max(end, external.get(location, 0))


def _external_data(data: mmap.mmap, tensor: slice) -> tuple[str, int] | None:
    """Return the file and end offset of a tensor's external data, None if the tensor has none."""
    entries: dict[str, str] = {}
    is_external = False
    for number, value in fields(data, tensor.start, tensor.stop):
        is_external = is_external or (number == 14 and value == _EXTERNAL)
        if number == 13 and isinstance(value, slice):
            pair = dict(fields(data, value.start, value.stop))
            entries[text(data, pair.get(1))] = text(data, pair.get(2))
    end = int(entries.get("offset") or 0) + int(entries.get("length") or 0)
    return (entries.get("location", ""), end) if is_external else None


def text(data: mmap.mmap, where: int | slice | None) -> str:
    """Return a field's text, empty if the field is missing."""
    return bytes(data[where]).decode("utf-8", "replace") if isinstance(where, slice) else ""


def integer(value: int | slice | None) -> int:
    """Return a field's integer, 0 if the field is missing."""
    return value if isinstance(value, int) else 0


def _check_external(path: Path, location: str, end: int) -> None:
    """Raise ModelBroken unless external data is complete, and next to the file or to the target of its link."""
    place = PurePosixPath(location.replace("\\", "/"))
    file = path.parent / place
    has_unsafe_name = not location or place.is_absolute() or ".." in place.parts or ":" in location or "\0" in location
    if has_unsafe_name or any(map(is_reserved_windows_name, place.parts)) or not _is_in_same_folder(path, file):
        raise ModelBroken(
            f"{path.name} has external data in {location[:200]!r}, which is outside its folder.",
            "Download the model from a source you trust.",
        )
    try:
        size = file.stat().st_size
    except OSError:
        detail = f"{path.name} needs the file {location[:200]}, which is missing from its folder."
        raise ModelBroken(detail, _DOWNLOAD_AGAIN) from None
    if size < end:
        raise ModelBroken(f"{location[:200]} is truncated: it has {size} bytes instead of {end}.", _DOWNLOAD_AGAIN)


def _is_in_same_folder(path: Path, file: Path) -> bool:
    """Return whether a file, with links resolved, is in the folder of `path` or of the target of `path`."""
    homes = (os.path.realpath(path.parent), str(Path(os.path.realpath(path)).parent))
    return any(Path(os.path.realpath(file)).is_relative_to(home) for home in homes)
