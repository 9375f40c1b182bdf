"""`doctor --bundle`: the archive has jobs and the log, and no names, keys, prompts or results."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.cli.doctor import bundle as bundles
from backend.common.config.settings import load_settings
from backend.server.log_format import JsonFormatter, TextFormatter
from tests.service import ROOT, Server

WISH = "an embarrassing wish of mine"


def bundle(data_dir: Path, file: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TOUCHSTONE_DATA_DIR": str(data_dir), "TOUCHSTONE_TOKEN": "a-stone-and-a-streak"}
    words = [sys.executable, "-m", "backend", "doctor", "--bundle", str(file)]
    return subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_the_archive_tells_of_jobs_and_log_but_not_what_was_asked(
    launch: Callable[..., Server], data_dir: Path, tmp_path: Path
) -> None:
    log = data_dir / "logs" / "touchstone.log"
    server = launch("--log-file", str(log), environ={"TOUCHSTONE_TOKEN": "a-stone-and-a-streak"})
    server.http.headers["Authorization"] = "Bearer a-stone-and-a-streak"
    job = server.generate(prompt=WISH, options={"max_tokens": 5}, device="cuda:0")
    with log.open("a") as more:
        more.write(f"Bearer a-stone-and-a-streak went to {Path.home()}/x\n")
    file = tmp_path / "report.zip"
    told = bundle(data_dir, file)
    assert told.returncode == 3 and "it was not sent anywhere" in told.stderr
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(parts) == {"README.txt", "doctor.txt", "doctor.json", "jobs.json", "log.txt"}
    (shown,) = json.loads(parts["jobs.json"])
    assert (shown["id"], shown["status"], shown["receipt"]["used"]) == (job["id"], "done", "cpu")
    assert parts["doctor.txt"].strip() == told.stdout.strip()
    assert job["id"] in parts["log.txt"]
    for name, text in parts.items():
        for secret in (WISH, job["output"]["text"], "a-stone-and-a-streak"):
            assert not secret.strip() or secret not in text, f"{secret!r} in {name}"
    assert f"{Path.home()}/x" not in parts["log.txt"]


def test_an_archive_that_cannot_be_written_is_told(data_dir: Path, tmp_path: Path) -> None:
    told = bundle(data_dir, tmp_path / "no folder" / "report.zip")
    assert told.returncode == 2 and "cannot be written" in told.stderr and "Traceback" not in told.stderr


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_prompts_in_the_log_are_left_out(formatter: logging.Formatter, tmp_path: Path) -> None:
    record = logging.makeLogRecord({"name": "backend.x", "levelname": "INFO", "msg": "job accepted"})
    prompt = {"job": "j1", "prompt": f"{WISH}\nmessages= {WISH}", "messages": [{"role": "user", "content": WISH}]}
    vars(record).update(prompt)
    file = tmp_path / "log"
    file.write_text(f"{formatter.format(record)}\nthe end\n")
    shown = bundles._log(load_settings({"log.file": str(file)}, {}))
    assert WISH not in shown and "messages" not in shown
    assert "job accepted" in shown and "j1" in shown and shown.endswith("\nthe end\n")


def test_the_incomplete_first_line_of_a_cut_log_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "LOG_BYTES", 20)
    file = tmp_path / "log"
    file.write_text(f"a line prompt={WISH}\nthe end\n")
    assert bundles._log(load_settings({"log.file": str(file)}, {})) == "the end\n"
