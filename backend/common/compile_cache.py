"""What providers compile of graphs is kept: `<data>/cache/onnx/KEY/`, one folder for each card, driver and runtime.

Another driver or version gets another folder: what was compiled for one is wrong for the next. All may be deleted.
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
    """The folder for these facts, made and marked as used; empty where none can be made, and then nothing is kept."""
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    folder = data_dir / FOLDER / key
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return ""
    return str(folder.resolve())


def sweep(data_dir: Path, before_s: float) -> int:
    """Removes the folders that were not used since that moment; how many."""
    gone = 0
    with contextlib.suppress(OSError):  # no folder was made yet
        for folder in list((data_dir / FOLDER).iterdir()):
            if folder.stat().st_mtime < before_s:
                shutil.rmtree(folder, ignore_errors=True)
                gone += 1
    return gone
