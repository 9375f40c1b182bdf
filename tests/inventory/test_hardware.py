"""Hardware and system facts as the server gets them, from child processes that may hang, crash or print garbage."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.child.handle import Spawn, spawn
from backend.common.bounded_reads import TEXT_LIMIT
from backend.common.hardware.host import Answer, decoded, remembered, run_command, telling_line
from backend.common.hardware.libcuda import PROGRAM
from backend.common.hardware.windows_query import command
from backend.common.system.resources import memory_bytes
from backend.scheduling.probing.inventory import query_hardware, query_system
from tests.service import ROOT

CARD = '{"id": "pci:0000:01:00.0", "name": "A card", "vendor": null, "kind": "gpu"}'
SURVEY = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from backend.child.wire_protocol import claim_stdio
channel = claim_stdio()
assert sys.argv[1:] == ["survey", "hardware"]
"""
SEND = f"""
import json
channel.send({{"op": "hardware", "hardware": []}})
channel.send({{"op": "hardware", "hardware": [json.loads({CARD!r})]}})
"""


def playing(code: str) -> Spawn:
    """Start child processes that run this code instead of the program."""

    def start(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        line = [python, "-c", SURVEY + code, *arguments]
        return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    return start


def test_this_machine_s_processor_is_found() -> None:
    hardware = asyncio.run(query_hardware(spawn))
    assert hardware[0].id == "cpu:0" and hardware[0].kind == "cpu" and hardware[0].name
    assert hardware[0].memory_bytes == memory_bytes()
    assert hardware[0].threads and hardware[0].cores and hardware[0].cores <= hardware[0].threads


def test_this_machine_s_system_is_told() -> None:
    told = asyncio.run(query_system(spawn))
    assert told and told.name and told.kernel and told.machine
    assert all(check.verdict in ("ok", "note", "problem") and check.detail for check in told.checks)


@pytest.mark.parametrize(
    ("ending", "names"),
    [
        (SEND, ["A card"]),
        (SEND + "time.sleep(3600)", ["A card"]),
        (SEND + "os.kill(os.getpid(), signal.SIGSEGV); time.sleep(3600)", ["A card"]),
        (SEND + "sys.exit(3)", ["A card"]),
        ("channel._writer.write(b'no frame at all' * 100); channel._writer.flush()", []),
        ("time.sleep(3600)", []),
        ("sys.exit(1)", []),
        ("raise MemoryError", []),
    ],
)
def test_what_a_child_could_tell_counts(ending: str, names: list[str]) -> None:
    found = asyncio.run(query_hardware(playing(ending), limit_s=1.5))
    assert [item.name for item in found] == names


def test_an_interpreter_that_cannot_be_started_gives_nothing() -> None:
    def start(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        raise FileNotFoundError(2, "No such file", python)

    assert asyncio.run(query_hardware(start)) == []
    assert asyncio.run(query_system(start)) is None


def test_commands_end_at_their_limit_and_say_why() -> None:
    python = sys.executable
    assert run_command((python, "-c", "print('ü')"), 30) == Answer("ü\n")
    hangs = run_command((python, "-c", "import time; time.sleep(3600)"), 0.3)
    assert hangs == Answer(trouble=f"{python} timed out after 0.3 s")
    lost = "import sys; print('row'); print('GPU is lost', file=sys.stderr); sys.exit(15)"
    assert run_command((python, "-c", lost), 30) == Answer("row\n", f"{python} failed with code 15: GPU is lost")
    assert "cannot be run" in str(run_command(("/no/such/tool",), 30).trouble)
    assert run_command((python, "-c", "import os; os.write(1, bytes(range(256)))"), 30).trouble is None


def test_a_command_that_leaves_a_daemon_behind_has_ended() -> None:
    script = "echo row; sleep 3600 & exit 0"
    began = time.monotonic()
    assert run_command(("/bin/sh", "-c", script), 0.5) == Answer("row\n")
    assert time.monotonic() - began < 3


def test_endless_output_ends_at_the_timeout() -> None:
    answer = run_command(("/bin/sh", "-c", "yes"), 0.3)
    assert "timed out" in str(answer.trouble) and len(answer.text) <= TEXT_LIMIT


def test_the_output_of_windows_programs_is_read() -> None:
    text = "Gerät\n"
    assert all(decoded(each) == text for each in (text.encode(), text.encode("utf-8-sig"), text.encode("utf-16")))
    assert decoded("NVIDIA ®".encode("utf-16-le")) == "NVIDIA ®" and decoded(b"") == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54", 0),
        ("WARNING: infoROM is corrupted\nUnable to determine the device handle for GPU: GPU is lost.\n\nDone", 1),
        ("Traceback (most recent call last):\n  File 'x'\nImportError: libcuda.so.1: cannot open", 2),
        ("one\ntwo", 1),
        ("Expected integer value from monitor\nERROR: 15 GPU[0]: Data\n=====", 1),
    ],
)
def test_the_telling_line_may_be_followed_by_others(text: str, line: int) -> None:
    assert telling_line(text) == text.splitlines()[line]
    assert telling_line("") == ""


def test_a_command_is_run_once() -> None:
    asked: list[str] = []

    def run(command: object, limit_s: float) -> Answer:
        asked.append(str(command))
        return Answer("x")

    once = remembered(run)
    assert [once(("a",), 1).text, once(("a",), 1).text, once(("b",), 1).text] == ["x", "x", "x"]
    assert len(asked) == 2


def test_the_program_that_loads_libcuda_answers_with_or_without_one() -> None:
    answer = run_command(PROGRAM, 30)
    told = json.loads(answer.text)
    assert answer.trouble is None
    assert set(told) in ({"error"}, {"path", "version"})


def test_the_question_to_windows_is_powershell_in_one_argument() -> None:
    tree_sitter = pytest.importorskip("tree_sitter")
    grammar = pytest.importorskip("tree_sitter_powershell")
    text = command("powershell.exe")[-1]
    assert '"' not in text and "\n" not in text
    tree = tree_sitter.Parser(tree_sitter.Language(grammar.language())).parse(text.encode())
    assert tree.root_node.has_error is False
    assert len(text) < 8000  # command lines on Windows have a length limit


def test_nothing_heavy_is_imported_for_it() -> None:
    code = "import sys, backend.child.programs.survey; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"asyncio", "pydantic", "numpy", "yaml"} & set(done.stdout.split())
    assert Path(ROOT, "backend/common/hardware/names.txt").stat().st_size < 200_000
