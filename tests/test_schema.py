"""The golden file of shapes equals the code, and a real server's responses match it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from backend.common.types import EVENTS
from backend.server.openapi import shapes
from tests.service import Server, stream_events

SHAPES: dict[str, Any] = json.loads(shapes.FILE.read_text(encoding="utf-8"))


def fits(value: Any, name: str) -> None:
    jsonschema.validate(value, SHAPES[name])


def test_the_golden_file_is_what_the_code_says() -> None:
    assert shapes.FILE.read_text(encoding="utf-8") == shapes.text(), "run: python -m backend.server.openapi.shapes"


def test_every_event_has_a_shape() -> None:
    assert {name.removeprefix("event: ") for name in SHAPES if name.startswith("event: ")} == set(EVENTS)


def test_devices_and_models_fit(server: Server) -> None:
    found = server.http.get("/api/devices").json()
    for device in found["devices"]:
        fits(device, "Device")
    for hardware in found["hardware"]:
        fits(hardware, "Hardware")
    for model in server.http.get("/api/models").json()["models"]:
        fits(model, "Model")


def test_jobs_and_all_their_events_fit(server: Server) -> None:
    body = {"prompt": "Say hello.", "device": "cuda:0", "options": {"max_tokens": 8}}
    events = list(stream_events(server, body))
    for event in events:
        fits(event.data, f"event: {event.event}")
    assert {"queued", "running", "token", "fallback", "done"} <= {event.event for event in events}
    job = server.job(events[0].data["job_id"])
    fits(job, "Job")
    fits(job["receipt"], "Receipt")
    fits(server.http.get("/api/jobs").json()["jobs"][0], "Job")


def test_a_shape_refuses_what_does_not_fit(server: Server) -> None:
    device = server.http.get("/api/devices").json()["devices"][0]
    for spoilt in ({**device, "state": "fine"}, {name: value for name, value in device.items() if name != "reason"}):
        errors = list(jsonschema.Draft202012Validator(SHAPES["Device"]).iter_errors(spoilt))
        assert errors
