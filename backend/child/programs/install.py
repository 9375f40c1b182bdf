"""Create an environment with uv: `child install lock|make`. No other environment is changed.

The order is one line of JSON on stdin. `lock` resolves the requirements into a pylock.toml (PEP 751) for an interpreter
that it finds or downloads; `make` creates the environment from such a file. It writes the lines of `one_shot.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from backend.child.download.errors import Refused, explain_os
from backend.child.install.errors import explain, no_python, telling_line
from backend.child.install.orders import LockOrder, LockResult, MakeOrder, MakeResult
from backend.child.install.package_index import Index, configured, environment, pip_settings
from backend.child.install.resolution import Resolver
from backend.child.install.uv import Uv, find_uv
from backend.child.programs.download import read_order_line
from backend.child.progress_report import REPORT_S, ProgressReport

LOCK = "pylock.toml"  # uv accepts this name, and `pylock.NAME.toml`
LIBRARIES = "pylock.libraries.toml"
# Libraries are only unpacked, so the interpreter's version does not matter. The newest accepts every stable ABI (abi3).
_LIBRARIES_PYTHON = ("--python-version", "3.14", "--no-deps")


def main(argv: list[str]) -> int:
    """Run the step that the argument names; return the exit code."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    order = json.loads(read_order_line())
    report = ProgressReport(out)
    try:
        index = configured(pip_settings(), os.environ)
        own = {"UV_CACHE_DIR": order["cache"], "UV_PYTHON_INSTALL_DIR": str(Path(order["tools"]) / "python")}
        uv = Uv(find_uv(order, report), environment(index, own))
        threading.Thread(target=_end_with_stdin, args=(uv,), daemon=True).start()
        result: Mapping[str, object]
        result = _lock(order, index, uv, report) if argv[0] == "lock" else _make(order, index, uv, report)
    except (Refused, OSError) as error:
        refused = error if isinstance(error, Refused) else explain_os(error, Path(order["folder"]))
        report.send({"error": {"code": refused.code, "detail": refused.detail, "remedy": refused.remedy}})
        return 1
    report.send({"ok": True, **result})
    return 0


def _lock(order: LockOrder, index: Index, uv: Uv, report: ProgressReport) -> LockResult:
    """Resolve the requirements and the libraries."""
    python = _interpreter(order, uv, report)
    folder = Path(order["folder"])
    shutil.rmtree(folder, ignore_errors=True)  # the rest of an attempt that failed
    folder.mkdir(parents=True)
    report.progress("resolve", 0, None)
    resolver = Resolver(order, index, uv, python)
    lock, is_vendor = resolver.resolve(order["requirements"], folder / LOCK)
    libraries = None
    if order["libraries"]:
        libraries, _ = resolver.resolve(order["libraries"], folder / LIBRARIES, _LIBRARIES_PYTHON)
        # uv would refuse to unpack for another Python than the one that the file names.
        libraries = re.sub(r"(?m)^requires-python = .*\n", "", libraries)
        (folder / LIBRARIES).write_text(libraries, encoding="utf-8")
    return {"lock": lock, "libraries": libraries, "python": python, "extra": is_vendor}


def _interpreter(order: LockOrder, uv: Uv, report: ProgressReport) -> str:
    """Return the Python to use: the one of the order, else one that uv finds, else one that uv downloads."""
    if order["python"]:
        return order["python"]
    request = order["request"]
    report.progress("python", 0, None)
    code, output = uv.run(["python", "find", request, "--no-project", "--no-python-downloads"])
    if code:
        code, output = uv.run(["python", "install", request, "--no-bin"])
        if code:
            raise no_python(order["name"], telling_line(output), request)
        code, output = uv.run(["python", "find", request, "--no-project", "--managed-python"])
    interpreters = [line for line in output.splitlines() if Path(line).is_file()]
    if code or not interpreters:
        raise no_python(order["name"], telling_line(output), request)
    return interpreters[-1]


def _make(order: MakeOrder, index: Index, uv: Uv, report: ProgressReport) -> MakeResult:
    """Create the environment in `folder` from the lock file."""
    folder = Path(order["folder"])
    total = order["installed_bytes"]
    report.progress("download", 0, total)
    code, output = uv.run(["venv", str(folder), "--python", order["python"], "--no-project", "--quiet"])
    if code:
        raise explain(output, "creating the environment", order["name"])
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(Path(order["cache"]), folder, total, done, report), daemon=True)
    watcher.start()
    try:
        code, output = install_lock(order, Path(order["lock"]), [], index, uv)
        libraries = Path(order["lock"]).with_name(LIBRARIES)
        if not code and libraries.is_file():
            code, output = install_lock(order, libraries, [*_LIBRARIES_PYTHON], index, uv)
    finally:
        done.set()
        watcher.join()
    if code:
        raise explain(output, "fetching the packages", order["name"])
    report.progress("store", 0, None)
    if hasattr(os, "sync"):
        os.sync()  # thousands of files, which must be on disk before the pointer names them
    return {"python": str(interpreter_of(folder)), "bytes": _bytes_in(folder)}


def install_lock(order: MakeOrder, lock: Path, options: list[str], index: Index, uv: Uv) -> tuple[int, str]:
    """Install what a lock file lists; return uv's exit code and output."""
    arguments = ["pip", "install", "--python", str(interpreter_of(Path(order["folder"]))), "--requirements", str(lock)]
    arguments += ["--only-binary", ":all:", "--preview-features", "pylock", *options]
    if (vendor := order["index"]) and order["extra"]:
        arguments += ["--index", vendor["url"], *(word for name in vendor["sources"] for word in ("--no-binary", name))]
    return uv.run([*arguments, *index.options])


def interpreter_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _watch(cache: Path, folder: Path, total: int, done: threading.Event, report: ProgressReport) -> None:
    """Report progress: uv unpacks while it downloads, so its cache grows by the unpacked bytes received."""
    first = _bytes_in(cache)
    while not done.wait(REPORT_S * 3):
        received = max(_bytes_in(cache) - first, _bytes_in(folder))
        report.progress("download", min(received, total), total)


def _bytes_in(folder: Path) -> int:
    total = 0
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # it was created or deleted meanwhile
            continue
    return total


def _end_with_stdin(uv: Uv) -> None:
    while os.read(0, 4096):
        pass
    uv.kill()
    os._exit(1)  # the parent is gone; the next start deletes the partial environment
