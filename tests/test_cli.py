"""The command line for people and scripts: exit codes, streams, with and without a running server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.common.types import TERMINAL
from tests.conftest import MODEL
from tests.service import ROOT, Server, wait_for

VERBS = sorted(file.stem for file in (ROOT / "backend/cli/commands").glob("[a-z]*.py"))
SHORT = ["--max-tokens", "4", "--temperature", "0"]


def run(*words: str, data_dir: Path | None = None, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m backend …`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    if data_dir:
        variables["TOUCHSTONE_DATA_DIR"] = str(data_dir)
    ended = subprocess.run(
        [sys.executable, "-m", "backend", *words],
        cwd=ROOT,
        env={**variables, **environ},
        input=stdin.encode(),
        capture_output=True,
        timeout=120,
    )
    return subprocess.CompletedProcess(
        ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode("utf-8", "replace")
    )


def told(ended: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """A refusal: this exit code, these words on stderr, no traceback, nothing on stdout."""
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr, ended.stderr
    assert ended.stdout == ""


# Help and usage


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    ended = run(verb, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"python -m backend {verb}" in ended.stdout and "--config" in ended.stdout


def test_the_help_lists_every_verb() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    for verb in VERBS:
        assert re.search(rf"^    {verb} +\w", ended.stdout, re.MULTILINE), f"{verb} with its help:\n{ended.stdout}"


@pytest.mark.parametrize("words", [[], ["severe"], ["serve", "--prot", "1"], ["generate"], ["devices", "extra"]])
def test_wrong_usage_ends_with_2(words: list[str]) -> None:
    told(run(*words), 2, "usage:")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("sever: {port: 1}", ["`sever`", "`server`", "line 1"]),
        ("server:\n  prot: 1", ["`server.prot`", "`server.port`", "line 2"]),
        ("server: {port: many}", ["`server.port`"]),
        ("server: [1, 2]", ["`server`"]),
        ("a: [", ["YAML"]),
    ],
)
@pytest.mark.parametrize("verb", ["serve", "devices", "generate"])
def test_a_mistake_in_the_configuration_ends_with_2_and_the_nearest_key(
    tmp_path: Path, verb: str, config: str, words: list[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    more = ["x"] if verb == "generate" else []
    told(run(verb, *more, "--config", str(file), data_dir=tmp_path / "data"), 2, str(file), *words)


def test_a_mistake_in_the_environment_ends_with_2_and_the_nearest_variable(tmp_path: Path) -> None:
    told(run("devices", data_dir=tmp_path, TOUCHSTONE_DEVCIE="cpu"), 2, "TOUCHSTONE_DEVCIE", "TOUCHSTONE_DEVICE?")


def test_a_missing_configuration_ends_with_2(tmp_path: Path) -> None:
    told(run("devices", "--config", str(tmp_path / "none.yaml"), data_dir=tmp_path), 2, "none.yaml")


# Devices and doctor


def test_devices_lists_the_ready_ones_first(data_dir: Path) -> None:
    ended = run("devices", data_dir=data_dir)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == "Available devices (1):"
    assert lines[1].startswith("  cpu: ")
    assert "auto is cpu" in ended.stdout


def test_list_devices_is_a_synonym_also_through_the_running_server(server: Server) -> None:
    ended = run("--list-devices", data_dir=server.data_dir)
    assert ended.returncode == 0
    assert ended.stdout == run("devices", data_dir=server.data_dir).stdout
    assert ended.stdout.startswith("Available devices (1):\n  cpu: ")


def test_devices_as_json_is_the_answer_of_the_server(server: Server) -> None:
    ended = run("devices", "--json", data_dir=server.data_dir)
    through = json.loads(ended.stdout)
    asked = server.http.get("/api/devices").json()
    for found in (through, asked):
        assert found["devices"][0].pop("memory_free_bytes") > 0  # of the moment
    assert through == asked


def test_doctor_says_that_only_the_cpu_works_and_names_nobody(data_dir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / "zoe"
    home.mkdir(parents=True)
    own = home / "models"
    own.symlink_to(data_dir)
    ended = run("doctor", data_dir=own, HOME=str(home))
    assert (ended.returncode, ended.stderr) == (3, "")
    assert "zoe" not in ended.stdout
    assert "~/models" in ended.stdout
    assert "cpu: ready" in ended.stdout and MODEL in ended.stdout and "MatMul" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("Verdict: Only the CPU works")


# Generate


def test_generate_without_a_server_streams_and_prints_the_receipt(data_dir: Path) -> None:
    ended = run("generate", "Say hello.", *SHORT, data_dir=data_dir)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Hello")
    assert "ran on cpu" in ended.stderr and "llama.cpp" in ended.stderr and "buffer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_generate_through_the_running_server_gives_the_same_and_leaves_a_job(server: Server, data_dir: Path) -> None:
    through = run("generate", "Say hello.", *SHORT, data_dir=server.data_dir)
    assert through.returncode == 0, through.stderr
    newest = server.http.get("/api/jobs?limit=1").json()["jobs"][0]["id"]
    assert server.job(newest)["output"]["text"] == through.stdout.rstrip("\n")
    assert server.job(newest)["request"]["prompt"] == "Say hello."


def test_generate_reads_standard_input_and_takes_every_option(server: Server) -> None:
    flags = ["--max-tokens", "5", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--seed", "3"]
    more = ["--stop", "zzz", "--stop", "yyy", "--repetition-penalty", "1.1", "--device", "CPU", "--model", MODEL]
    prompt = "Grüße, 日本 🎵\nzweite Zeile\u2028dritte"
    ended = run("generate", "-", *flags, *more, "--json", data_dir=server.data_dir, stdin=prompt)
    assert ended.returncode == 0, ended.stderr
    job = json.loads(ended.stdout)
    assert (job["request"]["prompt"], job["request"]["device"]) == (prompt, "CPU")
    wanted = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "seed": 3,
        "stop": ["zzz", "yyy"],
        "repetition_penalty": 1.1,
    }
    options = job["request"]["options"]
    assert options == {**options, **wanted}
    assert job == server.job(job["id"])


@pytest.mark.parametrize("through", [True, False], ids=["server", "alone"])
def test_after_a_stated_fallback_the_exit_code_is_0(server: Server, data_dir: Path, through: bool) -> None:
    folder = server.data_dir if through else data_dir
    ended = run("generate", "Say hello.", *SHORT, "--device", "cuda:0", data_dir=folder)
    assert ended.returncode == 0
    assert ended.stdout.startswith("Hello")
    assert "cuda:0 could not be used" in ended.stderr and "runs on cpu" in ended.stderr
    assert "asked: cuda:0" in ended.stderr


@pytest.mark.parametrize("through", [True, False], ids=["server", "alone"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fallback", "never", "--device", "cuda"], ["cuda:0", "CPU"]),
        (["--device", "warp"], ["'warp'", "auto, cpu"]),
        (["--model", "nothing"], ["'nothing'"]),
        (["--temperature", "9"], ["options.temperature"]),
    ],
)
def test_a_stated_failure_ends_with_1(
    server: Server, data_dir: Path, through: bool, flags: list[str], words: list[str]
) -> None:
    folder = server.data_dir if through else data_dir
    told(run("generate", "Say hello.", *flags, data_dir=folder), 1, "touchstone: ", *words)


@pytest.mark.parametrize("through", [False, True], ids=["without a server", "through the server"])
def test_a_prompt_of_bytes_that_are_no_text_is_refused_in_words(server: Server, data_dir: Path, through: bool) -> None:
    words = [sys.executable.encode(), b"-m", b"backend", b"generate", b"caf\xe9"]
    variables = {**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir if through else data_dir)}
    ended = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, timeout=60)
    assert ended.returncode == 1
    assert b"Unicode" in ended.stderr and b"Traceback" not in ended.stderr


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_standard_input_that_is_no_text_is_refused_in_words(server: Server, encoding: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "backend", "generate", "-"],
        cwd=ROOT,
        env={**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir), "PYTHONIOENCODING": encoding},
        input=b"caf\xe9",
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert b"touchstone: " in ended.stderr and b"Traceback" not in ended.stderr


def test_standard_input_that_is_closed_is_an_empty_prompt(server: Server) -> None:
    ended = subprocess.run(
        ["sh", "-c", '"$0" -m backend generate - <&-', sys.executable],
        cwd=ROOT,
        env={**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir)},
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert b"prompt" in ended.stderr and b"Traceback" not in ended.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "1e999", "many"])
def test_what_is_no_number_is_wrong_usage(server: Server, number: str) -> None:
    told(run("generate", "x", "--temperature", number, data_dir=server.data_dir), 2, "--temperature")


def test_a_refusal_as_json_keeps_stdout_empty(server: Server) -> None:
    told(run("generate", "x", "--json", "--device", "warp", data_dir=server.data_dir), 1, "warp")


@contextlib.contextmanager
def generating(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """`generate` through the server, with its first bytes written and far from its end."""
    variables = {**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir)}
    words = [sys.executable, "-m", "backend", "generate", "Write a very long story.", "--max-tokens", "3000"]
    process = subprocess.Popen(words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    with process.stdout, process.stderr:
        assert process.stdout.read(3)
        yield process


def newest_job(server: Server) -> str:
    return str(server.http.get("/api/jobs?limit=1").json()["jobs"][0]["id"])


def test_a_reader_that_leaves_is_no_failure_in_a_traceback(server: Server) -> None:
    with generating(server) as process:
        newest = newest_job(server)
        assert process.stdout
        process.stdout.close()
        assert process.wait(30) in (0, 1)
        assert process.stderr and b"Traceback" not in process.stderr.read()
    assert server.until(newest, *TERMINAL)["status"] == "cancelled"


def test_ctrl_c_cancels_the_job(server: Server) -> None:
    with generating(server) as process:
        newest = newest_job(server)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr and b"Traceback" not in process.stderr.read()
    assert server.until(newest, *TERMINAL)["status"] == "cancelled"


def test_a_server_that_dies_meanwhile_is_told_in_words(launch: Callable[..., Server]) -> None:
    server = launch()
    with generating(server) as process:
        server.process.kill()
        assert process.wait(30) == 1
        assert process.stderr
        said = process.stderr.read().decode()
    assert f"Lost connection to the server at {server.url}" in said and "Traceback" not in said


def test_on_a_terminal_nothing_that_the_model_writes_can_steer_it(server: Server) -> None:
    """The model is made to repeat an escape sequence; a pipe gets the bytes, a terminal sees them spelled out."""
    prompt = "Repeat after me: \x1b[31mred\x1b[0m \x1b[31mred\x1b[0m \x1b[31mred\x1b[0m"
    words = ["generate", prompt, "--max-tokens", "24", "--temperature", "0"]
    plain = run(*words, data_dir=server.data_dir).stdout
    shown = on_a_terminal(words, server.data_dir)
    assert "\x1b" not in shown and "\x07" not in shown
    assert len(shown.strip()) >= len(plain.strip())


def on_a_terminal(words: list[str], data_dir: Path) -> str:
    """What `python -m backend …` writes when stdout is a terminal."""
    master, slave = pty.openpty()
    variables = {**os.environ, "TOUCHSTONE_DATA_DIR": str(data_dir), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "backend", *words], cwd=ROOT, env=variables, stdout=slave, stderr=subprocess.DEVNULL
    )
    os.close(slave)
    shown = b""
    try:
        while select.select([master], [], [], 60)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        assert process.wait(30) == 0
    finally:
        os.close(master)
    return shown.decode()


# Jobs


@pytest.fixture
def job(server: Server) -> dict[str, Any]:
    """A finished job with a prompt that a terminal must not obey."""
    return server.generate(prompt="A\x1b[31mred\u202eprompt", options={"max_tokens": 2})


def test_jobs_lists_the_newest_first_in_one_line_each(server: Server, job: dict[str, Any]) -> None:
    older = server.generate(prompt="Older?", options={"max_tokens": 2})
    ended = run("jobs", "--limit", "2", data_dir=server.data_dir)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [older["id"], job["id"]]
    assert lines[1].split()[1:4] == ["done", "text", "cpu"]
    assert "\x1b" not in ended.stdout and "\u202e" not in ended.stdout
    assert "\\x1b[31mred" in lines[1]


def test_one_job_is_shown_whole(server: Server, job: dict[str, Any]) -> None:
    ended = run("jobs", job["id"], data_dir=server.data_dir)
    assert ended.returncode == 0
    assert json.loads(ended.stdout) == job


def test_jobs_as_json_is_the_servers_page(server: Server, job: dict[str, Any]) -> None:
    ended = run("jobs", "--json", "--limit", "1", "--status", "done", data_dir=server.data_dir)
    assert json.loads(ended.stdout)["jobs"][0]["id"] == job["id"]


def test_jobs_can_cancel_one(server: Server) -> None:
    body = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000}}
    job_id = server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"}).json()["id"]
    wait_for(lambda: server.job(job_id)["status"] == "running")
    assert run("jobs", job_id, "--cancel", data_dir=server.data_dir).returncode == 0
    assert server.until(job_id, *TERMINAL)["status"] == "cancelled"
    told(run("jobs", job_id, "--cancel", data_dir=server.data_dir), 1, "already ended")


@pytest.mark.parametrize("through", [True, False], ids=["server", "alone"])
@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["0" * 21], 1, ["Unknown job"]),
        (["--status", "finished"], 1, ["status", "'finished'"]),
        (["--limit", "0"], 1, ["limit"]),
        (["--limit", "x"], 2, ["--limit"]),
        (["--cancel"], 2, ["--cancel"]),
    ],
)
def test_jobs_refuses_what_cannot_be(
    server: Server, data_dir: Path, through: bool, flags: list[str], code: int, words: list[str]
) -> None:
    told(run("jobs", *flags, data_dir=server.data_dir if through else data_dir), code, *words)


def test_no_jobs_yet_is_said(data_dir: Path) -> None:
    ended = run("jobs", data_dir=data_dir)
    assert (ended.returncode, ended.stdout) == (0, "No jobs yet.\n")


def test_the_command_line_signs_in_with_the_token(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_TOKEN": "a-token"})
    assert run("jobs", data_dir=server.data_dir, TOUCHSTONE_TOKEN="a-token").returncode == 0
    told(run("jobs", data_dir=server.data_dir), 1, "token")


def test_the_note_of_a_killed_server_does_not_lead_to_the_server_of_another_folder(
    server: Server, data_dir: Path
) -> None:
    server.generate(prompt="x", options={"max_tokens": 1})
    note = json.loads((server.data_dir / "server.json").read_text())
    (data_dir / "server.json").write_text(json.dumps({**note, "id": "another"}))
    ended = run("jobs", data_dir=data_dir)
    assert ended.returncode == 0
    assert "text" not in ended.stdout, "those are the jobs of somebody else"


def test_a_held_folder_whose_server_does_not_answer_is_refused(launch: Callable[..., Server]) -> None:
    """The server is stopped by a signal: it holds the data and says nothing."""
    server = launch()
    server.process.send_signal(signal.SIGSTOP)
    try:
        told(run("jobs", data_dir=server.data_dir), 2, f"process {server.process.pid}")
    finally:
        server.process.send_signal(signal.SIGCONT)
