"""Builds of llama.cpp in this interpreter's environment: where their shared libraries are, and how they are loaded.

One rule finds all of them: a package whose files are llama.cpp's shared libraries (the cyllama wheels, a folder
`NAME.libs` with hashes in the file names), a package whose extension module exports llama.h (xllamacpp on Linux and
macOS; on Windows it exports nothing), or a folder that the user names in the settings (llama.cpp's own release archive,
or a build of the user), whose path is in a file of the environment. The packages are not imported, so their Python
version does not matter.

llama.cpp loads the backends of separate files itself (`ggml_backend_load`), but logs why one fails instead of returning
it. So each file is opened here first: the loader's own error names the missing library, such as libcuda.so.1. A library
that the environment's packages contain (`nvidia/cublas/lib`, `lib` of Intel's packages) is then loaded and the file
opened again. Runs in a child process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from backend.common.system.shared_libraries import missing_library

LIBRARY = "ggml"  # the name under which backends and engines refer to any build
LIBRARIES_FILE = "llama-libraries.path"  # in an environment's folder: the user's folder of libraries
_PACKAGE = re.compile(r"cyllama(-\w+)?|inferna(-\w+)?|xllamacpp|llama-cpp-python|llama-cpp-py-sync")
_FILE = re.compile(
    r"(?:lib)?(?P<stem>ggml(?:-[a-z0-9_]+)*?|llama|mtmd)(?:-[0-9a-f]{8}|-[0-9a-f]{32})?"
    r"(?:\.so(?:\.\d+)*|(?:\.\d+)*\.dylib|\.dll)"
)
_EXTENSION = re.compile(r"xllamacpp\b.*\.so")
_CARDS = re.compile(r"ggml-(?!(?:base|cpu|blas|rpc)\b)(?P<name>\w+)")  # files of backends for cards
_BASE, _REGISTRY, _CPU = "ggml-base", "ggml", "ggml-cpu"
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)  # ggml_log_callback
_MKL = ("libmkl_core", "libmkl_tbb_thread", "libmkl_intel_ilp64")  # each needs those before it
_Loaded = TypeVar("_Loaded")
_ATTEMPTS = 40  # libraries that one file may lack: Intel's build needs 15


class Exports:
    """The functions of several libraries: of the first one that exports the name."""

    def __init__(self, *libraries: ctypes.CDLL) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        """Return a function. Raises AttributeError."""
        for library in self._libraries:
            with contextlib.suppress(AttributeError):
                found = getattr(library, name)
                setattr(self, name, found)
                return found
        raise AttributeError(f"llama.cpp's libraries do not export {name}")


@dataclass(frozen=True)
class LlamaLibraries:
    """Loaded libraries. `llama` exports llama.h and ggml.h, `ggml` all of ggml, `mtmd` images' functions.

    `faults` are the reasons why backends of cards could not be loaded, by ggml's name in the file, such as `cuda`.
    `log` is what ggml logged while it listed the devices: why a driver has none, for example.
    """

    llama: Any
    ggml: Any
    mtmd: Any | None
    faults: dict[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True)
class LlamaBuild:
    """A build of llama.cpp. `name` is its distribution, or the user's folder.

    `files` are its libraries by their plain names, such as `llama`.
    A build in one file has the same file as `llama`, `ggml` and `mtmd`.
    """

    name: str
    version: str
    folder: Path
    files: dict[str, Path] = field(default_factory=dict, compare=False)

    @property
    def cards(self) -> tuple[str, ...] | None:
        """ggml's names of the backends for cards, such as `cuda`, `hip`; None if they are in the one file."""
        if self.files.get("llama") == self.files.get(_REGISTRY):
            return None
        return tuple(match["name"] for stem in sorted(self.files) if (match := _CARDS.fullmatch(stem)))

    def load(self, cards: bool = True) -> LlamaLibraries:
        """Load the libraries, once in a process. Raises OSError with the loader's reason.

        `cards`: optional, whether backends in separate files are loaded for cards too. Default: they are.
        """
        return _load(tuple(sorted(self.files.items())), cards)


def find_build() -> LlamaBuild | None:
    """Return the build of this interpreter: the user's folder, else a package with backends for cards, else another."""
    with contextlib.suppress(OSError):
        return build_in(Path(Path(sys.prefix, LIBRARIES_FILE).read_text(encoding="utf-8").strip()))
    builds = sorted(_package_builds(), key=lambda build: (not build.cards, build.cards is None, build.name))
    return next(iter(builds), None)


def build_in(folder: Path) -> LlamaBuild | None:
    """Return the build in a folder or its folders `lib` and `bin`, as release archives have them. None without one."""
    for place in (folder, *(folder / name for name in ("lib", "bin", "build/bin"))):
        with contextlib.suppress(OSError):
            files = _libraries_of(sorted(place.iterdir()))
            if "llama" in files:
                return LlamaBuild(folder.name, _version_of(files), place, files)
    return None


def _package_builds() -> Iterator[LlamaBuild]:
    for distribution in metadata.distributions():
        try:
            name = re.sub(r"[-_.]+", "-", str(distribution.metadata["Name"] or "")).lower()
            listed = distribution.files or [] if _PACKAGE.fullmatch(name) else []
        except (OSError, ValueError, LookupError, TypeError):  # corrupt metadata
            continue
        paths = [Path(str(distribution.locate_file(file))) for file in listed]
        files = _libraries_of(paths)
        extension = next((path for path in paths if _EXTENSION.fullmatch(path.name)), None)
        if "llama" not in files and extension and sys.platform != "win32":
            files = dict.fromkeys(("llama", _REGISTRY, _BASE, "mtmd"), extension)
        if "llama" in files:
            yield LlamaBuild(name, str(distribution.version), files["llama"].parent, files)


def _libraries_of(paths: Iterable[Path]) -> dict[str, Path]:
    """Return llama.cpp's libraries among files by their names without prefix, hash and version."""
    found: dict[str, Path] = {}
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match and (match["stem"] not in found or len(path.name) < len(found[match["stem"]].name)):
            found[match["stem"]] = path
    return {stem: path for stem, path in found.items() if path.exists()}


def _version_of(files: dict[str, Path]) -> str:
    """Return the version in the file name of llama.cpp's library, which links lead to; "unknown" without one."""
    match = re.search(r"(?:\.so\.|lib\w+\.)(\d+(?:\.\d+)*)", files["llama"].resolve().name)
    return match[1] if match else "unknown"


@lru_cache(maxsize=4)
def _load(listed: tuple[tuple[str, Path], ...], cards: bool) -> LlamaLibraries:
    files = dict(listed)
    if files["llama"] == files.get(_REGISTRY):
        whole = _open(files["llama"])
        images = Exports(whole) if hasattr(whole, "mtmd_init_from_file") else None
        return LlamaLibraries(Exports(whole), Exports(whole), images, log=_register(Exports(whole), {}))
    base = _open(files[_BASE])
    backends, faults = _open_backends(files, cards)
    registry = _open(files[_REGISTRY])
    ggml = Exports(registry, base, *backends.values())
    log = _register(ggml, {stem: files[stem] for stem in backends})
    llama = _open(files["llama"])
    mtmd = _open(files["mtmd"]) if "mtmd" in files else None
    return LlamaLibraries(Exports(llama, registry, base), ggml, Exports(mtmd) if mtmd else None, faults, log)


def _open_backends(files: dict[str, Path], cards: bool) -> tuple[dict[str, ctypes.CDLL], dict[str, str]]:
    """Open the files of backends: the best one for the CPU, and those of cards; return them, and the faults of cards.

    Raises OSError if none for the CPU can be opened.
    """
    opened: dict[str, ctypes.CDLL] = {}
    faults: dict[str, str] = {}
    scores: dict[str, int] = {}
    for stem in sorted(files):
        if stem.startswith(_CPU):
            opened[stem] = _open(files[stem])
            scores[stem] = opened[stem].ggml_backend_score() if hasattr(opened[stem], "ggml_backend_score") else 1
    best = max(scores, key=lambda stem: scores[stem], default=None)
    if best and not scores[best]:
        raise OSError(f"{files[best].name} was built for a processor with other instructions than this one has")
    opened = {stem: library for stem, library in opened.items() if stem == best}
    for stem in sorted(files) if cards else ():
        if match := _CARDS.fullmatch(stem):
            try:
                opened[stem] = _open(files[stem])
            except OSError as error:
                faults[match["name"]] = str(error)
    return opened, faults


def _register(ggml: Exports, files: dict[str, Path]) -> str:
    """Register the opened backends with ggml, unless it was linked with them; return what ggml logs meanwhile."""
    lines: list[str] = []
    log = _LOG(lambda level, text, data: lines.append((text or b"").decode("utf-8", "replace")))
    ggml.ggml_log_set.argtypes, ggml.ggml_log_set.restype = (_LOG, ctypes.c_void_p), None
    ggml.ggml_log_set(log, None)
    try:
        ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
        if not ggml.ggml_backend_reg_count():
            ggml.ggml_backend_load.argtypes, ggml.ggml_backend_load.restype = (ctypes.c_char_p,), ctypes.c_void_p
            for path in files.values():
                ggml.ggml_backend_load(str(path).encode())
    finally:
        ggml.ggml_log_set(_LOG(), None)
    return "".join(lines)


def _open(path: Path) -> ctypes.CDLL:
    """Open a library, after those of the environment's packages that it lacks. Raises OSError."""
    _add_dll_folders(path.parent)
    return _opened(path, lambda: ctypes.CDLL(str(path)))


def _opened(path: Path, load: Callable[[], _Loaded]) -> _Loaded:
    """Return what `load` returns once the libraries that it lacks are open, if the environment's packages have them."""
    tried: set[str] = set()
    for _ in range(_ATTEMPTS):
        try:
            return load()
        except OSError as error:
            lacking = missing_library(str(error))
            inside = _packaged().get(lacking or "")
            if lacking is None or inside is None or lacking in tried:
                raise
            tried.add(lacking)
            for needed in (*_unnamed(lacking), inside):
                _opened(needed, partial(_preload, needed))
    raise OSError(f"{path.name} needs too many libraries")


def _unnamed(lacking: str) -> list[Path]:
    """Return what a part of Intel's MKL needs without naming it."""
    names = _MKL if lacking.startswith("libmkl_") else ()
    return [path for name in names for file, path in sorted(_packaged().items()) if file.startswith(f"{name}.so.")]


def _preload(path: Path) -> None:
    """Open a library whose functions others use, and resolve its own when they are called. Raises OSError.

    Intel's use functions of each other without naming the library, so ctypes, which resolves all at once, fails.
    """
    system: Any = ctypes.CDLL(None)
    system.dlopen.argtypes, system.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    system.dlerror.restype = ctypes.c_char_p
    if not system.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_GLOBAL):
        raise OSError((system.dlerror() or b"unknown error").decode("utf-8", "replace"))


@cache
def _packaged() -> dict[str, Path]:
    """Return shared libraries of the environment's packages by file name: NVIDIA's, AMD's and Intel's."""
    if sys.platform == "win32":
        return {}
    packages = (Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")))
    patterns = ("nvidia/*/lib", "nvidia/*/lib/*", "_rocm_sdk_*/lib", "_rocm_sdk_*/lib/*")
    folders = [folder for root in dict.fromkeys(packages) for pattern in patterns for folder in root.glob(pattern)]
    found: dict[str, Path] = {}
    for folder in (*folders, Path(sys.prefix, "lib")):
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if ".so" in path.name:
                    found.setdefault(path.name, path)
    return found


@cache
def _add_dll_folders(own: Path) -> None:
    """Let Windows' loader search the folder of a library and those of the environment's packages."""
    if sys.platform != "win32":
        return
    root = Path(sysconfig.get_path("purelib"))
    patterns = ("nvidia/*/bin", "nvidia/*/bin/x86_64", "_rocm_sdk_*/bin")
    places = [own, *(folder for pattern in patterns for folder in root.glob(pattern)), Path(sys.prefix, "Library/bin")]
    for folder in places:
        if folder.is_dir():
            os.add_dll_directory(str(folder))
