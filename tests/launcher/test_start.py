"""From the command to a healthy server and back: waiting, output, and no process remains."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.folder import LIMIT_S, Folder, alive
from tests.service import wait_for

SERVER_FLAGS = ("--host", "127.0.0.1", "--port", "0")


def test_start_fetches_serves_and_says_the_address(ready: Folder) -> None:
    running = ready.start("--no-browser", *SERVER_FLAGS)
    assert "http://127.0.0.1:" in running.expect("Touchstone is ready: ")
    assert "the model is fetched" in running.lines
    assert ready.calls() == [["models", "fetch-default"], ["serve", *SERVER_FLAGS]]
    assert running.end(signal.SIGTERM) == 0


def test_a_signal_that_another_thread_gets_is_heard_all_the_same() -> None:
    """As one that comes just before the wait in the kernel: that wait is not cut short by it."""
    program = """
import signal, sys, threading, time
from backend.cli.launcher.server import Server
server = Server([sys.executable, "-c", "import time; time.sleep(600)"])
server.start()
def late():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=late).start()
print(server.wait())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == f"{128 + signal.SIGTERM}\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_the_server_too(ready: Folder, number: signal.Signals) -> None:
    running = ready.start("serve", "--no-browser")
    running.expect("Touchstone is ready")
    assert running.end(number) == 0
    assert not alive(ready.server_pid())


def test_ctrl_c_reaches_the_server_once_and_as_a_polite_request(ready: Folder) -> None:
    running = ready.start("--no-browser")
    running.expect("Touchstone is ready")
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    assert running.process.wait(LIMIT_S) == 0
    assert [note["signal"] for note in ready.notes if "signal" in note] == [signal.SIGTERM]


def test_exit_code_of_the_server_is_passed_on(ready: Folder) -> None:
    ready.plan(exit=7)
    running = ready.start("--no-browser")
    running.expect("Touchstone is ready")
    assert running.end(signal.SIGTERM) == 7


def test_server_killed_from_outside(ready: Folder) -> None:
    running = ready.start("--no-browser")
    running.expect("Touchstone is ready")
    os.kill(ready.server_pid(), signal.SIGKILL)
    assert running.process.wait(LIMIT_S) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("behaviour", "words"), [({"mute": True}, "did not listen"), ({"sick_s": 99}, "did not answer")]
)
def test_server_that_never_gets_ready(
    ready: Folder, driver: list[str], behaviour: dict[str, object], words: str
) -> None:
    ready.plan(**behaviour)
    running = ready.start(command=[*driver, "2"])
    running.expect(words)
    assert running.process.wait(LIMIT_S) == 9
    assert not alive(ready.server_pid())


def test_server_deaf_to_signals_is_killed_in_the_end(ready: Folder) -> None:
    ready.plan(deaf=True)
    running = ready.start("--no-browser")
    running.expect("Touchstone is ready")
    assert running.end(signal.SIGTERM) == 128 + signal.SIGKILL
    assert not alive(ready.server_pid())


def test_reader_of_stdout_that_leaves_does_not_leave_a_server_behind(ready: Folder) -> None:
    running = ready.start(
        "--no-browser", command=["bash", "-c", '"$0" --no-browser | head -n 1', str(ready.root / "launch_wsl.sh")]
    )
    running.expect("listening on")
    assert running.process.wait(LIMIT_S) == 0
    assert not alive(ready.server_pid())


def test_wildcard_address_becomes_one_that_opens(ready: Folder) -> None:
    ready.plan(host="0.0.0.0")
    running = ready.start("--no-browser")
    assert "http://127.0.0.1:" in running.expect("Touchstone is ready")
    assert running.end(signal.SIGTERM) == 0


def test_wrong_configuration_ends_the_start_before_the_server(ready: Folder) -> None:
    ready.plan(fetch=2)
    assert ready.run("--no-browser", "--config", "other.yaml").returncode == 2
    assert ready.calls() == [["models", "fetch-default", "--config", "other.yaml"]]


def test_without_the_model_the_server_starts_all_the_same(ready: Folder) -> None:
    ready.plan(fetch=1)
    running = ready.start("--no-browser", "--data-dir=elsewhere")
    running.expect("starts without it")
    running.expect("Touchstone is ready")
    assert running.end(signal.SIGTERM) == 0
    assert ready.calls()[0] == ["models", "fetch-default", "--data-dir=elsewhere"]


CARD = {
    "devices": [{"id": "vulkan:0", "state": "ready"}, {"id": "cuda:0", "state": "installable"}],
    "hardware": [
        {"name": "A processor", "kind": "cpu"},
        {
            "name": "A card",
            "kind": "gpu",
            "driver": "31.0.15.3623",
            "driver_date": "2025-03-04",
            "devices": ["cuda:0", "vulkan:0"],
        },
    ],
}
BEST = {"best": "cuda", "best_reason": "A card is here; PyTorch would use it (3 GB)."}


def test_gpu_auto_installs_the_best_runtime_beside_the_running_server(ready: Folder) -> None:
    ready.plan(answers={"/api/devices?wait_s=60": CARD, "/api/runtimes": BEST})
    running = ready.start("--no-browser", "--gpu", "auto", "--data-dir=elsewhere")
    running.expect("Touchstone is ready")
    running.expect("Found A card (driver 31.0.15.3623 of 2025-03-04): vulkan:0.")
    running.expect("A card is here; PyTorch would use it (3 GB).")
    running.expect("Installing the runtime cuda; the server already serves.")
    wait_for(lambda: ["runtimes", "install", "cuda", "--data-dir=elsewhere"] in ready.calls())
    assert running.end(signal.SIGTERM) == 0


def test_gpu_by_name_installs_that_one(ready: Folder) -> None:
    ready.plan(exit=1)
    running = ready.start("--no-browser", "--gpu=rocm")
    running.expect("The runtime rocm could not be installed; see above. The CPU works.")
    assert ["runtimes", "install", "rocm"] in ready.calls()
    running.end(signal.SIGTERM)


def test_without_a_terminal_the_runtime_is_named_and_gpu_none_is_remembered(ready: Folder) -> None:
    ready.plan(answers={"/api/devices?wait_s=60": {}, "/api/runtimes": BEST})
    running = ready.start("--no-browser")
    running.expect("runtimes install cuda")
    assert running.end(signal.SIGTERM) == 0
    for flags in (["--gpu", "none"], []):
        running = ready.start("--no-browser", *flags)
        running.expect("Touchstone is ready")
        wait_for(lambda: (ready.root / ".venv.gpu").exists())
        assert running.end(signal.SIGTERM) == 0
        assert "cuda" not in "\n".join(running.lines)
    assert not [call for call in ready.calls() if call[0] == "runtimes"]
    running = ready.start("--no-browser", "--gpu", "auto")
    running.expect("Installing the runtime cuda")
    assert not (ready.root / ".venv.gpu").exists()
    assert running.end(signal.SIGTERM) == 0


RECOMMENDED = {
    "model": "some-3b",
    "name": "Some 3B",
    "state": "downloadable",
    "offer": True,
    "licence": "MIT",
    "reason": "-",
}


def test_model_auto_fetches_the_recommended_model_while_the_server_runs(ready: Folder) -> None:
    ready.plan(answers={"/api/devices?wait_s=60": {}, "/api/models": {"recommended": RECOMMENDED}})
    running = ready.start("--no-browser", "--model", "auto", "--data-dir=elsewhere")
    running.expect("Recommended: Some 3B, licence MIT.")
    running.expect("The model some-3b is ready. Select it on the page")
    assert ["models", "fetch", "some-3b", "--data-dir=elsewhere"] in ready.calls()
    assert running.end(signal.SIGTERM) == 0


def test_without_a_terminal_the_model_is_named_and_model_none_is_remembered(ready: Folder) -> None:
    ready.plan(answers={"/api/devices?wait_s=60": {}, "/api/models": {"recommended": RECOMMENDED}})
    running = ready.start("--no-browser")
    running.expect("models fetch some-3b")
    assert running.end(signal.SIGTERM) == 0
    running = ready.start("--no-browser", "--model", "none")
    running.expect("Touchstone is ready")
    wait_for(lambda: (ready.root / ".venv.model").exists())
    assert running.end(signal.SIGTERM) == 0
    assert not [call for call in ready.calls() if call[:2] == ["models", "fetch"]]


def test_help_needs_no_environment_and_names_each_verb_with_a_line(bare: Folder) -> None:
    commands = bare.root / "backend/cli/commands"
    commands.mkdir()
    (commands / "echo.py").write_text('"""Print its input."""\nimport not_installed\n')
    done = bare.run("--help")
    assert done.returncode == 0 and "usage: ./launch_wsl.sh" in done.stdout
    assert re.search(r"^    echo +Print its input\.$", done.stdout, re.MULTILINE)
    assert not (bare.root / ".venv").exists()


def test_an_unknown_verb_is_answered_before_an_environment_is_made(bare: Folder) -> None:
    commands = bare.root / "backend/cli/commands"
    commands.mkdir()
    (commands / "generate.py").write_text('"""Generate text."""\n')
    done = bare.run("run", "llama3")
    assert done.returncode == 2
    assert "Unknown verb 'run'. Did you mean: ./launch_wsl.sh generate --model llama3 PROMPT" in done.stderr
    assert not (bare.root / ".venv").exists()


def test_other_verbs_keep_streams_folder_and_exit_code(ready: Folder, tmp_path: Path) -> None:
    ready.plan(exit=7)
    elsewhere = tmp_path / "the caller's folder"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("raise SystemExit('a stray module of the caller was imported')")
    done = ready.run(
        "echo", "a b", "--no-browser", stdin="grüße\n".encode(), cwd=elsewhere, env={"PYTHONPATH": str(elsewhere)}
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "grüße\n", "")
    assert ready.notes[-1]["cwd"] == str(elsewhere)
    assert ready.calls() == [["echo", "a b", "--no-browser"]]


@pytest.mark.parametrize("arguments", [("--list-devices",), ("--version",), ("serve", "--help")])
def test_options_that_do_not_start_a_server(ready: Folder, arguments: tuple[str, ...]) -> None:
    ready.plan(crash=0)
    assert ready.run(*arguments).returncode == 0
    assert ready.calls() == [list(arguments)]
