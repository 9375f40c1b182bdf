"""A first use: a new folder, one command, a response, a stop, and a second start offline."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.folder import Folder, Running, alive, command_line

ROOT = Path(__file__).resolve().parents[2]
FIRST_LIMIT_S = 600.0
SECOND_LIMIT_S = 30.0  # the goal is 3; what was measured is printed
# Inside a new network namespace only loopback is left, and it is down: brings it up, then becomes the command.
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execv(sys.argv[1], sys.argv[1:])
"""


def copy_of_repository(target: Path) -> None:
    """A clone, or where files are changed or new, a copy of what git would take."""
    git = ["git", "-C", str(ROOT)]
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    if not status:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
        return
    listed = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    root = tmp_path_factory.mktemp("stranger") / "a new földer"
    copy_of_repository(root)
    new = Folder(root)
    yield new
    new.end_all()
    shutil.rmtree(root)  # about 500 MB


def without_network() -> list[str]:
    """The command that takes the network away from another, or nothing where the system does not allow that."""
    for enter in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        if shutil.which("unshare") and subprocess.run([*enter, "true"], capture_output=True).returncode == 0:
            return [*enter, sys.executable, "-c", LOOPBACK_UP]
    return []


def ready_address(running: Running, limit_s: float) -> str:
    return running.expect("Touchstone is ready: ", limit_s).split()[-1]


def processes_of(root: Path) -> list[str]:
    numbers = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [line for number in numbers if alive(number) and str(root) in (line := command_line(number))]


@pytest.mark.newcomer
def test_first_start_serves_answers_and_ends(folder: Folder) -> None:
    began = time.monotonic()
    running = folder.start("--no-browser", "--port", "0")
    address = ready_address(running, FIRST_LIMIT_S)
    print(f"\nfirst start: ready after {time.monotonic() - began:.1f} s, with .venv and the default model fetched")
    with urllib.request.urlopen(f"{address}/api/health", timeout=10) as health:
        assert health.status == 200
    body = json.dumps({"prompt": "Say hello.", "options": {"max_tokens": 8}}).encode()
    request = urllib.request.Request(f"{address}/api/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        job = json.load(answer)
    assert job["status"] == "done" and job["output"]["text"].strip()
    assert job["receipt"]["used"] == "cpu"
    assert running.end(signal.SIGTERM) == 0
    assert processes_of(folder.root) == []


@pytest.mark.newcomer
def test_second_start_without_network(folder: Folder) -> None:
    offline = without_network()
    dead = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = [*offline, str(folder.root / "launch_wsl.sh"), "--no-browser", "--port", "0"]
    began = time.monotonic()
    running = folder.start(command=command, env={} if offline else dead)
    ready_address(running, SECOND_LIMIT_S)
    how = "in a network namespace of its own" if offline else "with dead addresses (no namespaces here)"
    print(f"\nsecond start: healthy after {time.monotonic() - began:.2f} s without network, {how}")
    assert running.end(signal.SIGTERM) == 0
    assert not any("Installing" in line for line in running.lines)
    assert processes_of(folder.root) == []


@pytest.mark.newcomer
def test_a_verb_by_the_launcher(folder: Folder) -> None:
    done = folder.run("devices")
    assert done.returncode == 0, done.stderr
    assert "Available devices (" in done.stdout and "cpu" in done.stdout
