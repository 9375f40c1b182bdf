"""Source separation over HTTP and with the command line: files in, stems out, cancels, errors."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.refusals import refused
from tests.service import ROOT, Server, stream_events, wait_for
from tests.stems.sounds import RATE, noise, read, write

ASYNC = {"Prefer": "respond-async"}
MODEL = "spleeter-2stem"


@pytest.fixture(scope="module")
def service(server: Server, spleeter: Path) -> Server:
    """The shared server, with the model installed."""
    target = server.data_dir / "models" / MODEL
    if not target.exists():
        shutil.copytree(spleeter, target, copy_function=os.link)
    return server


@pytest.fixture(scope="module")
def song(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds."""
    return write(tmp_path_factory.mktemp("song") / "song.flac", noise(3 * RATE, 2))


def sent(server: Server, path: Path) -> str:
    answer = server.http.put(f"/api/files/{path.name}", content=path.read_bytes())
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def body(server: Server, path: Path, **options: Any) -> dict[str, Any]:
    return {"task": "stems", "inputs": {"audio": sent(server, path)}, "options": options}


def test_a_file_becomes_stems_that_add_up(service: Server, song: Path) -> None:
    events = list(stream_events(service, body(service, song, format="flac")))
    job = events[-1].data
    assert events[-1].event == "done" and job["model"] == MODEL
    artifacts = job["output"]["artifacts"]
    assert [each["name"] for each in artifacts] == ["vocals.flac", "accompaniment.flac"]
    stems = []
    for each in artifacts:
        answer = service.http.get(each["url"])
        assert answer.headers["content-type"] == each["media_type"] == "audio/flac"
        stems.append(soundfile.read(io.BytesIO(answer.content), always_2d=True)[0])
    assert np.abs(stems[0] + stems[1] - read(song)).max() < 2e-7
    phases = [event.data["phase"] for event in events if event.event == "progress"]
    assert {"reading", "separating"} <= set(phases)
    receipt = job["receipt"]
    assert receipt["used"] == "cpu" and receipt["model_file"] == "spleeter.onnx" and receipt["audio_s"] == 3
    assert "CPUExecutionProvider" in receipt["placement"]["evidence"]
    assert receipt["rate"] == {"value": pytest.approx(3 / receipt["times"]["run_s"]), "unit": "× real time"}
    assert receipt["chosen"]["stems"] == ["vocals", "accompaniment"] and receipt["counts"]["frames"] == 3 * RATE


def test_a_long_one_is_cancelled_and_leaves_no_file(service: Server, tmp_path: Path) -> None:
    long = write(tmp_path / "long.flac", noise(240 * RATE, 1))
    job = service.http.post("/api/generate", json=body(service, long), headers=ASYNC).json()
    wait_for(lambda: ((service.job(job["id"])["progress"] or {}).get("done") or 0) > 0, 60)
    service.http.post(f"/api/jobs/{job['id']}/cancel")
    ended = service.until(job["id"], "cancelled")
    assert ended["output"]["artifacts"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "mp3"}, "format"),
        ({"stems": []}, "stems"),
        ({"stems": ["voice"]}, "stems"),
        ({"chunk_seconds": 0.1}, "chunk_seconds"),
        ({"seed": 1}, "seed"),
    ],
)
def test_options_are_checked(service: Server, song: Path, options: dict[str, Any], said: str) -> None:
    answer = service.http.post("/api/generate", json=body(service, song, **options))
    assert said in refused(answer, 422, "validation_error")["detail"]


def test_no_sound_and_no_file_are_refused_in_words(service: Server, tmp_path: Path) -> None:
    (tmp_path / "song.mp3").write_bytes(b"Dear all,\nthis is a text.\n" * 40)
    answer = service.http.post("/api/generate", json=body(service, tmp_path / "song.mp3"))
    assert (
        refused(answer, 422, "validation_error")["detail"]
        == "song.mp3 cannot be decoded as audio: Format not recognised."
    )
    assert (
        "audio is missing"
        in refused(service.http.post("/api/generate", json={"task": "stems"}), 422, "validation_error")["detail"]
    )
    asked = {"task": "stems", "prompt": "sing", "inputs": {"audio": "0" * 32}}
    refused(service.http.post("/api/generate", json=asked), 422, "validation_error")


def stems(server: Server, *words: Any) -> subprocess.CompletedProcess[str]:
    environ = {"TOUCHSTONE_DATA_DIR": str(server.data_dir), "PATH": "", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "backend", "stems", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


def test_the_verb_separates_several_tracks_and_goes_on_after_a_bad_one(
    service: Server, song: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    other = shutil.copy(song, tmp_path / "other.flac")
    ended = stems(service, song, tmp_path / "bad.wav", other, tmp_path / "out", "--parallel", "--json")
    assert ended.returncode == 1 and "bad.wav cannot be decoded as audio" in ended.stderr
    assert sorted(job["status"] for job in json.loads(ended.stdout)) == ["done", "done", "error"]
    made = sorted(file.relative_to(tmp_path).as_posix() for file in (tmp_path / "out").rglob("*.wav"))
    assert made == [f"out/{track}/{stem}.wav" for track in ("other", "song") for stem in ("accompaniment", "vocals")]


def test_the_verb_replaces_nothing_unless_asked(service: Server, song: Path, tmp_path: Path) -> None:
    (tmp_path / "song").mkdir()
    (tmp_path / "song/vocals.wav").write_bytes(b"mine")
    ended = stems(service, song, tmp_path)
    assert ended.returncode == 1 and "holds files already (vocals.wav)" in ended.stderr
    assert (tmp_path / "song/vocals.wav").read_bytes() == b"mine"
    ended = stems(service, song, tmp_path, "--overwrite", "--stems", "vocals", "--device", "cpu")
    assert ended.returncode == 0 and "ran on cpu with onnxruntime" in ended.stderr, ended.stderr
    assert ended.stdout.splitlines() == [str(tmp_path / "song/vocals.wav")]
    ended = stems(service, tmp_path / "nothing.wav", tmp_path)
    assert ended.returncode == 1 and "does not exist" in ended.stderr
