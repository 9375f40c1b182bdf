"""Reads the header of a GGUF file and says in words why a file is not usable.

Standard library only. It trusts no number in the file: every count and length is checked against the bytes that are
left before anything is read, so that a damaged file costs neither memory nor time.
"""

from __future__ import annotations

import glob
import re
import stat
import sys
from functools import lru_cache
from pathlib import Path

from backend.common.errors import ModelBroken
from backend.common.formats.gguf.kinds import check_kind, how_to_join, is_split_by_hand
from backend.common.formats.gguf.reader import Header, Reader

__all__ = ["Header", "how_to_join", "is_split_by_hand", "parts", "read_header"]


def read_header(path: Path, byteorder: str = sys.byteorder) -> Header:
    """Reads and checks the header. Raises ModelBroken, whose detail says what the file is instead of a model."""
    if is_split_by_hand(path.name):
        raise ModelBroken(f"{path.name} is one piece of a file that was cut by hand.", how_to_join(path.name))
    try:
        facts = path.stat()
        if stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode):  # opening it could wait for ever
            raise ModelBroken(f"{path} is a pipe or a device, not a file.", "Name the model's own file.")
        return _read(path, facts.st_size, facts.st_mtime_ns, byteorder)
    except FileNotFoundError:
        raise ModelBroken(f"There is no file {path}.", "Correct the path, or fetch the model again.") from None
    except OSError as error:
        raise ModelBroken(
            f"{path} cannot be read: {error.strerror}.", "Check that it is a file and that you may read it."
        ) from None
    except ValueError:  # a null byte in the path
        raise ModelBroken("The path of the model file is not a path.", "Correct the path.") from None


def parts(path: Path) -> list[Path]:
    """The files of a model that llama.cpp's own tool split (`x-00001-of-00003.gguf`), or the one file."""
    match = re.fullmatch(r"(.+-)\d{5}(-of-\d{5}\.gguf)", path.name)
    return sorted(path.parent.glob(f"{glob.escape(match[1])}[0-9]????{match[2]}")) if match else [path]


@lru_cache(maxsize=64)
def _read(path: Path, size: int, mtime_ns: int, byteorder: str) -> Header:
    """Once for each state of the file: a large vocabulary takes some 20 ms."""
    with path.open("rb") as file:
        check_kind(path.name, file.read(512), size, byteorder)
        return Reader(file, size, path.name, byteorder).header()
