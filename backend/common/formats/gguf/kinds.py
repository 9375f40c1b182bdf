"""Recognize files that are not GGUF models, and the errors for damaged ones."""

from __future__ import annotations

import re
from typing import Any

from backend.common.errors import ModelBroken

MAGIC = b"GGUF"
NEWEST_VERSION = 3
_DOWNLOAD_AGAIN = "Delete the file and download it again from its source."
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)  # a part of a model split by llama.cpp's tool
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OLDER_MAGICS = {b"lmgg": "ggml", b"GGML": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"algg": "ggla"}
_BY_HAND = re.compile(r"(?P<joined>.+\.gguf)[.-](part-?\w+|split-?\w+|\d{2,3})$", re.IGNORECASE)


def is_split_by_hand(name: str) -> bool:
    """Return whether a file name is that of a part that must be joined first, such as `x.gguf.part1of2`."""
    return _BY_HAND.fullmatch(name) is not None


def part_names(name: str) -> list[str]:
    """Return the names of all parts of a model split by llama.cpp's tool, in order; otherwise the name itself."""
    part = SPLIT.fullmatch(name)
    if part is None:
        return [name]
    return [f"{part[1]}-{number:05}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]


def how_to_join(name: str) -> str:
    """Return the remedy for a manually split file: the commands that join its parts."""
    match = _BY_HAND.fullmatch(name)
    joined = match["joined"] if match else name
    counted = re.fullmatch(r"(.+part)\d+(of)(\d{1,2})", name, re.IGNORECASE)
    if counted:
        parts = [f'"{counted[1]}{number}{counted[2]}{counted[3]}"' for number in range(1, int(counted[3]) + 1)]
    else:
        parts = ["PART1", "PART2", "…"]
    return (
        f'Join the parts in order, on Linux and macOS with `cat {" ".join(parts)} > "{joined}"`, '
        f'on Windows with `copy /b {"+".join(parts)} "{joined}"`; then use {joined}.'
    )


def check_foreign(name: str, start: bytes, size: int) -> None:
    """Raise ModelBroken for what is often saved instead of a model: web pages, git-lfs pointers, pickles."""
    if size == 0:
        raise ModelBroken(f"{name} is empty.", _DOWNLOAD_AGAIN)
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")):
        raise ModelBroken(
            f"{name} is a web page, not a model: probably a sign-in or error page was saved instead.",
            f"{_DOWNLOAD_AGAIN} Sign in first if the source requires it.",
        )
    if text.startswith(b"version https://git-lfs"):
        raise ModelBroken(
            f"{name} is a git-lfs pointer, not the model file itself.",
            "Run `git lfs pull` in that repository, or download the file again from its download page.",
        )
    if start[:2] == b"PK" or start[:1] == b"\x80" and start[1:2] <= b"\x05":  # a pickle starts with its version
        raise ModelBroken(
            f"{name} is a zip or pickle file. It can contain programs, so it is never loaded.",
            "Download the model as GGUF, ONNX or safetensors from a source you trust.",
        )


def check_kind(name: str, start: bytes, size: int, byteorder: str) -> None:
    """Check the first bytes of a file that should be GGUF. Raises ModelBroken that names what it is instead."""
    check_foreign(name, start, size)
    if start[:4] in _OLDER_MAGICS:
        raise ModelBroken(
            f"{name} is in the older format {_OLDER_MAGICS[start[:4]]}: it starts with {start[:4]!r}, not b'GGUF'.",
            "Download the same model as GGUF, or convert it with llama.cpp's tools.",
        )
    if start[:4] != MAGIC:
        raise ModelBroken(
            f"{name} is not a GGUF file: it starts with {start[:4]!r} instead of b'GGUF'.", _DOWNLOAD_AGAIN
        )
    if size < 24:
        raise truncated(name, f"it has {size} bytes and its first fields need 24")
    _check_version(name, start, byteorder)


def _check_version(name: str, start: bytes, byteorder: str) -> None:
    here: Any = byteorder
    other: Any = "big" if byteorder == "little" else "little"
    version = int.from_bytes(start[4:8], here)
    if version & 0xFFFF == 0 and version != 0:
        raise ModelBroken(
            f"{name} is for {other}-endian machines (version {int.from_bytes(start[4:8], other)} in that byte order), "
            f"but this machine is {here}-endian.",
            f"Download the {here}-endian variant of this model.",
        )
    if version > NEWEST_VERSION:
        raise ModelBroken(
            f"{name} has GGUF version {version}; this version of Touchstone supports up to {NEWEST_VERSION}.",
            "Update Touchstone, or download an older variant of this model.",
        )
    if version < 2:
        raise ModelBroken(
            f"{name} has GGUF version {version}; versions 2 and {NEWEST_VERSION} are supported.",
            "Download a newer variant of this model.",
        )


def truncated(name: str, why: str) -> ModelBroken:
    """Return the error for a file that ends too early."""
    return ModelBroken(f"{name} is truncated: {why}.", f"{_DOWNLOAD_AGAIN} The download was probably interrupted.")


def damaged(name: str, why: str) -> ModelBroken:
    """Return the error for a file with inconsistent content."""
    return ModelBroken(f"{name} is damaged: {why}.", _DOWNLOAD_AGAIN)
