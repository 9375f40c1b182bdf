"""The command `music`: a prompt and flags in, files in a folder, with or without a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service import ROOT, Server

FILES = {"tune.wav", "tune.flac", "tune.mid", "tune.abc", "tune.svg"}


def music(data_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backend", "music", *words]
    environ = {"TOUCHSTONE_DATA_DIR": str(data_dir), "PATH": "", "PYTHONUTF8": "1"}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


def test_words_and_flags_give_files_through_the_server(server: Server, tmp_path: Path) -> None:
    ended = music(
        server.data_dir, "a", "jig", "in", "D,", "purple", "--seconds", "3", "--seed", "4", "--out", str(tmp_path)
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert "Understood: key D, form jig, mode major. Ignored: “purple”" in lines[0] and lines[0].endswith("seed 4.")
    assert {Path(line).name for line in lines[1:]} == FILES == {file.name for file in tmp_path.iterdir()}
    assert "ran on cpu" in ended.stderr and "× real time" in ended.stderr
    job = server.http.get("/api/jobs?limit=1").json()["jobs"][0]
    assert job["request"]["options"]["seconds"] == 3 and job["request"]["prompt"] == "a jig in D, purple"
    assert (tmp_path / "tune.wav").stat().st_size == next(
        each["bytes"] for each in job["output"]["artifacts"] if each["name"] == "tune.wav"
    )


def test_kinds_of_files_are_a_list_with_commas(server: Server, tmp_path: Path) -> None:
    ended = music(server.data_dir, "--seconds", "2", "--formats", "mp3,midi", "--out", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"tune.mp3", "tune.mid"}


def test_an_earlier_tune_is_not_overwritten_unless_asked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tune.wav").write_bytes(b"mine")
    refused = music(server.data_dir, "--seconds", "2", "--out", str(tmp_path))
    assert refused.returncode == 2 and "holds an earlier tune (tune.wav)" in refused.stderr
    assert (tmp_path / "tune.wav").read_bytes() == b"mine"
    ended = music(server.data_dir, "--seconds", "2", "--out", str(tmp_path), "--overwrite", "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["status"] == "done"
    assert (tmp_path / "tune.wav").read_bytes().startswith(b"RIFF")


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["--form", "jig", "--meter", "4/4"], "Meters of this form: 6/8", 1),
        (["--form", "walz"], "unknown form 'walz'", 1),
        (["--bars", "x"], "invalid int value", 2),
        (["--seconds", "nan"], "not a finite number", 2),
    ],
)
def test_a_refusal_is_said_and_makes_no_file(
    server: Server, tmp_path: Path, words: list[str], told: str, code: int
) -> None:
    ended = music(server.data_dir, *words, "--out", str(tmp_path / "new"))
    assert ended.returncode == code and told in ended.stderr and not (tmp_path / "new").exists()


def test_without_a_server_it_makes_the_tune_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = music(tmp_path / "data", "--variations", "2", "--bars", "2", "--backing", "none", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    assert {file.name for file in out.iterdir()} == {
        name.replace("tune", f"tune-{number}") for name in FILES for number in (1, 2)
    }
