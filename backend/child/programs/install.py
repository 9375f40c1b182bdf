"""`child install lock|make`: makes an environment by uv. Neither touches any environment but the one it makes.

One line of JSON on stdin says what is wanted. `lock` resolves the requirements into a pylock.toml (PEP 751) for an
interpreter that it finds, or fetches; `make` makes the environment from such a file. On stdout one JSON object a line:
`{phase, done, total}`, at last `{ok, …}` or `{error: {code, detail, remedy}}`. The end of stdin ends it.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from backend.child.download.errors import Refused, explain_os
from backend.child.install.errors import explain, is_unreachable, no_python, telling_line
from backend.child.install.package_index import Index, configured, environment, pip_settings
from backend.child.install.uv import Uv, find_uv
from backend.child.programs.download import line_of_stdin
from backend.child.progress_report import REPORT_S, ProgressReport

LOCK = "pylock.toml"  # uv takes no other name


def main(argv: list[str]) -> int:
    """Runs the program; the one argument is the step."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    order = json.loads(line_of_stdin())
    report = ProgressReport(out)
    try:
        index = configured(pip_settings(), os.environ)
        own = {"UV_CACHE_DIR": order["cache"], "UV_PYTHON_INSTALL_DIR": str(Path(order["tools"]) / "python")}
        uv = Uv(find_uv(order, report), environment(index, own))
        threading.Thread(target=_end_with_stdin, args=(uv,), daemon=True).start()
        result = (_lock if argv[0] == "lock" else _make)(order, index, uv, report)
    except (Refused, OSError) as error:
        refused = error if isinstance(error, Refused) else explain_os(error, Path(order["folder"]))
        report.send({"error": {"code": refused.code, "detail": refused.detail, "remedy": refused.remedy}})
        return 1
    report.send({"ok": True, **result})
    return 0


def _lock(order: dict[str, Any], index: Index, uv: Uv, report: ProgressReport) -> dict[str, Any]:
    """Resolves; with an index beside the user's own first, and without it if only that one cannot be reached."""
    python = _interpreter(order, uv, report)
    folder = Path(order["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    wanted, lock = folder / "requirements.in", folder / LOCK
    wanted.write_text("\n".join(order["requirements"]) + "\n", encoding="utf-8")
    report.progress("resolve", 0, None)
    words = ["pip", "compile", str(wanted), "--python", python, "--format", "pylock.toml", "--output-file", str(lock)]
    words += ["--no-header", "--quiet", "--only-binary", ":all:", "--index-strategy", "unsafe-best-match"]
    words += [word for file in index.constraints for word in ("--constraint", file)]
    words += [] if not order["upgrade"] else ["--upgrade"]
    extra = ["--index", order["index"]] if order["index"] else []
    code, said = uv.run([*words, *extra, *index.options])
    used = bool(extra)
    if code and extra and index.own and is_unreachable(said):
        code, said_too = uv.run([*words, *index.options])
        used, said = False, said if code and is_unreachable(said_too) else said_too
    if code:
        raise explain(said, "looking up versions", order["name"])
    return {"lock": lock.read_text(encoding="utf-8"), "python": python, "extra": used}


def _interpreter(order: dict[str, Any], uv: Uv, report: ProgressReport) -> str:
    """The Python to make it with: ours where it will do, else one that is here, else one that uv fetches."""
    if order["python"]:
        return str(order["python"])
    request = order["request"]
    report.progress("python", 0, None)
    code, said = uv.run(["python", "find", request, "--no-project", "--no-python-downloads"])
    if code:
        code, said = uv.run(["python", "install", request, "--no-bin"])
        if code:
            raise no_python(order["name"], telling_line(said), request)
        code, said = uv.run(["python", "find", request, "--no-project", "--managed-python"])
    found = [line for line in said.splitlines() if Path(line).is_file()]
    if code or not found:
        raise no_python(order["name"], telling_line(said), request)
    return found[-1]


def _make(order: dict[str, Any], index: Index, uv: Uv, report: ProgressReport) -> dict[str, Any]:
    """Makes the environment in `folder`, from the lock file beside it."""
    folder = Path(order["folder"])
    total = order["installed_bytes"]
    report.progress("download", 0, total)
    code, said = uv.run(["venv", str(folder), "--python", order["python"], "--no-project", "--quiet"])
    if code:
        raise explain(said, "making the environment", order["name"])
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(Path(order["cache"]), folder, total, done, report), daemon=True)
    watcher.start()
    try:
        words = ["pip", "install", "--python", str(interpreter_of(folder)), "--requirements", order["lock"]]
        extra = ["--index", order["index"]] if order["index"] and order["extra"] else []
        code, said = uv.run([*words, "--only-binary", ":all:", "--preview-features", "pylock", *extra, *index.options])
    finally:
        done.set()
        watcher.join()
    if code:
        raise explain(said, "fetching the packages", order["name"])
    report.progress("store", 0, None)
    if hasattr(os, "sync"):
        os.sync()  # thousands of files, which must outlast a power cut once the pointer names them
    return {"python": str(interpreter_of(folder)), "bytes": _bytes_in(folder)}


def interpreter_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _watch(cache: Path, folder: Path, total: int, done: threading.Event, report: ProgressReport) -> None:
    """uv unpacks while it fetches: what has come is what its cache has grown by, in unpacked bytes."""
    first = _bytes_in(cache)
    while not done.wait(REPORT_S * 3):
        came = max(_bytes_in(cache) - first, _bytes_in(folder))
        report.progress("download", min(came, total), total)


def _bytes_in(folder: Path) -> int:
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # it came or went meanwhile
            continue
    return total


def _end_with_stdin(uv: Uv) -> None:
    while os.read(0, 4096):
        pass
    uv.kill()
    os._exit(1)  # the parent is gone; what is half made is removed by the next start
