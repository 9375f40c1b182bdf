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
from backend.common.formats.gguf.reader import Header, Part, Reader

__all__ = ["Header", "Part", "first_part", "how_to_join", "is_split_by_hand", "parts", "read_header", "read_part"]

Result = TypeVar("Result")


def read_header(path: Path, byteorder: str = sys.byteorder) -> Header:
    """Read and check the header. Raises ModelBroken that names what the file is instead of a model."""
    return _checked(path, byteorder, _read)


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


@lru_cache(maxsize=1024)  # more than a folder has files: a list asks for each of them again
def _read(path: Path, size: int, state: tuple[int, int], byteorder: str) -> Header:
    """Parse the header, cached per state of the file: a large vocabulary takes about 20 ms."""
    with open_regular_file(path) as file:
        check_kind(path.name, file.read(512), size, byteorder)
        return Reader(file, size, path.name, byteorder).header()


@lru_cache(maxsize=1024)
def _read_part(path: Path, size: int, state: tuple[int, int], byteorder: str) -> Part:
    with open_regular_file(path) as file:
        check_kind(path.name, file.read(512), size, byteorder)
        return Reader(file, size, path.name, byteorder).part()
