"""Downloads by a real child from web servers that cut, ignore ranges, change the file, stall or send wrong data."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.child import handle as children
from backend.child import one_shot
from backend.child.download.workspace import NAME, PART_KEPT_S, sweep
from backend.common.errors import DiskFull, ModelBroken, ModelNotDownloaded, TouchstoneError, WorkerCrashed
from backend.common.formats.gguf import parts
from backend.common.installation import ROOT
from backend.common.types import Progress
from backend.models import Entry, Source, download
from tests.file_server import FileServer
from tests.test_gguf import FACTS, TEXT, gguf

CONTENT = gguf(tensors=3000)
OTHER = gguf([*FACTS, ("general.author", TEXT, "other")], tensors=3000)
HALF = len(CONTENT) // 2
LIMIT_S = 60


@pytest.fixture(autouse=True)
def no_proxy_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def web() -> Iterator[FileServer]:
    with FileServer(CONTENT) as served:
        yield served


@pytest.fixture
def entry(tmp_path: Path, web: FileServer) -> Entry:
    target = tmp_path / "dätä 音" / "models" / "tiny.gguf"
    return Entry("tiny", "Tiny", "text", ("llama.cpp",), target, source=Source("https", url=web.url))


def fetch(entry: Entry, seen: list[Progress] | None = None) -> Path:
    async def note(progress: Progress) -> None:
        if seen is not None:
            seen.append(progress)

    return Path(asyncio.run(asyncio.wait_for(download.fetch(entry, note), LIMIT_S))["path"])


def refusal(entry: Entry, kind: type[TouchstoneError]) -> str:
    with pytest.raises(TouchstoneError) as caught:
        fetch(entry)
    assert type(caught.value) is kind, caught.value.detail
    assert not entry.target.exists()
    return f"{caught.value.detail} {caught.value.remedy}"


def part(entry: Entry) -> Path:
    return entry.target.parent / NAME / (entry.target.name + ".part")


def assert_whole(entry: Entry, content: bytes = CONTENT) -> None:
    assert entry.target.read_bytes() == content
    assert sorted(file.name for file in (entry.target.parent / NAME).iterdir()) == ["tiny.gguf.lock"]


def test_a_file_comes_whole_and_with_its_rate(web: FileServer, entry: Entry) -> None:
    seen: list[Progress] = []
    assert fetch(entry, seen) == entry.target
    assert_whole(entry)
    assert {progress.phase for progress in seen} == {"download"}
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (len(CONTENT), len(CONTENT), "bytes")
    assert seen[-1].per_s is None or seen[-1].per_s > 0
    assert web.asked[0].headers["User-Agent"].startswith("Touchstone/")


def test_the_rate_and_the_time_left_follow_what_came() -> None:
    pace = one_shot.RateEstimator()
    assert pace.progress({"phase": "download", "done": 100, "total": 1000}, 5.0).per_s is None
    later = pace.progress({"phase": "download", "done": 400, "total": 1000}, 8.0)
    assert (later.per_s, later.eta_s) == (100.0, 6.0)


def test_a_file_that_is_there_is_not_fetched_again(web: FileServer, entry: Entry) -> None:
    fetch(entry)
    fetch(entry)
    assert len(web.asked) == 1
    entry.target.write_bytes(CONTENT[:-50])
    fetch(entry)
    assert_whole(entry)


def test_a_broken_line_is_gone_on_with(web: FileServer, entry: Entry) -> None:
    web.cuts = [HALF, 1000, 0]
    seen: list[Progress] = []
    fetch(replace(entry, sha256=hashlib.sha256(CONTENT).hexdigest()), seen)
    assert_whole(entry)
    assert [asked.range for asked in web.asked] == [
        None,
        f"bytes={HALF}-",
        f"bytes={HALF + 1000}-",
        f"bytes={HALF + 1000}-",
    ]
    assert [asked.headers.get("If-Range") for asked in web.asked[1:]] == ['"one"'] * 3
    assert web.bytes_sent == len(CONTENT)
    assert "retry" in {progress.phase for progress in seen}


def test_a_date_proves_the_file_too(web: FileServer, entry: Entry) -> None:
    web.etag, web.last_modified = 'W/"weak"', "Sat, 28 Nov 2026 10:00:00 GMT"
    web.cuts = [HALF]
    fetch(entry)
    assert_whole(entry)
    assert web.asked[1].headers["If-Range"] == web.last_modified


def test_a_server_that_knows_no_ranges_is_asked_for_everything(web: FileServer, entry: Entry) -> None:
    web.ranges = False
    web.cuts = [HALF]
    fetch(entry)
    assert_whole(entry)
    assert web.bytes_sent == HALF + len(CONTENT)


def test_without_proof_of_the_same_file_it_starts_anew(web: FileServer, entry: Entry) -> None:
    web.etag = None
    web.cuts = [HALF]
    fetch(entry)
    assert_whole(entry)
    assert [asked.range for asked in web.asked] == [None, None]


def test_a_known_checksum_is_proof_enough(web: FileServer, entry: Entry) -> None:
    web.etag = None
    web.cuts = [HALF]
    fetch(replace(entry, sha256=hashlib.sha256(CONTENT).hexdigest()))
    assert_whole(entry)
    assert web.bytes_sent == len(CONTENT)


async def _broken_off(web: FileServer, entry: Entry) -> None:
    """Leaves a download when half has come, as a cancel does."""
    web.gate.clear()
    web.gate_after = HALF

    async def ignore(progress: Progress) -> None:
        """Nobody looks."""

    task = asyncio.create_task(download.fetch(entry, ignore))
    assert await asyncio.to_thread(web.stalled.wait, LIMIT_S)
    await _until_on_disk(entry)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(web.hung_up.wait, LIMIT_S)
    web.gate.set()


async def _until_on_disk(entry: Entry) -> None:
    file = part(entry) / entry.target.name
    end_s = time.monotonic() + LIMIT_S
    while not file.exists() or file.stat().st_size < HALF:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


def test_a_cancelled_download_goes_on_where_it_was(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    assert (part(entry) / "tiny.gguf").read_bytes() == CONTENT[:HALF]
    seen: list[Progress] = []
    fetch(entry, seen)
    assert_whole(entry)
    assert web.bytes_sent == len(CONTENT)
    assert min(progress.done for progress in seen if progress.phase == "download") >= HALF


def test_a_file_that_has_changed_meanwhile_is_fetched_anew(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    web.content, web.etag = OTHER, '"two"'
    fetch(entry)
    assert_whole(entry, OTHER)


def test_a_file_that_has_become_shorter_is_fetched_anew(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    web.content = gguf()  # under the same ETag: only the range tells
    fetch(entry)
    assert_whole(entry, gguf())


def test_a_server_that_ignores_if_range_is_found_out(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    facts = part(entry) / "facts.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "validator": '"zero"'}))
    web._start = lambda headers: HALF if headers.get("Range") else None  # type: ignore[method-assign]
    fetch(entry)
    assert_whole(entry)
    assert [asked.range for asked in web.asked] == [None, f"bytes={HALF}-", None]


def test_another_address_never_goes_on_with_the_part(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    fetch(replace(entry, source=Source("https", url=web.url + "?other")))
    assert web.asked[1].range is None


def test_pieces_that_do_not_fit_are_thrown_away_and_fetched_once_more(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    with (part(entry) / "tiny.gguf").open("r+b") as file:
        file.seek(1000)
        file.write(bytes(50))
    fetch(replace(entry, sha256=hashlib.sha256(CONTENT).hexdigest()))
    assert_whole(entry)
    assert [asked.range for asked in web.asked] == [None, f"bytes={HALF}-", None]


def test_a_part_that_is_whole_costs_one_byte(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    (part(entry) / "tiny.gguf").write_bytes(CONTENT)
    fetch(entry)
    assert_whole(entry)
    assert web.bytes_sent == HALF + 1


def test_a_killed_child_is_told_and_the_next_one_goes_on(web: FileServer, entry: Entry) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        processes.append(children.spawn(python, arguments))
        return processes[-1]

    async def ignore(progress: Progress) -> None:
        """Nobody looks."""

    async def killed() -> None:
        web.gate.clear()
        web.gate_after = HALF
        task = asyncio.create_task(download.fetch(entry, ignore, spawn))
        await _until_on_disk(entry)
        processes[0].kill()
        with pytest.raises(WorkerCrashed, match="signal 9"):
            await asyncio.wait_for(task, LIMIT_S)

    asyncio.run(killed())
    web.gate.set()
    fetch(entry)
    assert_whole(entry)
    assert web.bytes_sent == len(CONTENT)


@pytest.mark.skipif(os.name != "posix", reason="kills with signal 9")
def test_a_killed_server_takes_the_child_along_and_the_next_goes_on(web: FileServer, entry: Entry) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from backend.models import download; "
        "from backend.models import Entry, Source\n"
        "async def quiet(progress): pass\n"
        "entry = Entry('tiny', 'Tiny', 'text', (), Path(sys.argv[1]), source=Source('https', url=sys.argv[2]))\n"
        "asyncio.run(download.fetch(entry, quiet))\n"
    )
    web.gate.clear()
    web.gate_after = HALF
    with subprocess.Popen([sys.executable, "-c", program, str(entry.target), web.url], cwd=ROOT) as server:
        asyncio.run(_until_on_disk(entry))
        server.send_signal(signal.SIGKILL)
    assert web.hung_up.wait(LIMIT_S), "the child outlived its parent"
    web.gate.set()
    fetch(entry)
    assert_whole(entry)
    assert web.bytes_sent == len(CONTENT)


def test_a_server_that_stalls_is_asked_again(web: FileServer, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "STALL_S", 0.5)
    web.gate.clear()
    web.gate_after = HALF

    async def note(progress: Progress) -> None:
        if progress.phase == "retry":
            web.gate.set()

    asyncio.run(asyncio.wait_for(download.fetch(entry, note), LIMIT_S))
    assert_whole(entry)
    assert web.asked[1].range == f"bytes={HALF}-"


def test_trouble_of_the_server_passes(web: FileServer, entry: Entry) -> None:
    web.statuses = [(503, {}), (429, {"Retry-After": "0"}), (500, {})]
    fetch(entry)
    assert_whole(entry)
    assert len(web.asked) == 4


def test_trouble_that_stays_is_told(web: FileServer, entry: Entry) -> None:
    web.statuses = [(500, {})] * 9
    said = refusal(entry, ModelNotDownloaded)
    assert "an internal error (HTTP status 500)" in said
    assert len(web.asked) == 4
    assert not part(entry).exists()


def test_a_server_that_asks_for_a_long_pause_is_not_waited_for(web: FileServer, entry: Entry) -> None:
    web.statuses = [(429, {"Retry-After": "3600"})]
    assert "limiting requests" in refusal(entry, ModelNotDownloaded)
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "without signing in"),
        (403, "without signing in"),
        (404, "no such file tiny.gguf"),
        (410, "no such file"),
        (418, "418"),
    ],
)
def test_refusals_of_the_server_are_told_at_once(web: FileServer, entry: Entry, status: int, expected: str) -> None:
    web.statuses = [(status, {})]
    assert expected in refusal(entry, ModelNotDownloaded)
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"<!DOCTYPE html><title>Sign in</title>" + bytes(9999), "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer"),
        (b"PK\x03\x04" + bytes(9999), "zip or pickle"),
        (b"", "is empty"),
        (CONTENT[:-500], "truncated"),
    ],
)
def test_what_is_no_model_gets_no_name(web: FileServer, entry: Entry, content: bytes, expected: str) -> None:
    web.content = content
    said = refusal(entry, ModelBroken)
    assert expected in said
    assert len(web.asked) == 1
    assert not part(entry).exists()


def test_a_sign_in_page_in_between_does_not_cost_the_part(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    kept, web.content, web.etag = web.content, b"<html>Welcome to the hotel</html>" * 20, None
    assert "a web page" in refusal(entry, ModelBroken)
    web.content, web.etag = kept, '"one"'
    fetch(entry)
    assert_whole(entry)
    assert web.asked[-1].range == f"bytes={HALF}-"


def test_an_answer_without_length_is_checked_by_what_it_holds(web: FileServer, entry: Entry) -> None:
    web.length = False
    web.content = CONTENT[:-500]
    assert "truncated" in refusal(entry, ModelBroken)
    web.content = CONTENT
    fetch(entry)
    assert_whole(entry)


def test_a_wrong_checksum_is_thrown_away(web: FileServer, entry: Entry) -> None:
    said = refusal(replace(entry, sha256="0" * 64), ModelBroken)
    assert hashlib.sha256(CONTENT).hexdigest() in said and "0" * 64 in said
    assert not part(entry).exists()


def test_a_wrong_size_is_refused_before_anything_comes(web: FileServer, entry: Entry) -> None:
    assert f"instead of {HALF}" in refusal(replace(entry, size_bytes=HALF), ModelBroken)
    assert not part(entry).exists()


def test_a_file_larger_than_the_disk_is_refused_before_anything_comes(web: FileServer, entry: Entry) -> None:
    web.announced = 10**16
    said = refusal(entry, DiskFull)
    assert "MB are free" in said and "TOUCHSTONE_DATA_DIR" in said
    assert not part(entry).exists()


def test_nobody_there_is_told(web: FileServer, entry: Entry) -> None:
    said = refusal(replace(entry, source=Source("https", url="http://127.0.0.1:9/tiny.gguf")), ModelNotDownloaded)
    assert "cannot be reached" in said and "Check the network" in said


def test_a_name_that_cannot_be_resolved_is_told(entry: Entry) -> None:
    said = refusal(replace(entry, source=Source("https", url="https://models.invalid/tiny.gguf")), ModelNotDownloaded)
    assert "no network" in said and "HTTPS_PROXY" in said


def test_parts_that_nobody_wants_go_after_a_month(web: FileServer, entry: Entry) -> None:
    asyncio.run(_broken_off(web, entry))
    workspace = part(entry).parent
    sweep(workspace, time.time() + PART_KEPT_S - 60)
    assert part(entry).exists()
    sweep(workspace, time.time() + PART_KEPT_S + 60)
    assert not part(entry).exists()


def certificate(folder: Path, names: str) -> tuple[ssl.SSLContext, Path]:
    """A certificate that nobody knows."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    key, file = folder / "key.pem", folder / "certificate.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName={names}"
    subprocess.run([*make.split(), "-keyout", str(key), "-out", str(file)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return context, file


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[tuple[FileServer, Path]]:
    """A server whose certificate nobody knows, and that certificate."""
    context, file = certificate(tmp_path, "IP:127.0.0.1,DNS:models.example")
    with FileServer(CONTENT, context) as served:
        yield served, file


def test_a_certificate_that_is_not_trusted(signed: tuple[FileServer, Path], entry: Entry) -> None:
    said = refusal(replace(entry, source=Source("https", url=signed[0].url)), ModelNotDownloaded)
    assert "certificate not trusted" in said and "SSL_CERT_FILE" in said
    assert "verify" not in said
    assert not signed[0].asked


def test_a_certificate_that_the_user_named(
    signed: tuple[FileServer, Path], entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(signed[1]))
    fetch(replace(entry, source=Source("https", url=signed[0].url)))
    assert_whole(entry)


def test_https_is_never_left(
    signed: tuple[FileServer, Path], web: FileServer, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(signed[1]))
    signed[0].redirects = {"/models/tiny.gguf": web.url}
    said = refusal(replace(entry, source=Source("https", url=signed[0].url)), ModelNotDownloaded)
    assert "not https" in said
    assert not web.asked


class Proxy:
    """An HTTP proxy that knows one name: it leads every CONNECT to the given port here, and notes who was asked for."""

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                proxy.asked.append(self.rfile.readline().split()[1].decode())
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                with socket.create_connection(("127.0.0.1", port)) as there:
                    ends = {self.connection: there, there: self.connection}
                    while ready := select.select(list(ends), [], [], LIMIT_S)[0]:
                        for end in ready:
                            piece = end.recv(65_536)
                            if not piece:
                                return
                            ends[end].sendall(piece)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> Proxy:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def proxy(signed: tuple[FileServer, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Makes `models.example` reachable, which has no address here."""
    with Proxy(signed[0].server.server_port) as between:
        monkeypatch.setenv("HTTPS_PROXY", between.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(signed[1]))
        yield between


PUBLIC = Source("https", url="https://models.example/models/tiny.gguf")


def test_a_proxy_is_used(proxy: Proxy, entry: Entry) -> None:
    fetch(replace(entry, source=PUBLIC))
    assert_whole(entry)
    assert proxy.asked == ["models.example:443"]


def test_this_very_machine_is_reached_without_the_proxy(
    proxy: Proxy, signed: tuple[FileServer, Path], entry: Entry
) -> None:
    fetch(replace(entry, source=Source("https", url=signed[0].url)))
    assert proxy.asked == []


@pytest.mark.parametrize("inside", ["https://127.0.0.1:{port}/inside.gguf", "https://10.0.0.1/inside.gguf"])
def test_a_public_source_never_leads_inwards(
    proxy: Proxy, signed: tuple[FileServer, Path], entry: Entry, inside: str
) -> None:
    signed[0].redirects = {"/models/tiny.gguf": inside.replace("{port}", str(signed[0].server.server_port))}
    said = refusal(replace(entry, source=PUBLIC), ModelNotDownloaded)
    assert "not followed" in said
    assert [asked.path for asked in signed[0].asked] == ["/models/tiny.gguf"]
    assert proxy.asked == ["models.example:443"]


def test_an_endless_circle_is_told(web: FileServer, entry: Entry) -> None:
    web.redirects = {"/models/tiny.gguf": web.url}
    assert "HTTP status 302" in refusal(entry, ModelNotDownloaded)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/x.gguf", "file:///etc/passwd", "data:text/plain,x"])
def test_only_web_addresses_are_followed(web: FileServer, entry: Entry, address: str) -> None:
    web.redirects = {"/models/tiny.gguf": address}
    assert "not followed" in refusal(entry, ModelNotDownloaded)


def test_every_field_of_the_order_is_understood(entry: Entry, web: FileServer) -> None:
    said: dict[str, Any] = json.loads(download.order(entry, {}))
    files = [{"url": web.url, "name": "tiny.gguf", "to": str(entry.target)}]
    assert said == {"files": files, "stall_s": download.STALL_S}


def test_all_parts_of_a_model_come(web: FileServer, entry: Entry) -> None:
    first = Source("https", url=f"{web.origin}/models/tiny-00001-of-00003.gguf")
    split = replace(entry, target=entry.target.with_name("tiny-00001-of-00003.gguf"), source=first)
    fetch(split)
    assert [asked.path for asked in web.asked] == [f"/models/tiny-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [path.name for path in parts(split.target)] == [f"tiny-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert all(path.read_bytes() == CONTENT for path in parts(split.target))
