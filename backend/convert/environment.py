"""The environment in which models are converted: made once by venv and pip, used only when all of it works.

An interrupted making goes on where it was, since pip keeps what came. The mark is written last.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.child import process
from backend.child.workspace import lock_for
from backend.convert import ENVIRONMENT_BYTES, REQUIREMENTS
from backend.errors import Configuration, DiskFull, TouchstoneError

MARK = "complete.json"
_LOOK_S = 2.0
Tell = Callable[[str, int, "int | None", str], None]


def folder_of(home: Path) -> Path:
    """Where the environment of these very requirements and this Python lies."""
    text = json.dumps([REQUIREMENTS, sys.version_info[:2]])
    return home / hashlib.sha256(text.encode()).hexdigest()[:8]


def python_of(folder: Path) -> Path:
    """Its interpreter."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def ready(home: Path) -> bool:
    """Whether it is there, whole."""
    return (folder_of(home) / MARK).is_file()


def make(home: Path, tell: Tell) -> Path:
    """Makes the environment if it is not there; returns its interpreter. Raises Configuration, DiskFull."""
    if not ready(home):
        home.mkdir(parents=True, exist_ok=True)
        lock = lock_for(home, "environment")
        tell("environment", 0, ENVIRONMENT_BYTES, "bytes")
        while not lock.acquire():  # the conversion of another model makes it
            time.sleep(_LOOK_S)
        try:
            if not ready(home):
                _fill(folder_of(home), tell)
        finally:
            lock.release()
    return python_of(folder_of(home))


def _fill(folder: Path, tell: Tell) -> None:
    python = python_of(folder)
    if not python.is_file():
        call([sys.executable, "-I", "-m", "venv", str(folder)], "the environment could not be made")
    grown = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, tell, grown), daemon=True)
    watch.start()
    try:
        call([str(python), "-m", "pip", "install", "--no-input", "-q", *REQUIREMENTS], "pip could not install")
    finally:
        grown.set()
        watch.join()
    proof = "import torch, transformers, onnxruntime_genai as g; print(torch.__version__, transformers.__version__)"
    versions = call([str(python), "-I", "-c", proof], "what was installed does not work")
    (folder / MARK).write_text(json.dumps({"requirements": REQUIREMENTS, "versions": versions.split()}))


def call(command: list[str], failing: str, env: dict[str, str] | None = None) -> str:
    """Runs a program that ends with this one; returns what it printed. Raises Configuration, DiskFull."""
    started: Any = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        preexec_fn=process.die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 (no threads hold locks)
    )
    printed, told = started.communicate()
    if started.returncode:
        raise _failure(failing, told or printed)
    return str(printed)


def _failure(failing: str, told: str) -> TouchstoneError:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines or ["it said nothing"]
    said = telling[-1][:500]
    if "No space left" in told:
        return DiskFull(f"The disk is full: {failing}.", "Free some space, then start again: it goes on.")
    return Configuration(
        f"{failing[0].upper()}{failing[1:]}: {said}",
        "Check the network and pip's own settings (index, proxy, certificates), then start again: it goes on.",
    )


def _watch(folder: Path, tell: Tell, grown: threading.Event) -> None:
    while not grown.wait(_LOOK_S):
        size = 0
        for file in folder.rglob("*"):
            try:
                size += file.lstat().st_size
            except OSError:
                continue
        tell("environment", min(size, ENVIRONMENT_BYTES), ENVIRONMENT_BYTES, "bytes")
