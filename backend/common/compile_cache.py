"""The cache of compiled graphs: `<data>/cache/onnx/KEY/`, one folder per card, driver and runtime.

A compiled graph is only valid for one driver and version, so others get another folder. All may be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

FOLDER = Path("cache") / "onnx"


def cache_for(data_dir: Path, *facts: Any) -> str:
    """Create the cache folder for these facts and mark it as used.

    Returns its path, empty if it cannot be created: then the cache is disabled.
    """
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    folder = data_dir / FOLDER / key
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return ""
    return str(folder.resolve())


def sweep(data_dir: Path, before_s: float) -> int:
    """Delete folders that were not used since `before_s` (seconds since the epoch). Returns their number."""
    deleted = 0
    with contextlib.suppress(OSError):  # the cache folder does not exist yet
        for folder in list((data_dir / FOLDER).iterdir()):
            if folder.stat().st_mtime < before_s:
                shutil.rmtree(folder, ignore_errors=True)
                deleted += 1
    return deleted
