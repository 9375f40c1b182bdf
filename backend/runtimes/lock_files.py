"""A resolved set of packages (pylock.toml, PEP 751): its digest, its packages, its download size."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from backend.common.types import JsonObject

_DIGITS = 10  # length of the digest: short, because some systems limit the length of paths


@dataclass(frozen=True)
class Lock:
    """A parsed lock file. `packages` are versions by name; `download_bytes` is None if the index has no sizes."""

    text: str
    digest: str
    packages: dict[str, str]
    download_bytes: int | None


def read_lock(text: str, python: str, libraries: str | None = None) -> Lock:
    """Parse the lock file of an interpreter, and the one of the packages that are only unpacked. Raises ValueError."""
    listed: list[JsonObject] = [
        package for each in (text, libraries or "") for package in tomllib.loads(each).get("packages", [])
    ]
    packages = {package["name"]: str(package.get("version", "")) for package in listed}
    wheels = [_wheel(package) for package in listed]
    hashes = sorted(str(sorted(wheel.get("hashes", {}).items()) or wheel.get("url")) for wheel in wheels)
    about = [python, *(f"{name}=={version}" for name, version in sorted(packages.items())), *hashes]
    sizes = [_size(wheel) for wheel in wheels]
    known_sizes = [size for size in sizes if size is not None]
    total = sum(known_sizes) if len(known_sizes) == len(sizes) else None
    return Lock(text, hashlib.sha256("\n".join(about).encode()).hexdigest()[:_DIGITS], packages, total)


def _wheel(package: JsonObject) -> JsonObject:
    """Return the wheel that is downloaded: uv lists the best one first."""
    wheels: list[JsonObject] = package.get("wheels") or [package.get("archive") or package.get("sdist") or {}]
    return wheels[0]


def _size(wheel: JsonObject) -> int | None:
    if "size" in wheel:
        return int(wheel["size"])
    parts = urlsplit(wheel.get("url", ""))
    if parts.scheme == "file":
        file = Path(unquote(parts.path))
        return file.stat().st_size if file.is_file() else None
    return None
