"""Jobs, children and files when a process is killed, stopped, started twice or disconnected."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.common.errors import Configuration
from backend.common.types import TERMINAL, Event
from backend.server.process import bind
from tests.refusals import refused
from tests.service import ROOT, Server, follow, furnished, read_events, start_server, stream_events, text_of, wait_for

SHORT = {"prompt": "Say hello.", "options": {"max_tokens": 4, "temperature": 0}}
LONG = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000, "temperature": 0}}
ENGINES = ("onnxruntime", "xllamacpp", "libllama", "ggml", "torch", "openvino")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary folder for servers; pytest's own lies too deep for the sockets that are made in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def begin(server: Server, body: dict[str, Any]) -> str:
    """Starts a job and returns its id."""
    answer = server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def writing(server: Server) -> str:
    """A job that writes for minutes; it has written something."""
    job_id = begin(server, LONG)
    wait_for(lambda: len(server.job(job_id)["output"]["text"] or "") > 20)
    return job_id


def children(pid: int) -> dict[int, str]:
    """The children of a process and theirs, each with the moment of its start, which tells pids apart."""
    found: dict[int, str] = {}
    parents = {pid}
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) in parents:
                found[int(stat.parent.name)] = fields[19]
                parents.add(int(stat.parent.name))
    return found


def alive(processes: dict[int, str]) -> list[int]:
    """Which of these run still."""
    left = []
    for pid, start in processes.items():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[19] == start and fields[0] != "Z":
                left.append(pid)
    return left


# The worker dies


def test_a_worker_killed_in_mid_stream_ends_its_job_in_words_and_nothing_else(launch: Callable[..., Server]) -> None:
    server = launch()
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    healths: list[int] = []
    stop = threading.Event()

    def look() -> None:
        with httpx.Client(base_url=server.url, timeout=5, trust_env=False) as http:
            while not stop.is_set():
                healths.append(http.get("/api/health").status_code)

    watcher = threading.Thread(target=look)
    watcher.start()
    events: list[Event] = []
    try:
        waiting = ""
        for event in stream_events(server, LONG):
            events.append(event)
            if event.event == "token" and not waiting:
                waiting = begin(server, SHORT)
                os.kill(pid, signal.SIGKILL)
        next_job = server.until(waiting, *TERMINAL)
    finally:
        stop.set()
        watcher.join()
    last = events[-1]
    assert last.event == "error"
    assert "done" not in {event.event for event in events}
    assert (last.data["code"], last.data["status"]) == ("worker_crashed", 502)
    assert "SIGKILL" in last.data["detail"] and last.data["remedy"].endswith(".")
    job = server.job(last.data["job_id"])
    assert (job["status"], job["error"]["code"]) == ("error", "worker_crashed")
    assert job["output"]["finish_reason"] != "stop"
    assert job["output"]["text"] == text_of(events) != ""
    assert job["receipt"]["worker_pid"] == pid
    assert job["receipt"]["attempts"][0]["error"] == "worker_crashed"
    assert job["receipt"]["fell_back"] is False, "a crash is never a reason to run elsewhere"
    assert set(healths) == {200} and len(healths) > 3
    assert next_job["status"] == "done" and next_job["receipt"]["worker_pid"] != pid
    assert server.generate(**SHORT)["status"] == "done"
    assert follow(server, job["id"]) == events


def test_a_waiting_post_whose_worker_dies_is_a_502_with_the_job(launch: Callable[..., Server]) -> None:
    server = launch()
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, f"{server.url}/api/generate", json=LONG, timeout=60)
        running = wait_for(lambda: server.http.get("/api/jobs?status=running").json()["jobs"])
        wait_for(lambda: server.job(running[0]["id"])["output"]["text"])
        os.kill(pid, signal.SIGKILL)
        problem = refused(waiting.result(), 502, "worker_crashed")
    assert problem["job"]["status"] == "error"
    assert waiting.result().headers["x-job-id"] == problem["job"]["id"]


def test_a_worker_killed_between_jobs_is_replaced_without_a_word(launch: Callable[..., Server]) -> None:
    server = launch()
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    receipt = server.generate(**SHORT)["receipt"]
    assert receipt is not None and receipt["worker_pid"] != pid
    assert [attempt["error"] for attempt in receipt["attempts"]] == [None]


def test_a_worker_that_stops_counts_as_hung_and_is_replaced(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_SUPERVISION__SILENCE_S": "2"})
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    job_id = writing(server)
    os.kill(pid, signal.SIGSTOP)
    job = server.until(job_id, *TERMINAL)
    assert (job["status"], job["error"]["code"], job["error"]["status"]) == ("error", "worker_hung", 504)
    assert "2 s" in job["error"]["detail"]
    assert not Path(f"/proc/{pid}").exists()
    assert server.generate(**SHORT)["status"] == "done"


# The server dies


def test_a_killed_server_loses_nothing_that_was_finished_and_goes_on_with_what_waited(
    launch: Callable[..., Server],
) -> None:
    server = launch()
    finished = server.generate(**SHORT)
    finished_events = follow(server, finished["id"])
    running = writing(server)
    waiting = [begin(server, {**SHORT, "prompt": f"Number {number}."}) for number in range(3)]
    with server.http.stream("GET", f"/api/jobs/{running}/events") as answer:
        events = read_events(answer.iter_lines())
        seen = [next(events) for _ in range(20)]
        family = children(server.process.pid)
        assert family
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_for(lambda: not alive(family), 5)

    again = launch()
    assert again.job(finished["id"]) == finished
    assert follow(again, finished["id"]) == finished_events
    job = again.job(running)
    assert (job["status"], job["error"]["code"], job["error"]["status"]) == ("interrupted", "interrupted", 503)
    assert job["ended_at"]
    after = follow(again, running)
    assert job["output"]["text"] == text_of(after)
    # What was shown in the last moment before the death may be missing; what is there is what was shown.
    known = {event.id: event for event in seen}
    kept = [event for event in after if event.id in known]
    assert kept == seen[: len(kept)]
    assert len(job["output"]["text"]) > 5
    assert after[-1].event == "interrupted" and after[-1].id > seen[-1].id
    assert [event.id for event in after] == sorted({event.id for event in after})
    for number, job_id in enumerate(waiting):
        done = again.until(job_id, *TERMINAL)
        assert (done["status"], done["request"]["prompt"]) == ("done", f"Number {number}.")
        history = follow(again, job_id)
        assert [event.id for event in history] == sorted({event.id for event in history})
        assert history[-1].event == "done"
    order = [again.job(job_id)["started_at"] for job_id in waiting]
    assert order == sorted(order)
    answer = again.http.get(f"/api/jobs/{running}/events", headers={"Last-Event-ID": str(after[-1].id)})
    assert answer.status_code == 204
    rerun = again.http.post(f"/api/jobs/{running}/rerun").json()["id"]
    again.until(rerun, "running")
    assert again.stop() == 0
    with contextlib.closing(sqlite3.connect(again.data_dir / "jobs.sqlite3")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_server_killed_at_any_moment_starts_again(launch: Callable[..., Server]) -> None:
    """Right after the first line, with a job just accepted, in the middle of loading: no file is left half done."""
    moments: list[Callable[[Server], object]] = [
        lambda server: None,
        lambda server: begin(server, SHORT),
        lambda server: server.until(begin(server, SHORT), "loading", *TERMINAL),
    ]
    for moment in moments:
        server = launch()
        moment(server)
        server.stop(signal.SIGKILL)
    last = launch()
    wait_for(lambda: last.http.get("/api/health").json()["jobs"] == {"queued": 0, "running": 0})
    statuses = {job["status"] for job in last.http.get("/api/jobs").json()["jobs"]}
    assert statuses <= {"done", "interrupted"}
    assert last.generate(**SHORT)["status"] == "done"


# The server is asked to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stop_ends_everything_within_five_seconds_whatever_is_open(
    launch: Callable[..., Server], number: signal.Signals
) -> None:
    server = launch()
    running = writing(server)
    queued = begin(server, SHORT)
    streamed: list[Event] = []
    with ThreadPoolExecutor(4) as pool:

        def stream() -> None:
            with httpx.stream("GET", f"{server.url}/api/jobs/{running}/events", timeout=30) as answer:
                streamed.extend(read_events(answer.iter_lines()))

        pool.submit(stream)
        waiting = pool.submit(httpx.post, f"{server.url}/api/generate", json={**SHORT, "prompt": "Waits."}, timeout=30)
        idle: list[str] = []
        idle_begun = threading.Event()

        def follow_queued() -> None:
            with httpx.stream("GET", f"{server.url}/api/jobs/{queued}/events", timeout=30) as answer:
                for line in answer.iter_lines():
                    idle.append(line)
                    idle_begun.set()

        following = pool.submit(follow_queued)
        assert idle_begun.wait(30)
        wait_for(lambda: server.http.get("/api/health").json()["jobs"]["queued"] == 2)
        wait_for(lambda: streamed)
        family = children(server.process.pid)
        assert family, "the worker at least"
        start = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - start < 5
        assert alive(family) == []
        problem = refused(waiting.result(), 503, "interrupted")
        following.result()
        assert "event: queued" in idle, "its stream ends whole, without an ending of the job"
    assert streamed[-1].event == "interrupted"
    assert problem["job"]["status"] == "queued"
    assert not (server.data_dir / "server.json").exists()

    again = launch()
    job = again.job(running)
    assert (job["status"], job["error"]["code"]) == ("interrupted", "interrupted")
    assert job["output"]["text"] == text_of(streamed) == text_of(follow(again, running))
    assert job["receipt"]["used"] == "cpu"
    for job_id in (queued, problem["job"]["id"]):
        assert again.until(job_id, *TERMINAL)["status"] == "done"


def test_a_stop_in_the_middle_of_the_first_proofs_is_prompt_and_leaves_no_child(launch: Callable[..., Server]) -> None:
    server = launch()
    family = wait_for(lambda: children(server.process.pid))
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 5
    assert alive(family) == []


def test_a_stop_while_a_model_loads_is_prompt_and_leaves_no_child(launch: Callable[..., Server]) -> None:
    server = launch()
    server.http.get("/api/devices", params={"wait_s": 60})
    job_id = begin(server, SHORT)
    server.until(job_id, "loading", *TERMINAL)
    family = children(server.process.pid)
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 5
    assert alive(family) == []


def test_an_impatient_second_signal_changes_nothing(launch: Callable[..., Server]) -> None:
    server = launch()
    writing(server)
    family = children(server.process.pid)
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGINT)
    assert server.stop() == 0
    assert alive(family) == []


# Two servers, taken ports


def serve(data_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to be refused."""
    words = [sys.executable, "-m", "backend", "serve", "--data-dir", str(data_dir), *flags]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)


def test_a_second_server_on_the_same_data_says_who_holds_it(server: Server) -> None:
    second = serve(server.data_dir, "--port", "0")
    assert second.returncode == 2
    assert second.stdout == ""
    assert f"process {server.process.pid}" in second.stderr and server.url in second.stderr
    assert "Traceback" not in second.stderr
    assert server.generate(**SHORT)["status"] == "done"


def test_a_port_that_touchstone_has_is_refused_with_its_address(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(Configuration, match=f"already runs on port {port}: {server.url}") as refused:
        bind("127.0.0.1", port)
    assert "stop" in refused.value.remedy and "data folder" in refused.value.remedy


def test_a_taken_port_is_refused_with_the_next_free_one(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refusal = serve(tmp_path / "data", "--port", str(port))
    assert refusal.returncode == 2
    assert refusal.stdout == ""
    assert f"Port {port} is taken" in refusal.stderr
    free = int(refusal.stderr.partition("--port ")[2].split(",")[0])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free))
    assert not (tmp_path / "data" / "lock").exists(), "the data folder was not touched"


@pytest.mark.parametrize("host", ["☃" * 70, "a" * 300, "..", "localhost:80"])
def test_a_host_that_is_none_is_refused_in_words(host: str) -> None:
    with pytest.raises(Configuration, match="not an address of this machine"):
        bind(host, 0)


def test_a_data_folder_that_cannot_be_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refusal = serve(tmp_path / "file", "--port", "0")
    assert refusal.returncode == 2
    assert str(tmp_path / "file") in refusal.stderr and "Traceback" not in refusal.stderr


def test_a_history_that_is_no_database_is_set_aside_and_said(launch: Callable[..., Server], data_dir: Path) -> None:
    history = data_dir / "jobs.sqlite3"
    history.write_bytes(b"not a database, but somebody's file " * 100)
    server = launch()
    assert server.generate(prompt="Hi", options={"max_tokens": 2})["status"] == "done"
    health = server.http.get("/api/health").json()
    (problem,) = health["problems"]
    assert (health["status"], problem["subject"], problem["code"]) == ("ok", "storage", "history_damaged")
    (folder,) = data_dir.glob("damaged-*")
    assert str(folder) in problem["detail"] and str(folder) in server.log.read_text()
    assert (folder / history.name).read_bytes().startswith(b"not a database")


# What a stranger can reach


def sockets_of(pid: int) -> set[str]:
    """The inodes of the sockets that a process holds."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def test_a_worker_listens_on_nothing_that_a_stranger_can_use(server: Server) -> None:
    """llama.cpp's own server has an HTTP side that answers any origin; none of it may be reachable."""
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    for process in [pid, *children(pid)]:
        inodes = sockets_of(process)
        for name in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
                assert line.split()[9] not in inodes, f"{name}: {line}"
        for line in Path(f"/proc/{process}/net/unix").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[6] not in inodes or len(fields) < 8:
                continue
            path = fields[7]
            assert not path.startswith("@"), "an abstract name could be connected to by anybody"
            with socket.socket(socket.AF_UNIX) as stranger, pytest.raises(FileNotFoundError):
                stranger.connect(path)


def test_while_it_loads_no_child_listens_anywhere(launch: Callable[..., Server]) -> None:
    server = launch()
    server.http.get("/api/devices", params={"wait_s": 60})
    job_id = begin(server, SHORT)
    while server.job(job_id)["status"] not in TERMINAL:
        for pid in children(server.process.pid):
            with contextlib.suppress(OSError):
                inodes = sockets_of(pid)  # until a child becomes its program, it holds the server's too
                inodes -= sockets_of(server.process.pid)
                for name in ("tcp", "tcp6"):
                    lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
                    assert not [line for line in lines if line.split()[9] in inodes]
                named = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
                assert not [fields for fields in named if fields[6] in inodes and len(fields) > 7]
    assert server.job(job_id)["status"] == "done"


def test_the_server_process_holds_no_engine(server: Server) -> None:
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert not [engine for engine in ENGINES if engine in mapped]
    assert "xllamacpp" in Path(f"/proc/{pid}/maps").read_text(), "the worker does"


def test_workers_run_below_the_servers_priority(server: Server) -> None:
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, server.process.pid) + 5


@pytest.mark.skipif(sys.platform != "linux", reason="what is looked at is Linux's")
def test_a_worker_gains_no_rights_and_what_renders_templates_can_open_nothing(server: Server) -> None:
    pid = server.generate(messages=[{"role": "user", "content": "Hello"}], options={"max_tokens": 1})["receipt"][
        "worker_pid"
    ]
    renderers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not renderers:  # the thread that started it is another one
        tasks = Path(f"/proc/{pid}/task").iterdir()
        renderers = [child for task in tasks for child in (task / "children").read_text().split()]
    assert renderers
    for each in (pid, *renderers):
        assert "NoNewPrivs:\t1" in Path(f"/proc/{each}/status").read_text()
        assert re.search(r"Max core file size +0 +0 ", Path(f"/proc/{each}/limits").read_text())
    for each in renderers:
        limits = Path(f"/proc/{each}/limits").read_text()
        for name, most in (("open files", 3), ("file size", 0), ("processes", 0)):
            assert re.search(rf"Max {name} +{most} +{most} ", limits), limits


def test_nothing_is_left_in_the_temporary_folder(launch: Callable[..., Server], scratch: Path) -> None:
    server = launch(environ={"TMPDIR": str(scratch)})
    assert server.generate(**SHORT)["status"] == "done"
    assert server.stop() == 0
    # ONNX Runtime with its telemetry on leaves a session id here.
    assert list(scratch.iterdir()) == []


# Starting


def test_a_temporary_folder_too_deep_for_a_socket_is_no_trouble(launch: Callable[..., Server], tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    assert launch(environ={"TMPDIR": str(deep)}).generate(**SHORT)["status"] == "done"


def test_the_first_line_of_stdout_tells_the_address_and_the_last_nothing_more(data_dir: Path) -> None:
    words = [sys.executable, "-m", "backend", "serve", "--port", "0", "--data-dir", str(data_dir)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout
    line = process.stdout.readline().split()
    url = line[-1]
    assert line[0] == "Touchstone" and line[2:4] == ["listening", "on"] and url.startswith("http://127.0.0.1:")
    assert httpx.get(f"{url}/api/health").json()["version"] == line[1]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 0


def test_the_json_log_has_one_object_a_line(launch: Callable[..., Server]) -> None:
    server = launch("--json-log")
    server.generate(**{**SHORT, "device": "cuda:0"})
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"at", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))
    fallback = next(line for line in lines if line["message"] == "fallback")
    assert (fallback["from"], fallback["to"], fallback["code"]) == ("cuda:0", "cpu", "device_not_ready")


def test_a_quiet_start_says_nothing_frightening(launch: Callable[..., Server]) -> None:
    server = launch()
    server.http.get("/api/devices", params={"wait_s": 60})
    assert server.stop() == 0
    for word in ("error", "warning", "traceback", "fail"):
        assert word not in server.log.read_text().lower()


def test_a_start_without_any_network_works(data_dir: Path) -> None:
    """In a network namespace of its own, where nothing but the loopback device is."""
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody cut a process off the network")
    script = """
import fcntl, socket, struct, subprocess, sys
with socket.socket() as any_socket:  # ip link set lo up
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
import httpx
words = [sys.executable, "-m", "backend", "serve", "--port", "0", "--data-dir", sys.argv[1]]
server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
url = server.stdout.readline().split()[-1]
job = httpx.post(url + "/api/generate", json={"prompt": "Hi.", "options": {"max_tokens": 2}}, timeout=60).json()
server.terminate()
print(job["status"], server.wait(20))
"""
    words = [*alone, sys.executable, "-c", script, str(data_dir)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert ended.stdout.split() == ["done", "0"], ended.stderr


def test_a_connection_that_says_nothing_does_not_delay_the_stop(launch: Callable[..., Server]) -> None:
    server = launch()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    silent = socket.create_connection((host, int(port)))
    half = http.client.HTTPConnection(host, int(port))
    half.putrequest("POST", "/api/generate")
    half.putheader("Content-Length", "100")
    half.endheaders(b"{")
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 5
    silent.close()
    half.close()


def test_a_folder_with_a_strange_name_serves(tmp_path: Path, model_file: Path) -> None:
    folder = furnished(tmp_path / "Ünïcode ordner 日本 🎵" / "data", model_file)
    server = start_server(folder)
    try:
        assert server.generate(**SHORT)["status"] == "done"
    finally:
        assert server.stop() == 0


def test_a_server_killed_while_a_model_loads_leaves_nothing_that_the_next_one_does_not_remove(
    launch: Callable[..., Server], scratch: Path
) -> None:
    server = launch(environ={"TMPDIR": str(scratch)})
    server.http.get("/api/devices", params={"wait_s": 60})
    begin(server, SHORT)
    wait_for(lambda: list(scratch.iterdir()))
    server.stop(signal.SIGKILL)
    assert list(scratch.iterdir()), "killed in the middle of loading"
    again = launch(environ={"TMPDIR": str(scratch)})
    assert again.generate(**SHORT)["status"] == "done"
    assert again.stop() == 0
    assert list(scratch.iterdir()) == []
