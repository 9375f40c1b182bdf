"""A resolved set of packages (pylock.toml, PEP 751): its name, what it holds, what is to be fetched."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_DIGITS = 10  # of a folder's name: short, for systems whose paths may not be long


@dataclass(frozen=True)
class Lock:
    """`packages` are versions by name; `download_bytes` is None where the index tells no sizes."""

    text: str
    digest: str
    packages: dict[str, str]
    download_bytes: int | None


def read_lock(text: str, python: str) -> Lock:
    """The lock for an interpreter. Raises ValueError for what is none."""
    listed: list[dict[str, Any]] = tomllib.loads(text).get("packages", [])
    packages = {one["name"]: str(one.get("version", "")) for one in listed}
    wheels = [_wheel(one) for one in listed]
    hashes = sorted(str(sorted(wheel.get("hashes", {}).items()) or wheel.get("url")) for wheel in wheels)
    about = [python, *(f"{name}=={version}" for name, version in sorted(packages.items())), *hashes]
    sizes = [_size(wheel) for wheel in wheels]
    known = [one for one in sizes if one is not None]
    total = sum(known) if len(known) == len(sizes) else None
    return Lock(text, hashlib.sha256("\n".join(about).encode()).hexdigest()[:_DIGITS], packages, total)


def _wheel(package: dict[str, Any]) -> dict[str, Any]:
    """The wheel that is fetched: uv lists the best one first."""
    wheels: list[dict[str, Any]] = package.get("wheels") or [package.get("archive") or {}]
    return wheels[0]


def _size(wheel: dict[str, Any]) -> int | None:
    if "size" in wheel:
        return int(wheel["size"])
    parts = urlsplit(wheel.get("url", ""))
    if parts.scheme == "file":
        file = Path(unquote(parts.path))
        return file.stat().st_size if file.is_file() else None
    return None
