"""The verb `models`: its table, its progress with and without a terminal, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.cli.progress_bar import ProgressBar
from backend.common.types import Progress
from tests.service import ROOT, Server
from tests.test_gguf import gguf

DEFAULT = "smollm2-135m-instruct"


def models(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    return subprocess.run(
        [sys.executable, "-m", "backend", "models", *words],
        cwd=ROOT,
        env={**variables, "TOUCHSTONE_CONFIG": str(folder / "config.yaml"), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("models: {mine: {path: mine.gguf}}\ndefault_models: {text: mine}\n")
    return tmp_path


def test_the_table_shows_the_models_of_this_machine(folder: Path) -> None:
    done = models(folder)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["ID", "TASK", "STATE", "SIZE", "FITS", "ENGINES"]
    assert lines[1].split()[:5] == ["folk-tunes", "music", "ready", "0.02", "GB"] and lines[1].endswith("  default")
    assert lines[2].split() == ["mine", "text", "broken", "?", "?", "llama.cpp,", "transformers", "default"]
    assert lines[3].startswith("mine: ") and "does not exist" in lines[3]
    assert "more can be downloaded" in lines[4] and lines[5].startswith("Recommended for this machine: ")


def test_all_models_are_listed_on_request(folder: Path) -> None:
    lines = models(folder, "--all").stdout.splitlines()
    assert lines[1].split()[:5] == [DEFAULT, "text", "downloadable", "0.10", "GB"] and lines[1].endswith("  test model")
    assert sum(line.endswith("recommended") for line in lines) == 1
    assert models(folder, "list", "--all").stdout.splitlines() == lines


def test_json_is_the_answer_of_the_api(folder: Path) -> None:
    (folder / "mine.gguf").write_bytes(gguf())
    for words in (["--json"], ["list", "--json"]):
        found = json.loads(models(folder, *words).stdout)["models"]
        states = [(model["id"], model["state"]) for model in found if model["id"] in (DEFAULT, "folk-tunes", "mine")]
        assert states == [(DEFAULT, "downloadable"), ("folk-tunes", "ready"), ("mine", "ready")]
        assert "temperature" in found[0]["options_schema"]["properties"]
        assert "tempo_bpm" in found[1]["options_schema"]["properties"]


def test_a_default_that_is_there_needs_nothing(folder: Path) -> None:
    (folder / "mine.gguf").write_bytes(gguf())
    done = models(folder, "fetch-default", PIP_INDEX_URL="http://127.0.0.1:9/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_default_needs_nothing(folder: Path) -> None:
    done = models(folder, "fetch-default", TOUCHSTONE_DEFAULT_MODELS__TEXT="null")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_broken_default_of_the_user_is_told(folder: Path) -> None:
    (folder / "mine.gguf").write_bytes(b"<!DOCTYPE html>")
    done = models(folder, "fetch-default")
    assert done.returncode == 1
    assert "a web page" in done.stderr
    assert "download it again" in done.stderr


def test_a_failed_download_says_why_and_what_to_do(folder: Path) -> None:
    unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    done = models(folder, "fetch", DEFAULT, "--data-dir", str(folder / "other"), **unreachable, PIP_FIND_LINKS="")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "Check the network" in done.stderr
    assert not list((folder / "other").rglob("*.gguf"))


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["fetch", "nope"], 1, "Unknown model 'nope'"),
        (["fetch", "mine"], 1, "no source"),
        (["fetch"], 2, "required: id"),
        (["fetsh"], 2, "invalid choice"),
        (["list", "--config", "nowhere.yaml"], 2, "nowhere.yaml"),
    ],
)
def test_refusals(folder: Path, words: list[str], code: int, expected: str) -> None:
    done = models(folder, *words)
    assert done.returncode == code
    assert expected in done.stderr


def test_a_running_server_does_the_download(launch: Callable[..., Server]) -> None:
    server = launch()
    done = models(server.data_dir, "fetch", DEFAULT, TOUCHSTONE_CONFIG="", TOUCHSTONE_DATA_DIR=str(server.data_dir))
    assert (done.returncode, done.stderr) == (0, "")
    jobs = server.http.get("/api/jobs", params={"task": "download"}).json()["jobs"]
    assert [(job["model"], job["status"]) for job in jobs] == [(DEFAULT, "done")]
    listed = models(server.data_dir, "--json", TOUCHSTONE_CONFIG="", TOUCHSTONE_DATA_DIR=str(server.data_dir))
    assert _lasting(json.loads(listed.stdout)) == _lasting(server.http.get("/api/models").json())


def _lasting(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The models without what changes from one moment to the next: the memory that is free."""
    found: list[dict[str, Any]] = answer["models"]
    for fit in (fit for model in found for fit in model["fits"]):
        del fit["free_bytes"], fit["reason"]
    return found


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Moves only when told."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_on_a_terminal_is_one_moving_line() -> None:
    stream, clock = Terminal(), Clock()
    bar = ProgressBar(stream, clock)
    for done, eta_s, per_s in ((0, None, None), (50_000_000, 10.0, 5e6), (100_000_000, 0.0, 5e6)):
        bar.show(Progress("download", done, 100_000_000, "bytes", eta_s, per_s))
        clock.now_s += 10
    bar.close()
    bar.close()
    first, second, third = (line.rstrip() for line in stream.getvalue()[1:].rstrip("\n").split("\r"))
    assert stream.getvalue().endswith("\n") and stream.getvalue().count("\n") == 1
    assert first == "download [------------------------] 0.0 of 100.0 MB"
    assert second == "download [############------------] 50.0 of 100.0 MB  5.0 MB/s  10 s left"
    assert third == "download [########################] 100.0 of 100.0 MB  5.0 MB/s"


def test_progress_elsewhere_is_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    bar = ProgressBar(stream, clock)
    for second in range(13):
        bar.show(Progress("download", second * 1_000_000, None, "bytes"))
        clock.now_s += 1
    bar.close()
    assert stream.getvalue() == "download 5.0 MB\ndownload 10.0 MB\n"
