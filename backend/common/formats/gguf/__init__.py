"""Parse the header of a GGUF file, and report in a sentence why a file is not usable.

No number in the file is trusted: every count and length is checked against the remaining bytes before anything is
read, so a damaged file costs neither memory nor time.
"""

from __future__ import annotations

import glob
import re
import stat
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from backend.common.errors import ModelBroken
from backend.common.files import open_regular_file
from backend.common.formats.gguf.kinds import SPLIT, check_kind, how_to_join, is_split_by_hand, part_names
from backend.common.formats.gguf.layout import Layout
from backend.common.formats.gguf.reader import Adapter, Header, Part, Reader

__all__ = [
    "Adapter",
    "Header",
    "Layout",
    "Part",
    "first_part",
    "how_to_join",
    "is_split_by_hand",
    "parts",
    "read_adapter",
    "read_header",
    "read_layout",
    "read_part",
]

Result = TypeVar("Result")


def read_header(path: Path, byteorder: str = sys.byteorder) -> Header:
    """Read and check the header. Raises ModelBroken that names what the file is instead of a model."""
    return _checked(path, byteorder, _read)


def read_adapter(path: Path, byteorder: str = sys.byteorder) -> Adapter:
    """Read and check a LoRA adapter. Raises ModelBroken."""
    return _checked(path, byteorder, _read_adapter)


def read_part(path: Path, byteorder: str = sys.byteorder) -> Part:
    """Read and check a later part of a split model. Raises ModelBroken."""
    return _checked(path, byteorder, _read_part)


def _checked(path: Path, byteorder: str, read: Callable[[Path, int, tuple[int, int], str], Result]) -> Result:
    if is_split_by_hand(path.name):
        raise ModelBroken(f"{path.name} is one part of a manually split file.", how_to_join(path.name))
    try:
        facts = path.stat()
        if stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode):  # opening it could block forever
            raise ModelBroken(f"{path} is a pipe or a device, not a file.", "Use the path of the model file.")
        return read(path, facts.st_size, (facts.st_mtime_ns, facts.st_ino), byteorder)
    except FileNotFoundError:
        raise ModelBroken(f"File not found: {path}.", "Correct the path, or download the model again.") from None
    except OSError as error:
        raise ModelBroken(
            f"{path} cannot be read: {error.strerror}.",
            "Check that it is a file and that you have permission to read it.",
        ) from None
    except ValueError:  # a null byte in the path
        raise ModelBroken("The path of the model file is not a valid path.", "Correct the path.") from None


def first_part(path: Path) -> Path:
    """Return the first part of a split model by the path of any of its parts; other paths unchanged."""
    return path.with_name(part_names(path.name)[0]) if SPLIT.fullmatch(path.name) else path


def parts(path: Path) -> list[Path]:
    """Return the files of a model split by llama.cpp's tool (`x-00001-of-00003.gguf`), otherwise the file itself."""
    match = re.fullmatch(r"(.+-)\d{5}(-of-\d{5}\.gguf)", path.name)
    return sorted(path.parent.glob(f"{glob.escape(match[1])}[0-9]????{match[2]}")) if match else [path]


def read_layout(path: Path) -> Layout | None:
    """Return the memory layout of a model with all of its parts; None for a file without layers. Raises ModelBroken."""
    layout = read_header(path).layout
    if layout is None or len(files := parts(path)) == 1:
        return layout
    try:
        stamps = tuple((file, facts.st_size, facts.st_mtime_ns) for file in files for facts in [file.stat()])
        return _read_parts(stamps, sys.byteorder)
    except OSError as error:
        raise ModelBroken(f"{path.name} cannot be read: {error.strerror}.", "Check the permissions.") from None


@lru_cache(maxsize=64)
def _read_parts(stamps: tuple[tuple[Path, int, int], ...], byteorder: str) -> Layout | None:
    """Parse the tensors of all parts: only the first has the metadata of the model."""
    readers, facts = [], []
    for path, size, _ in stamps:
        with open_regular_file(path) as file:
            check_kind(path.name, file.read(512), size, byteorder)
            readers.append(Reader(file, size, path.name, byteorder))
            _, tensors, metadata = readers[-1].start()
            readers[-1].weights(tensors, readers[-1].alignment(metadata), is_part=True)
            facts.append(metadata)
    first = readers[0]
    for other in readers[1:]:
        first.tensor_bytes |= other.tensor_bytes
        first.elements += other.elements
        first.table_shape = first.table_shape or other.table_shape
    return first.layout(facts[0], str(facts[0].get("general.architecture")))


@lru_cache(maxsize=1024)  # more than a folder has files: a list asks for each of them again
def _read(path: Path, size: int, state: tuple[int, int], byteorder: str) -> Header:
    """Parse the header, cached per state of the file: a large vocabulary takes about 20 ms."""
    with open_regular_file(path) as file:
        check_kind(path.name, file.read(512), size, byteorder)
        return Reader(file, size, path.name, byteorder).header()


@lru_cache(maxsize=64)
def _read_adapter(path: Path, size: int, state: tuple[int, int], byteorder: str) -> Adapter:
    with open_regular_file(path) as file:
        check_kind(path.name, file.read(512), size, byteorder)
        return Reader(file, size, path.name, byteorder).adapter()


@lru_cache(maxsize=1024)
def _read_part(path: Path, size: int, state: tuple[int, int], byteorder: str) -> Part:
    with open_regular_file(path) as file:
        check_kind(path.name, file.read(512), size, byteorder)
        return Reader(file, size, path.name, byteorder).part()
