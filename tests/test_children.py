"""Child processes: frames, flow control, the relevant line of stderr, and an environment without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.child.handle import OUTSTANDING_FRAMES, ChildProcess, environment


def python(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def ending(code: str) -> str:
    async def play() -> str:
        child = ChildProcess(python(code), asyncio.get_running_loop())
        await child.ended()
        return child.exit_summary()

    return asyncio.run(play())


def test_an_exit_code_is_told_with_the_last_error() -> None:
    told = ending(
        "import sys; print('ImportError: libcuda.so.1', file=sys.stderr); print('bye', file=sys.stderr); exit(3)"
    )
    assert "exited with code 3" in told and "libcuda.so.1" in told


def test_a_signal_is_told_by_name() -> None:
    assert "SIGABRT" in ending("import os; os.abort()")


def test_colours_and_controls_of_a_library_are_not_passed_on() -> None:
    told = ending(r"import sys; sys.stderr.write('\x1b[31mfatal\x1b[0m \x07error\n'); exit(1)")
    assert "fatal error" in told and "\x1b" not in told


def test_a_child_that_floods_stderr_does_not_hold_up_its_end() -> None:
    assert "code 0" in ending("import sys\nfor _ in range(200_000): sys.stderr.write('noise ' * 10 + '\\n')")


def test_what_is_not_a_frame_is_nonsense() -> None:
    assert "invalid frame" in ending("print('Hello, I am a banner of some library' * 100)")


def test_a_flood_waits_for_the_reader() -> None:
    code = """
import json, struct, sys
frame = b'{"op":"x"}'
for _ in range(50_000):
    sys.stdout.buffer.write(struct.pack("!II", len(frame), 0) + frame)
"""

    async def play() -> int:
        child = ChildProcess(python(code), asyncio.get_running_loop())
        seen = 0
        while await child.receive():
            seen += 1
            assert child._frames.qsize() <= OUTSTANDING_FRAMES + 1
        return seen

    assert asyncio.run(play()) == 50_000


def test_frames_arrive_in_their_order_whether_the_pipe_has_room_or_not() -> None:
    code = """
import json, struct, sys, time
time.sleep(0.2)  # meanwhile the pipe is full
def take():
    size, body = struct.unpack("!II", sys.stdin.buffer.read(8))
    return json.loads(sys.stdin.buffer.read(size))
for _ in range(300):
    answer = json.dumps({"op": "took", "number": take()["number"]}).encode()
    sys.stdout.buffer.write(struct.pack("!II", len(answer), 0) + answer)
"""

    async def play() -> list[int]:
        child = ChildProcess(python(code), asyncio.get_running_loop())
        for number in range(300):
            child.send({"op": "take", "number": number, "text": "x" * (5000 if number % 3 else 10)})
        taken = []
        while frame := await child.receive():
            taken.append(frame["number"])
        return taken

    assert asyncio.run(play()) == list(range(300))


def test_killing_ends_what_the_child_started_too() -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); p.wait()"
    )

    async def play() -> int:
        child = ChildProcess(python(code), asyncio.get_running_loop())
        child.kill()
        return await asyncio.wait_for(child.ended(), 10)

    assert asyncio.run(play()) == -9


def test_secrets_do_not_reach_children() -> None:
    inherited = {
        "PATH": "/bin",
        "HF_TOKEN": "s",
        "TOUCHSTONE_TOKEN": "s",
        "OPENAI_API_KEY": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ACCESS_KEY_ID": "s",
        "STRIPE_KEY": "s",
        "GITHUB_PAT": "s",
        "SSH_AUTH_SOCK": "s",
        "my_password": "s",
        "LD_LIBRARY_PATH": "/lib",
    }
    given = environment(inherited)
    assert given["PATH"] == "/bin" and given["LD_LIBRARY_PATH"] == "/lib"
    assert "s" not in given.values()
    assert given["OMP_WAIT_POLICY"] == "PASSIVE"


def test_an_address_with_a_password_reaches_only_those_that_sign_in_there() -> None:
    inherited = {"HTTPS_PROXY": "http://me:pw@proxy:3128", "DATABASE_URL": "postgres://u:pw@db/x", "NO_PROXY": "a"}
    inherited |= {"HF_ENDPOINT": "https://mirror.example"}
    assert set(inherited) & set(environment(inherited)) == {"NO_PROXY", "HF_ENDPOINT"}
    assert set(inherited) <= set(environment(inherited, online=True))


def test_what_a_child_started_ends_with_it_and_its_id_is_not_used_once_it_may_be_another_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import subprocess as s, sys; sleep = [sys.executable, '-c', 'import time; time.sleep(60)'];"
        "print(s.Popen(sleep, stdin=s.DEVNULL, stdout=s.DEVNULL, stderr=s.DEVNULL).pid, file=sys.stderr)"
    )
    killed: list[int] = []

    async def play() -> int:
        child = ChildProcess(python(code), asyncio.get_running_loop())
        await child.ended()
        monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
        child.kill()
        return int(child.last_line() or "")

    started = asyncio.run(play())
    assert killed == []
    limit = time.monotonic() + 10
    with contextlib.suppress(OSError):  # gone, or dead and not yet waited for
        while "Z" not in Path(f"/proc/{started}/stat").read_text().rpartition(")")[2].split()[0]:
            assert time.monotonic() < limit
            time.sleep(0.01)
