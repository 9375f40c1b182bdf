"""What a file is that should be a GGUF model and is not, and the words for what is wrong with one that is."""

from __future__ import annotations

import re
from typing import Any

from backend.common.errors import ModelBroken

MAGIC = b"GGUF"
NEWEST_VERSION = 3
_FETCH_AGAIN = "Delete the file and fetch it again from its source."
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)  # a part of a model, by llama.cpp's own tool
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OLDER_MAGICS = {b"lmgg": "ggml", b"GGML": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"algg": "ggla"}
_BY_HAND = re.compile(r"(?P<whole>.+\.gguf)[.-](part-?\w+|split-?\w+|\d{2,3})$", re.IGNORECASE)


def is_split_by_hand(name: str) -> bool:
    """Whether a file name tells of a piece that must be joined before it is a model, as `x.gguf.part1of2`."""
    return _BY_HAND.fullmatch(name) is not None


def part_names(name: str) -> list[str]:
    """The names of all parts of a model that llama.cpp's own tool split, in their order; else the one name."""
    part = SPLIT.fullmatch(name)
    if part is None:
        return [name]
    return [f"{part[1]}-{number:05}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]


def how_to_join(name: str) -> str:
    """The remedy for pieces of a file that was cut by hand."""
    match = _BY_HAND.fullmatch(name)
    whole = match["whole"] if match else name
    counted = re.fullmatch(r"(.+part)\d+(of)(\d{1,2})", name, re.IGNORECASE)
    if counted:
        pieces = [f'"{counted[1]}{number}{counted[2]}{counted[3]}"' for number in range(1, int(counted[3]) + 1)]
    else:
        pieces = ["PIECE1", "PIECE2", "…"]
    return (
        f'Join the pieces in their order, on Linux and macOS with `cat {" ".join(pieces)} > "{whole}"`, '
        f'on Windows with `copy /b {"+".join(pieces)} "{whole}"`; then use {whole}.'
    )


def check_foreign(name: str, start: bytes, size: int) -> None:
    """Tells the things that are commonly saved in a model's place, whatever its kind. Raises ModelBroken."""
    if size == 0:
        raise ModelBroken(f"{name} is empty.", _FETCH_AGAIN)
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")):
        raise ModelBroken(
            f"{name} is a web page, not a model: probably a sign-in or an error page was saved in its place.",
            f"{_FETCH_AGAIN} Sign in there first if the source asks for it.",
        )
    if text.startswith(b"version https://git-lfs"):
        raise ModelBroken(
            f"{name} is a git-lfs pointer, a note of where the file lies, and not the file itself.",
            "Run `git lfs pull` in that repository, or fetch the file again from its download page.",
        )
    if start[:2] == b"PK" or start[:1] == b"\x80" and start[1:2] <= b"\x05":  # a pickle begins with its version
        raise ModelBroken(
            f"{name} is a zip or pickle file, which can carry programs and is never loaded.",
            "Fetch the model as GGUF, ONNX or safetensors, from a source you trust.",
        )


def check_kind(name: str, start: bytes, size: int, byteorder: str) -> None:
    """Tells by its first bytes what a file is that should be GGUF. Raises ModelBroken."""
    check_foreign(name, start, size)
    if start[:4] in _OLDER_MAGICS:
        raise ModelBroken(
            f"{name} is in the older format {_OLDER_MAGICS[start[:4]]}: it starts with {start[:4]!r}, not b'GGUF'.",
            "Fetch the same model as GGUF, or convert it with the tools of llama.cpp.",
        )
    if start[:4] != MAGIC:
        raise ModelBroken(f"{name} is not a GGUF file: it starts with {start[:4]!r} instead of b'GGUF'.", _FETCH_AGAIN)
    if size < 24:
        raise truncated(name, f"it has {size} bytes and its first fields alone need 24")
    _check_version(name, start, byteorder)


def _check_version(name: str, start: bytes, byteorder: str) -> None:
    here: Any = byteorder
    other: Any = "big" if byteorder == "little" else "little"
    version = int.from_bytes(start[4:8], here)
    if version & 0xFFFF == 0 and version != 0:
        raise ModelBroken(
            f"{name} was written for {other}-endian machines (version {int.from_bytes(start[4:8], other)} in that byte "
            f"order), and this machine is {here}-endian.",
            "Fetch the usual variant of this model.",
        )
    if version > NEWEST_VERSION:
        raise ModelBroken(
            f"{name} has GGUF version {version}; this version of Touchstone reads up to {NEWEST_VERSION}.",
            "Update Touchstone, or fetch an older variant of this model.",
        )
    if version < 2:
        raise ModelBroken(
            f"{name} has GGUF version {version}; versions 2 and {NEWEST_VERSION} are read.",
            "Fetch a newer variant of this model.",
        )


def truncated(name: str, why: str) -> ModelBroken:
    """The refusal for a file that ends too early."""
    return ModelBroken(f"{name} is cut short: {why}.", f"{_FETCH_AGAIN} The download probably broke off.")


def damaged(name: str, why: str) -> ModelBroken:
    """The refusal for a file that contradicts itself."""
    return ModelBroken(f"{name} is damaged: {why}.", _FETCH_AGAIN)
