"""Library paths of the user's shell that would replace the libraries of Touchstone's own environments.

A module system, conda or CUDA's installer sets them for other programs. The loader prefers their folders to those that
a package names, so an old libstdc++ or another cuDNN there breaks every device. Environments of the user keep them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from backend.common.bounded_reads import bounded_read
from backend.common.clean_text import clean
from backend.common.installation import ROOT

log = logging.getLogger(__name__)

_FOLDERS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH")
_FILES = ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES")
_READ_S = 0.2  # once for each value of a variable, in the event loop
_PYTHON = ("PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE")
# Libraries that packages bring, or that every system has. GCC's OpenMP may be preloaded on purpose (static TLS block).
_REPLACING = re.compile(
    r"lib(?:stdc\+\+|gcc_s|c\+\+|c10\w*|torch\w*|cudart|cublas\w*|cudnn\w*|cufft\w*|curand|cusolver\w*|cusparse\w*|nccl|"
    r"nvrtc[\w-]*|nvJitLink|onnxruntime\w*|openvino\w*|tbb\w*|ggml[\w-]*|llama)(?:\.so[.\d]*|[.\d]*\.dylib)"
)
_OPENMP = re.compile(r"lib(?:gomp|iomp5|omp)(?:\.so[.\d]*|[.\d]*\.dylib)")
# A folder with one of them is how a container, WSL or an installer gives a driver or TensorRT: it stays.
_NEEDED = re.compile(r"lib(?:cuda|dxcore|nvidia-ml|nvinfer\w*|amdhip64|hsa-runtime64)\.so[.\d]*")


def is_own(python: str) -> bool:
    """Return whether an interpreter is that of `.venv`, made by the launcher, or of a runtime that was installed."""
    if python == sys.executable:
        return Path(sys.prefix) == ROOT / ".venv"
    folder = Path(python).parent.parent
    return (folder.parent / f"{folder.name}.lock" / "pylock.toml").is_file()  # see RuntimeStore


def remove_foreign(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an own environment's child without foreign library paths. What is removed is logged."""
    kept = {name: value for name, value in environment.items() if name not in _PYTHON}
    for name in (*_FOLDERS, *_FILES):
        if value := kept.pop(name, ""):
            entries = _kept_entries(name, value)
            if entries:
                kept[name] = os.pathsep.join(entries)
    return kept


@lru_cache(maxsize=32)
def _kept_entries(name: str, value: str) -> tuple[str, ...]:
    """Return the entries of a variable that stay. Cached, so that the folders are read and logged once."""
    entries = [entry for entry in re.split("[: ;]" if name in _FILES else "[:;]", value) if entry]
    removed = [entry for entry in entries if _is_foreign(name, entry)]
    if removed:
        fields = {"variable": name, "removed": [clean(entry) for entry in removed]}
        log.warning(
            "foreign library paths are kept from the child processes of Touchstone's environments", extra=fields
        )
    return tuple(entry for entry in entries if entry not in removed)


def _is_foreign(name: str, entry: str) -> bool:
    if not _system_has_runtime():
        return False
    if name in _FILES:
        return _REPLACING.fullmatch(Path(entry).name) is not None
    folder = Path(entry)
    try:
        real, names = bounded_read(
            folder, lambda: (folder.resolve(), [each.name for each in folder.iterdir()]), _READ_S
        )
        if real == Path(sys.base_prefix, "lib").resolve():  # the interpreter's own library may be there
            return False
    except OSError:  # it does not exist or does not answer: the loader would wait for it too
        return True
    if any(_NEEDED.fullmatch(each) for each in names):
        return False
    return any(_REPLACING.fullmatch(each) or _OPENMP.fullmatch(each) for each in names)


@lru_cache(maxsize=1)
def _system_has_runtime() -> bool:
    """Return whether the loader finds a C++ library without any variable. NixOS and Guix have none outside."""
    if sys.platform == "darwin":
        return True
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", f"/lib/{multiarch}", f"/usr/lib/{multiarch}")
    return any(Path(folder, "libstdc++.so.6").exists() for folder in folders)
