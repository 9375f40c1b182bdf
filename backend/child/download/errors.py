"""The errors of a download: their class, and those of pip and of the file system explained."""

from __future__ import annotations

import errno
from pathlib import Path

from backend.common.installer_errors import Operation, diagnose

_LISTED_BY_HAND = "A model file that you fetched another way can be listed under `models:` in config.yaml."
KEPT_FREE_BYTES = 2_000_000_000  # a download that would leave less is refused before it starts
_CODES = {"damaged": "model_broken"}


class Refused(Exception):
    """A download or an installation failed; `code` is one of `backend.common.errors`."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.code, self.detail, self.remedy = code, detail, remedy


def explain_os(error: OSError, folder: Path) -> Refused:
    """Return the error to show for an OSError while writing into `folder`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or getattr(error, "winerror", None) == 112:
        return disk_full(folder)
    reason = error.strerror or str(error)
    return Refused(
        "configuration",
        f"The model cannot be stored in {folder}: {reason}.",
        "Make that folder writable, or set TOUCHSTONE_DATA_DIR to another one.",
    )


def explain_pip(output: str, requirement: str, folder: Path) -> Refused:
    """Return the error to show for the output of a pip that failed to fetch `requirement` into `folder`."""
    operation = Operation(
        again="retry",
        package=requirement,
        certificate_setting="SSL_CERT_FILE (or PIP_CERT, or REQUESTS_CA_BUNDLE)",
        alternative=_LISTED_BY_HAND,
    )
    diagnosis = diagnose(output, operation)
    if diagnosis.kind == "disk_full":
        return disk_full(folder)
    line = f" ({diagnosis.line})" if diagnosis.kind in ("network", "proxy", "denied", "other") else ""
    refused = not_fetched(f"{diagnosis.reason}{line}", diagnosis.remedy)
    refused.code = _CODES.get(diagnosis.kind, refused.code)
    return refused


def not_fetched(why: str, remedy: str) -> Refused:
    """Return the error for a download that failed without leaving a broken file."""
    return Refused("model_not_downloaded", f"The model could not be downloaded: {why}.", remedy)


def fits(needed: int, free: int) -> bool:
    """Return whether a download leaves enough free space for the system and other programs."""
    return needed + KEPT_FREE_BYTES <= free


def disk_full(
    folder: Path, needed: int | None = None, free: int = 0, other: str = "set TOUCHSTONE_DATA_DIR"
) -> Refused:
    """Return the error for a disk that is too small. `needed` and `free` are bytes; `other` moves the folder."""
    numbers = ""
    if needed is not None:
        kept = f"{KEPT_FREE_BYTES / 1e9:.0f} GB must stay free"
        numbers = f": {needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free, and {kept}"
    return Refused(
        "disk_full",
        f"The disk is full: the model does not fit into {folder}{numbers}.",
        f"Free some space, or {other} to a folder on another disk.",
    )
