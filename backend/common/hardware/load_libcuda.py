"""A program that loads NVIDIA's driver library and prints its path and CUDA version as JSON.

It runs in a child process with a timeout, because the library may hang or crash. It runs no code on the card.
"""

from __future__ import annotations

import ctypes
import json
import sys


def main() -> int:
    """Print `{path, version}`, or `{error}` with the loader's message."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201  stdout is this program's result
        return 0
    version = ctypes.c_int()
    failed = library.cuDriverGetVersion(ctypes.byref(version))
    cuda = None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"
    print(json.dumps({"path": _path("libcuda.so"), "version": cuda}))  # noqa: T201
    return 0


def _path(part: str) -> str | None:
    """Return the path of the mapped file, None if the system does not report it."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
            return next((line.split()[-1] for line in maps if part in line), None)
    except OSError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
