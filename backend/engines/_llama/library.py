"""The loaded library of llama.cpp: its build, its log, and the devices that it can use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from backend.devices import LlamaBuild, find_build
from backend.engines._llama import c_api

_WARNING, _CONTINUED = 3, 5  # ggml's log levels; a continued line has no level


class Log:
    """Takes the library's log. Warnings and errors go to stderr, and all lines to the active `collected` block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[str] | None = None
        self._is_shown = False
        self.callback = c_api.LogCallback(self._take)  # the library keeps its address

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[str]]:
        """Return a list that gets every piece of text that the library logs during the block."""
        lines: list[str] = []
        with self._lock:
            self._lines = lines
        try:
            yield lines
        finally:
            with self._lock:
                self._lines = None

    def _take(self, level: int, text: bytes | None, _: object) -> None:
        decoded = (text or b"").decode("utf-8", "replace")
        with self._lock:
            if self._lines is not None:
                self._lines.append(decoded)
            self._is_shown = self._is_shown if level == _CONTINUED else level >= _WARNING
            is_shown = self._is_shown
        if is_shown:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(decoded)


@dataclass(frozen=True)
class LibraryDevice:
    """A device as ggml lists it. `registry` is the backend's name there, such as CUDA; `pci` is empty if unknown."""

    handle: int
    registry: str
    name: str
    description: str
    pci: str
    free_bytes: int


@dataclass(frozen=True)
class Library:
    """The functions of llama.h and of ggml, with their types."""

    build: LlamaBuild
    llama: Any
    ggml: Any
    log: Log

    @property
    def title(self) -> str:
        """Package, version and llama.cpp's own version."""
        return f"{self.build.name} {self.build.version} (llama.cpp {self.llama.llama_version().decode()})"

    def devices(self) -> list[LibraryDevice]:
        """Return all devices that are visible to this process, the CPU included."""
        handles = [self.ggml.ggml_backend_dev_get(number) for number in range(self.ggml.ggml_backend_dev_count())]
        return [self._describe(handle) for handle in handles]

    def _describe(self, handle: int) -> LibraryDevice:
        props = c_api.DeviceProps()
        self.ggml.ggml_backend_dev_get_props(handle, ctypes.byref(props))
        registry = self.ggml.ggml_backend_reg_name(self.ggml.ggml_backend_dev_backend_reg(handle))
        words = (registry, props.name, props.description, props.device_id)
        registry, name, description, pci = ((word or b"").decode("utf-8", "replace") for word in words)
        return LibraryDevice(handle, registry, name, description, pci, props.memory_free)


def encode_path(path: str) -> bytes:
    """Return a path as llama.cpp takes it: UTF-8 on Windows, otherwise as the file system has it."""
    return path.encode() if sys.platform == "win32" else os.fsencode(path)


@cache
def _log() -> Log:
    """Return the log of this process: the library has one callback."""
    return Log()


@cache
def open_library(cards: bool = False) -> Library:
    """Load the build of this environment. Raises ImportError, OSError, ModelLoadFailed.

    `cards`: optional, whether its backends for cards are loaded too. A process uses one of both.
    """
    build = find_build()
    if build is None:
        raise ModuleNotFoundError("no build of llama.cpp with its shared libraries is installed", name="ggml")
    loaded = build.load(cards)
    c_api.declare(loaded.llama, loaded.ggml, f"{build.name} {build.version}")
    library = Library(build, loaded.llama, loaded.ggml, _log())
    library.llama.llama_log_set(ctypes.cast(library.log.callback, ctypes.c_void_p), None)
    library.llama.llama_backend_init()
    return library
