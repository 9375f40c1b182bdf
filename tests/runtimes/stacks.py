"""Tiny real runtimes: generated wheels, an index that serves them with faults, and a manager that installs them.

A tiny wheel brings one line that lets its environment find the libraries of this one; so installing takes a second and
the proofs are the real ones. Worse versions put a package of the same name before those libraries.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import shutil
import sysconfig
import threading
import zipfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from backend.common.config.settings import load_settings
from backend.common.installation import ROOT
from backend.jobs.live_job import LiveJob
from backend.manager import ModelManager
from backend.runtimes import recipes
from tests.gated_server import GatedServer
from tests.service import wait_for

Result = TypeVar("Result")
NAME = "tiny"
RECIPE = """
title: A tiny runtime
licence: MIT
python: ["3.11", "3.14"]
processor: true
requirements: ["tinystack>=1"]
builds:
  - platforms: [linux-x86_64, linux-aarch64, darwin-aarch64, darwin-x86_64, win32-x86_64, win32-aarch64]
    download_bytes: 20000
    installed_bytes: 200000
    known: made up
"""
REAL = "import sys, importlib\nsys.path.remove(__file__.rsplit('/', 2)[0]); del sys.modules['onnxruntime']\n"
SHADOW = REAL + "real = importlib.import_module('onnxruntime')\nsys.modules['onnxruntime'] = real\n"
WRONG = (
    SHADOW
    + "run = real.InferenceSession.run\nreal.InferenceSession.run = lambda *a, **k: [2 * x for x in run(*a, **k)]\n"
)
SLOW = SHADOW + (
    "import time\nrun = real.InferenceSession.run\n"
    "def slow(*a, **k):\n    began = time.perf_counter()\n    said = run(*a, **k)\n"
    "    time.sleep(3 * (time.perf_counter() - began))\n    return said\n"
    "real.InferenceSession.run = slow\n"
)
MISSING = "raise ImportError('libtiny.so.7: cannot open shared object file: No such file or directory')\n"


def make_library(folder: Path, version: str) -> Path:
    """A version of `tinylibs`: a wheel for Python 3.14 and later, with a file and a dependency that no index has."""
    folder.mkdir(parents=True, exist_ok=True)
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    path = folder / f"tinylibs-{version}-cp314-abi3-{system}.whl"
    info = f"tinylibs-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinylibs/libtiny.so", version)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: tinylibs\nVersion: {version}\nRequires-Dist: absent>=1\n",
        )
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp314-abi3-{system}\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in archive.namelist()))
    return path


def make_wheel(folder: Path, version: str, onnxruntime: str | None = None, ballast: bytes = b"") -> Path:
    """A version of `tinystack`, with a package `onnxruntime` of its own if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tinystack-{version}-py3-none-any.whl"
    info = f"tinystack-{version}.dist-info"
    files: dict[str, bytes | str] = {
        "tinystack.pth": sysconfig.get_path("purelib") + "\n",
        "tinystack/__init__.py": "",
        **({"onnxruntime/__init__.py": onnxruntime} if onnxruntime else {}),
        **({"tinystack/ballast": ballast} if ballast else {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinystack\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


class Index(GatedServer):
    """A package index of the wheels in a folder. While `gate` is clear, it stops in the middle of a wheel."""

    def __init__(self, wheels: Path) -> None:
        super().__init__(self.answer)
        self.wheels = wheels
        self.gone = threading.Event()  # set: wheels are listed and not there
        self.url = f"{self.origin}/simple"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """A wheel, its metadata, or the page that lists them all."""
        name = handler.path.rsplit("/", 1)[-1]
        is_wheel = name.endswith(".whl")
        missing = is_wheel and self.gone.is_set()
        body = self._body(name)
        handler.send_response(404 if missing else 200)
        handler.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        half = len(body) // 2
        handler.wfile.write(body[:half])
        if is_wheel and not self.gate.is_set():
            handler.wfile.flush()
            self.stalled.set()
            self.gate.wait(60)
        try:
            handler.wfile.write(body[half:])
        except OSError:
            handler.close_connection = True

    def _body(self, name: str) -> bytes:
        if name.endswith(".whl"):
            return (self.wheels / name).read_bytes()
        if name.endswith(".metadata"):
            with zipfile.ZipFile(self.wheels / name.removesuffix(".metadata")) as wheel:
                return wheel.read(next(each for each in wheel.namelist() if each.endswith("/METADATA")))
        links = (
            f'<a href="/files/{file.name}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}" '
            f'data-core-metadata="true">{file.name}</a>'
            for file in sorted(self.wheels.glob("*.whl"))
        )
        return "".join(links).encode()


def recipe_folder(folder: Path) -> Path:
    """The recipes of this version, and the tiny one."""
    shutil.copytree(recipes.FOLDER, folder, dirs_exist_ok=True)
    (folder / f"{NAME}.yaml").write_text(RECIPE)
    return folder


class House:
    """A manager on a loop of its own, and its wheels."""

    def __init__(self, folder: Path, index_folder: Path) -> None:
        self.index_folder = index_folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        flags = {"storage.data_dir": str(folder / "data"), "text.slots": 1}
        self.manager = ModelManager(load_settings(flags, environ={}, root=ROOT))
        self.call(self.manager.start())
        self.call(self.manager.probes.wait_until_idle())

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs it on the manager's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def ask(self, task: str, name: str = NAME) -> LiveJob:
        """A job that was accepted."""
        return self.call(self.manager.runtime_service.submit(task, name, "test"))

    def done(self, job: LiveJob) -> dict[str, Any]:
        """The job after its end."""
        wait_for(job.ended.is_set, 120)
        return job.view()

    def run(self, task: str, name: str = NAME) -> dict[str, Any]:
        """The same for one that is asked for now."""
        return self.done(self.ask(task, name))

    @property
    def shelf_folder(self) -> Path:
        """Where the tiny runtime lies."""
        return self.manager.runtime_service.store.root / NAME

    def environments(self) -> set[str]:
        """The folders of its versions."""
        return {path.name for path in self.shelf_folder.glob("*") if path.is_dir() and not path.suffix}

    def close(self) -> None:
        """Stops all."""
        self.call(self.manager.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
