"""A program that loads NVIDIA's driver library and says which file that was and how new: one JSON object on stdout.

Run as a child with a limit, since loading a driver's library is foreign code. It starts nothing on the card.
"""

from __future__ import annotations

import ctypes
import json
import sys


def main() -> int:
    """Prints `{path, version}`, or `{error}` with the loader's own words."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201  this program's stdout is its answer
        return 0
    version = ctypes.c_int()
    failed = library.cuDriverGetVersion(ctypes.byref(version))
    cuda = None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"
    print(json.dumps({"path": _path("libcuda.so"), "version": cuda}))  # noqa: T201
    return 0


def _path(part: str) -> str | None:
    """The file that was mapped, where the system tells."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
            return next((line.split()[-1] for line in maps if part in line), None)
    except OSError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
