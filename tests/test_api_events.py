"""GET /api/events on a real server: one stream of all events, resumed by id, limited in number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from backend.common.types import Event
from tests.refusals import refused
from tests.service import Server, read_events, wait_for


def all_events(server: Server, **headers: str) -> Iterator[Event]:
    with httpx.stream("GET", f"{server.url}/api/events", headers=headers, timeout=60, trust_env=False) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        yield from read_events(answer.iter_lines())


def test_every_job_is_followed_in_one_stream_without_its_tokens(server: Server) -> None:
    events = all_events(server, **{"Last-Event-ID": "0"})
    ids = [server.generate(prompt="Say hello.", options={"max_tokens": 3})["id"] for _ in range(2)]
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        if event.event == "done" and event.data["job_id"] == ids[1]:
            break
    numbers = [event.id for event in seen]
    assert numbers == sorted(set(numbers))
    assert not [event for event in seen if event.event == "token"]
    for job_id in ids:
        assert [event.event for event in seen if event.data.get("job_id") == job_id][-1] == "done"
    again = all_events(server, **{"Last-Event-ID": str(numbers[-2])})
    assert next(again).id == numbers[-1], "a reconnect goes on where the line was cut"


def test_a_device_that_is_proved_again_is_told(server: Server) -> None:
    events = all_events(server, **{"Last-Event-ID": "0"})
    assert server.http.post("/api/devices/refresh").status_code == 202
    states = []
    for event in events:
        if event.event == "device" and event.data["id"] == "cpu":
            states.append(event.data["state"])
            if states[-2:] == ["probing", "ready"]:
                break
    server.http.get("/api/devices", params={"wait_s": 60})


@pytest.mark.parametrize("bad", ["x", "-1", "1e3", "٣"])
def test_a_bad_id_is_refused(server: Server, bad: str) -> None:
    refused(server.http.get("/api/events", params={"after": bad}), 422, "validation_error")


def test_one_stream_too_many_is_refused_before_there_is_a_job(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_SERVER__FOLLOWER_LIMIT": "2"})
    open_streams = [httpx.Client(base_url=server.url, trust_env=False, timeout=30) for _ in range(2)]
    answers = [client.send(client.build_request("GET", "/api/events"), stream=True) for client in open_streams]
    assert [answer.status_code for answer in answers] == [200, 200]
    problem = refused(server.http.get("/api/events"), 429, "queue_full")
    assert "2 event streams are open" in problem["detail"]
    before = len(server.http.get("/api/jobs").json()["jobs"])
    refused(server.http.post("/api/generate", json={"prompt": "Hi", "stream": True}), 429, "queue_full")
    assert len(server.http.get("/api/jobs").json()["jobs"]) == before
    assert server.generate(prompt="Hi", options={"max_tokens": 1})["status"] == "done", "waiting needs no stream"
    answers[0].close()
    open_streams[0].close()

    def follow_again() -> bool:
        with server.http.stream("GET", "/api/events") as answer:
            return answer.status_code == 200

    wait_for(follow_again)
    open_streams[1].close()
