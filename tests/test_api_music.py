"""Tunes on a real server: prompts and options in, files out; cancel, repeat, delete, and a killed worker."""

from __future__ import annotations

import io
import os
import signal
import time
import wave
from collections.abc import Callable
from typing import Any

import pytest
from tinytag import TinyTag

from tests.refusals import refused
from tests.service import Server, follow, stream_events, text_of, wait_for

ASYNC = {"Prefer": "respond-async"}
KINDS = {
    "tune.wav": "audio/wav",
    "tune.flac": "audio/flac",
    "tune.mid": "audio/midi",
    "tune.abc": "text/vnd.abc",
    "tune.svg": "image/svg+xml",
}
LONG = {"bars": 256, "variations": 4, "tempo_bpm": 300}
SHORT = {"form": "jig", "key": "D", "mode": "major", "seconds": 4, "seed": 5}


def tune(server: Server, **body: Any) -> dict[str, Any]:
    job: dict[str, Any] = server.generate(task="music", **body)
    assert job.get("status") == "done", job
    return job


def files(server: Server, job: dict[str, Any]) -> dict[str, bytes]:
    """Every file of a job as it is served."""
    found = {}
    for artifact in job["output"]["artifacts"]:
        answer = server.http.get(artifact["url"])
        assert answer.status_code == 200 and len(answer.content) == artifact["bytes"]
        assert answer.headers["content-type"].split(";")[0] == artifact["media_type"]
        found[artifact["name"]] = answer.content
    return found


def begun(server: Server, phase: str, **options: Any) -> str:
    """A job that has done a part of that phase."""
    sent = server.http.post("/api/generate", json={"task": "music", "options": options}, headers=ASYNC).json()

    def under_way() -> bool:
        progress = server.job(sent["id"])["progress"] or {}
        return bool(progress.get("phase") == phase and progress["done"])

    wait_for(under_way)
    return str(sent["id"])


@pytest.fixture(scope="module")
def made(server: Server) -> dict[str, Any]:
    """One tune by words, for the tests that only look at it."""
    return tune(server, prompt="a slow sad purple tune in D minor, 4 seconds")


def test_words_become_a_tune_with_all_its_files(server: Server, made: dict[str, Any]) -> None:
    assert {artifact["name"]: artifact["media_type"] for artifact in made["output"]["artifacts"]} == KINDS
    found = files(server, made)
    with wave.open(io.BytesIO(found["tune.wav"])) as audio:
        assert audio.getnframes() / audio.getframerate() == 4 and audio.getnchannels() == 2
    assert found["tune.mid"].startswith(b"MThd") and found["tune.flac"].startswith(b"fLaC")
    assert b"K:Dm" in found["tune.abc"] and b"<svg" in found["tune.svg"][:1000]


def test_it_says_what_it_understood_and_what_not(made: dict[str, Any]) -> None:
    request = made["request"]
    assert request["understood"] == {"seconds": 4, "key": "D", "mode": "minor", "form": "air", "tempo_bpm": 60.0}
    assert [each["words"] for each in request["ignored"]] == ["purple"]
    assert request["options"]["key"] == "D" and request["options"]["seconds"] == 4
    text = made["output"]["text"]
    assert text.startswith("Understood: ") and "Ignored: “purple”" in text and "Air in D minor" in text


def test_the_receipt_counts_measures_and_tells_what_was_chosen(made: dict[str, Any]) -> None:
    receipt = made["receipt"]
    counts, chosen = receipt["counts"], receipt["chosen"]
    assert counts["bars"] == chosen["bars"] and counts["variations"] == 1
    assert 0 < counts["notes"] < counts["tokens"]
    assert chosen["seeds"] == [receipt["seed"]] and chosen["instrument"] == "harp"
    assert receipt["audio_s"] == 4 and set(receipt["phases"]) == {"composing", "rendering"}
    assert sum(receipt["phases"].values()) <= receipt["times"]["run_s"]
    assert receipt["rate"] == {"value": pytest.approx(4 / receipt["times"]["run_s"]), "unit": "× real time"}
    assert receipt["used"] == "cpu" and receipt["engine"] == "onnxruntime"
    assert receipt["placement"]["on_device"] == 1 and "CPUExecutionProvider" in receipt["placement"]["evidence"]
    assert receipt["model_file"] == "step-host-fp32.onnx", "the file that was computed, not the folder"


def test_a_file_is_served_by_ranges(server: Server, made: dict[str, Any]) -> None:
    wav = made["output"]["artifacts"][[a["name"] for a in made["output"]["artifacts"]].index("tune.wav")]
    whole = server.http.get(wav["url"])
    assert whole.headers["accept-ranges"] == "bytes" and whole.headers["content-disposition"].startswith("inline")
    for asked, start, end in (
        ("0-99", 0, 100),
        ("1000-", 1000, wav["bytes"]),
        ("-50", wav["bytes"] - 50, wav["bytes"]),
    ):
        part = server.http.get(wav["url"], headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206 and part.content == whole.content[start:end]
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{wav['bytes']}"
    beyond = server.http.get(wav["url"], headers={"Range": f"bytes={wav['bytes']}-"})
    refused(beyond, 416, "range_not_satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{wav['bytes']}"


def test_other_kinds_of_files_come_where_they_are_asked_for(server: Server) -> None:
    job = tune(server, options={**SHORT, "formats": ["mp3", "abc", "ogg", "mp3"]})
    found = files(server, job)
    assert {artifact["name"]: artifact["media_type"] for artifact in job["output"]["artifacts"]} == {
        "tune.abc": "text/vnd.abc",
        "tune.mp3": "audio/mpeg",
        "tune.ogg": "audio/ogg",
    }
    for name in ("tune.mp3", "tune.ogg"):
        told = TinyTag.get(filename=name, file_obj=io.BytesIO(found[name]))
        assert told.duration == pytest.approx(4, abs=0.05) and told.title == "Jig in D major"
        assert "Model: folk-tunes. Licence of the model: Apache-2.0, sounds MIT. Seed: 5." in (told.comment or "")
    assert b"N:Model: folk-tunes" in found["tune.abc"]
    silent = tune(server, options={**SHORT, "formats": ["midi"]})
    assert set(files(server, silent)) == {"tune.mid"} and silent["receipt"]["rate"] is None
    for formats in (["mp4"], []):
        answer = server.http.post("/api/generate", json={"task": "music", "options": {"formats": formats}})
        assert "formats" in refused(answer, 422, "validation_error")["detail"]


@pytest.mark.parametrize("name", ["tune.mp3", "..%2f..%2fjobs.sqlite3", "%2e%2e", ".making", "tune.wav%00"])
def test_no_other_file_is_served(server: Server, made: dict[str, Any], name: str) -> None:
    answer = server.http.get(f"/api/jobs/{made['id']}/artifacts/{name}")
    assert answer.status_code == 404 and b"SQLite" not in answer.content


def test_events_tell_both_phases_and_each_file(server: Server) -> None:
    events = list(stream_events(server, {"task": "music", "prompt": "a jig", "options": {**SHORT, "bars": None}}))
    job = events[-1].data
    assert events[-1].event == "done" and text_of(events) == job["output"]["text"] != ""
    progress = [event.data for event in events if event.event == "progress" and event.data["phase"] != "queue"]
    for phase, unit in (("composing", "bars"), ("rendering", "seconds")):
        steps = [step for step in progress if step["phase"] == phase]
        assert steps[0]["done"] == 0 and steps[-1]["done"] == steps[-1]["total"] and steps[-1]["unit"] == unit
        assert steps[-1]["eta_s"] == 0
    told = [event.data for event in events if event.event == "artifact"]
    assert [{key: each[key] for key in ("name", "media_type", "bytes", "url")} for each in told] == job["output"][
        "artifacts"
    ]


def test_the_same_seed_gives_the_same_files_also_when_run_again(server: Server) -> None:
    first = tune(server, options=SHORT)
    again = server.http.post(f"/api/jobs/{first['id']}/rerun").json()
    again = server.until(again["id"], "done", "error")
    assert files(server, again) == files(server, first)
    assert again["receipt"]["chosen"] == first["receipt"]["chosen"]


def test_an_idempotency_key_gives_the_same_job(server: Server) -> None:
    body = {"task": "music", "options": {**SHORT, "backing": "none"}}
    first, second = (
        server.http.post("/api/generate", json=body, headers={"Idempotency-Key": "one tune"}).json() for _ in range(2)
    )
    assert first["id"] == second["id"] and files(server, second)


def test_variations_are_one_batch_with_files_of_their_own(server: Server) -> None:
    job = tune(server, options={**SHORT, "seconds": 3, "backing": "none", "variations": 3})
    found = files(server, job)
    assert set(found) == {name.replace("tune", f"tune-{number}") for name in KINDS for number in (1, 2, 3)}
    assert len({found[f"tune-{number}.mid"] for number in (1, 2, 3)}) == 3
    assert job["receipt"]["chosen"]["seeds"] == [5, 6, 7] and job["receipt"]["audio_s"] == 9


def test_deleting_a_job_deletes_its_files(server: Server) -> None:
    job = tune(server, options={**SHORT, "seconds": 3})
    folder = server.data_dir / "artifacts" / job["id"]
    assert {file.name for file in folder.iterdir()} == set(KINDS)
    assert server.http.delete(f"/api/jobs/{job['id']}").status_code == 204
    assert not folder.exists()
    assert server.http.get(job["output"]["artifacts"][0]["url"]).status_code == 404


def test_a_cancel_while_composing_is_heard_at_once(server: Server) -> None:
    job_id = begun(server, "composing", **LONG)
    start = time.monotonic()
    server.http.post(f"/api/jobs/{job_id}/cancel")
    job = server.until(job_id, "cancelled", "done", "error")
    assert job["status"] == "cancelled" and time.monotonic() - start < 5
    assert job["output"]["artifacts"] == [] and job["receipt"]["counts"]["tokens"] > 0
    assert not (server.data_dir / "artifacts" / job_id).exists()
    assert tune(server, options=SHORT)["receipt"]["worker_pid"] == job["receipt"]["worker_pid"], "no kill was needed"


def test_a_cancel_while_rendering_keeps_the_files_that_are_complete(server: Server) -> None:
    job_id = begun(server, "rendering", form="air", bars=16, tempo_bpm=30, variations=3)
    wait_for(lambda: any(each["name"] == "tune-1.svg" for each in server.job(job_id)["output"]["artifacts"]))
    server.http.post(f"/api/jobs/{job_id}/cancel")
    job = server.until(job_id, "cancelled", "done", "error")
    assert job["status"] == "cancelled" and "rendering" in job["receipt"]["phases"]
    found = files(server, job)
    assert "tune-1.mid" in found and "tune-3.wav" not in found
    assert {file.name for file in (server.data_dir / "artifacts" / job_id).iterdir()} == set(found)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"messages": [{"role": "user", "content": "a jig"}]}, "messages"),
        ({"inputs": {"audio": "1"}}, "inputs"),
        ({"options": {"max_tokens": 5}}, "options.max_tokens"),
        ({"options": {"form": "jig", "meter": "4/4"}}, "6/8"),
        ({"options": {"bars": 8, "seconds": 8}}, "bars and seconds are mutually exclusive"),
        ({"options": {"abc": "K:H"}}, "options.abc"),
        ({"prompt": "a strathspey in 3/4"}, "strathspey"),
        ({"prompt": "a jig of 900 bars"}, "options.bars"),
    ],
)
def test_what_cannot_be_is_refused_before_there_is_a_job(server: Server, body: dict[str, Any], told: str) -> None:
    before = server.http.get("/api/jobs?limit=1").json()["jobs"][0]["id"]
    answer = server.http.post("/api/generate", json={"task": "music", **body})
    problem = refused(answer, 422, "validation_error")
    assert told in problem["detail"] + problem["remedy"]
    assert server.http.get("/api/jobs?limit=1").json()["jobs"][0]["id"] == before


def test_neither_words_nor_options_are_needed(server: Server) -> None:
    sent = server.http.post("/api/generate", json={"model": "folk-tunes"}, headers=ASYNC).json()
    assert sent["task"] == "music" and sent["request"]["options"]["form"] == "any"
    server.http.post(f"/api/jobs/{sent['id']}/cancel")


def test_a_killed_server_leaves_only_whole_files_and_the_next_says_interrupted(launch: Callable[..., Server]) -> None:
    server = launch()
    server.http.get("/api/devices", params={"wait_s": 60})
    job_id = begun(server, "rendering", form="air", bars=16, tempo_bpm=30, variations=4)
    wait_for(lambda: server.job(job_id)["output"]["artifacts"])
    told = {each["name"] for each in server.job(job_id)["output"]["artifacts"]}
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(20)
    server = launch()
    job = server.job(job_id)
    assert job["status"] == "interrupted"
    found = files(server, job)
    assert set(found) <= {file.name for file in (server.data_dir / "artifacts" / job_id).iterdir()}
    assert not (server.data_dir / "artifacts" / job_id / ".making").exists()
    assert told - set(found) == set() or len(told - set(found)) <= 2, "only the last moment's events may be missing"
    assert [event.event for event in follow(server, job_id)][-1] == "interrupted"
