"""The folders in which other programs store models, by environment variables and by their defaults per system."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from backend.common.bounded_reads import names_in, text_of
from backend.common.config.settings.schema import with_home
from backend.models.sources import LLAMA_CPP

_WINDOWS_USERS = Path("/mnt/c/Users")  # of the host of WSL
_NO_USERS = ("All Users", "Default", "Default User", "Public", "desktop.ini")


def ollama_folders(environ: Mapping[str, str], system: str = sys.platform) -> list[Path]:
    """Return the folders that may hold Ollama's models: its variable, the user's, the service's."""
    if named := environ.get("OLLAMA_MODELS"):
        return [with_home(named)]
    services = ["/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models", "/var/lib/ollama/models"]
    own = _homes(environ, system, ".ollama/models")
    return [*own, *(map(Path, services) if system == "linux" else ())]


def lm_studio_folders(environ: Mapping[str, str], system: str = sys.platform) -> list[Path]:
    """Return the folders that may hold LM Studio's models: the one that its pointer names, else its defaults."""
    homes = _homes(environ, system, "")
    named = [text_of(home / ".lmstudio-home-pointer") for home in homes[:1]]
    pointed = [Path(text) / "models" for text in named if text]
    return [*pointed, *(home / name for home in homes for name in (".lmstudio/models", ".cache/lm-studio/models"))]


def llama_cpp_folders(environ: Mapping[str, str], system: str = sys.platform) -> list[Path]:
    """Return the folder of llama.cpp's downloads (common/common.cpp, fs_get_cache_directory)."""
    if named := environ.get("LLAMA_CACHE"):
        return [with_home(named)]
    if system == "darwin":
        return [with_home("~/Library/Caches/llama.cpp")]
    if system == "win32":
        return [Path(environ.get("LOCALAPPDATA") or with_home("~/AppData/Local")) / LLAMA_CPP]
    return [Path(environ.get("XDG_CACHE_HOME") or with_home("~/.cache")) / LLAMA_CPP]


def _homes(environ: Mapping[str, str], system: str, below: str) -> list[Path]:
    """Return a folder below the user's home, in WSL also below the homes of the Windows host."""
    homes = [with_home("~")]
    if system == "linux" and "WSL_DISTRO_NAME" in environ:
        homes += [_WINDOWS_USERS / name for name in names_in(_WINDOWS_USERS) if name not in _NO_USERS]
    return [home / below for home in homes]
