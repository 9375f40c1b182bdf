"""The task lyrics through the API, with the real default model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import MODEL
from tests.refusals import refused
from tests.service import ROOT, Server, follow, stream_events, text_of

SONG = {"theme": "the sea", "style": "shanty", "sections": ["verse", "chorus", "verse", "chorus"]}
OPTIONS = {**SONG, "lines_per_section": 2, "seed": 3}


def lyrics(server: Server, **options: Any) -> dict[str, Any]:
    return server.generate(task="lyrics", options={**OPTIONS, **options})


def test_a_song_has_its_sections_and_its_receipt_counts_every_token(server: Server) -> None:
    job = lyrics(server)
    assert (job["status"], job["task"], job["model"]) == ("done", "lyrics", MODEL)
    text, song = job["output"]["text"], job["output"]["lyrics"]
    assert [line for line in text.split("\n") if line.startswith("[")] == [
        "[Verse 1]",
        "[Chorus]",
        "[Verse 2]",
        "[Chorus]",
    ]
    sections = song["sections"]
    assert [(part["kind"], len(part["lines"])) for part in sections] == [(kind, 2) for kind in SONG["sections"]]
    assert sections[1] == sections[3] and sections[0] != sections[2]
    assert [line["text"] for part in sections for line in part["lines"]] == [
        line for line in text.split("\n") if line and not line.startswith("[")
    ]
    assert all(line["syllables"] is None or line["syllables"] > 0 for part in sections for line in part["lines"])
    events = follow(server, job["id"])
    tokens = [event.data for event in events if event.event == "token"]
    assert text_of(events) == text
    assert sum(token["count"] for token in tokens) == job["receipt"]["counts"]["tokens"] > 0
    phases = [event.data["phase"] for event in events if event.event == "progress"]
    assert [name for name in dict.fromkeys(phases) if name not in ("load", "queue")] == ["verse 1", "chorus", "verse 2"]
    chosen = job["receipt"]["chosen"]
    assert chosen["lines"] == {"Verse 1": 2, "Chorus": 2, "Verse 2": 2} and not chosen["missing"]
    assert job["receipt"]["used"] == "cpu" and job["receipt"]["chat_template"] == "model"
    listed = server.http.get("/api/jobs?task=lyrics").json()["jobs"]
    assert next(one for one in listed if one["id"] == job["id"])["output"]["lyrics"] is None
    assert server.job(job["id"])["output"] == job["output"]


def test_the_same_seed_gives_the_same_song_and_another_another(server: Server) -> None:
    short = {"sections": ["verse"], "lines_per_section": 1}
    first, again = (lyrics(server, **short)["output"]["text"] for _ in range(2))
    assert first == again != lyrics(server, **short, seed=4)["output"]["text"]


def test_a_cancel_keeps_what_was_sung(server: Server) -> None:
    body = {"task": "lyrics", "options": {**OPTIONS, "sections": ["verse"] * 8, "lines_per_section": 8}}
    lines = 0
    for event in stream_events(server, body):
        lines += event.event == "token"
        if lines == 3 and event.event == "token":
            server.http.post(f"/api/jobs/{event.data['job_id']}/cancel")
    job = server.job(event.data["job_id"])
    assert (event.event, job["status"], job["output"]["finish_reason"]) == ("cancelled", "cancelled", "cancelled")
    assert job["output"]["text"].startswith("[Verse 1]\n")
    assert job["output"]["lyrics"]["sections"][0]["lines"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"options": {"sections": ["solo"]}}, "'solo'"),
        ({"options": {"raw": True}}, "raw"),
        ({"options": {"bars": 8}}, "bars"),
        ({"task": "text", "prompt": "x", "options": {"theme": "the sea"}}, "theme"),
        ({"model": "folk-tunes"}, "folk-tunes"),
    ],
)
def test_what_is_refused(server: Server, body: dict[str, Any], word: str) -> None:
    answer = server.http.post("/api/generate", json={"task": "lyrics", **body})
    assert word in refused(answer, 422, "validation_error")["detail"]


def test_callers_learn_the_options_and_who_serves_them(server: Server) -> None:
    models = {model["id"]: model for model in server.http.get("/api/models").json()["models"]}
    assert models[MODEL]["tasks"] == ["text", "lyrics"]
    assert models[MODEL]["options_schema"] == models[MODEL]["options_schemas"]["text"]
    assert {"theme", "sections", "seed"} <= set(models[MODEL]["options_schemas"]["lyrics"]["properties"])
    assert models["folk-tunes"]["tasks"] == ["music"]
    cpu = next(one for one in server.http.get("/api/devices").json()["devices"] if one["id"] == "cpu")
    assert "lyrics" in cpu["tasks"]


def test_the_command_line_writes_a_song(server: Server) -> None:
    command = [sys.executable, "-m", "backend", "generate", "--task", "lyrics", "--theme", "the sea", "--json"]
    environ = {**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir)}
    flags = ["--sections", "verse, chorus", "--lines-per-section", "1", "--seed", "3"]
    run = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, env=environ, timeout=120)
    assert run.returncode == 0, run.stderr
    assert [part["label"] for part in json.loads(run.stdout)["output"]["lyrics"]["sections"]] == ["Verse 1", "Chorus"]
