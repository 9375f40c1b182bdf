"""Jobs over HTTP: history, events with resume, cancel in every phase, rerun, delete, and disconnecting clients."""

from __future__ import annotations

import http.client
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.common.types import ACTIVE, TERMINAL, Event
from tests.conftest import MODEL
from tests.refusals import refused
from tests.service import Server, follow, read_events, stream_events, text_of, wait_for

ASYNC = {"Prefer": "respond-async"}
SHORT = {"prompt": "Say hello.", "options": {"max_tokens": 4, "temperature": 0}}
LONG = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000, "temperature": 0}}
ABSENT = "0" * 21


def begin(server: Server, body: dict[str, Any], **headers: str) -> str:
    """Starts a job and returns its id."""
    answer = server.http.post("/api/generate", json=body, headers={**ASYNC, **headers})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def cancel(server: Server, job_id: str) -> dict[str, Any]:
    """Cancels a job and returns how it ended."""
    answer = server.http.post(f"/api/jobs/{job_id}/cancel")
    assert answer.status_code == 202, answer.text
    return server.until(job_id, *TERMINAL, limit_s=10)


@pytest.fixture
def long_job(server: Server) -> Iterator[str]:
    """A job that writes for minutes unless it is cancelled; it has written something."""
    job_id = begin(server, LONG)
    wait_for(lambda: server.job(job_id)["output"]["text"])
    yield job_id
    if server.job(job_id)["status"] in ACTIVE:
        cancel(server, job_id)


@pytest.fixture
def finished(server: Server) -> str:
    """A job that has ended."""
    return str(server.generate(**SHORT)["id"])


# The list


def test_the_list_is_newest_first_and_pages_by_before(server: Server) -> None:
    made = [begin(server, SHORT) for _ in range(5)]
    for job_id in made:
        server.until(job_id, "done")
    seen: list[str] = []
    before: dict[str, str] = {}
    while len(seen) < 6:
        page = server.http.get("/api/jobs", params={"limit": 2, **before}).json()
        assert len(page["jobs"]) <= 2
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
    assert seen[:5] == made[::-1]
    assert len(set(seen)) == len(seen)
    assert sorted(made) == made, "ids sort by creation"


def test_the_last_page_says_that_there_is_no_next(server: Server, finished: str) -> None:
    everything: list[str] = []
    before: str | None = None
    while True:
        page = server.http.get("/api/jobs", params={"limit": 200, **({"before": before} if before else {})}).json()
        everything += [job["id"] for job in page["jobs"]]
        before = page["next"]
        if before is None:
            break
    oldest = server.http.get("/api/jobs", params={"limit": 1, "before": everything[-1]}).json()
    assert oldest == {"jobs": [], "next": None}
    assert finished in everything


def test_a_deleted_job_is_still_a_place_to_page_from(server: Server) -> None:
    older, middle, newer = (str(server.generate(**SHORT)["id"]) for _ in range(3))
    assert server.http.delete(f"/api/jobs/{middle}").status_code == 204
    assert server.http.get("/api/jobs", params={"before": middle, "limit": 1}).json()["jobs"][0]["id"] == older
    assert server.http.get("/api/jobs", params={"limit": 1}).json()["jobs"][0]["id"] == newer


def test_text_stands_in_the_single_job_alone(server: Server, finished: str) -> None:
    listed = server.http.get("/api/jobs", params={"limit": 1}).json()["jobs"][0]
    single = server.job(finished)
    assert single["output"]["text"]
    assert listed == {**single, "output": {**single["output"], "text": None}}


def test_a_running_job_shows_its_text_alone_as_well(server: Server, long_job: str) -> None:
    listed = server.http.get("/api/jobs", params={"status": "running"}).json()["jobs"]
    assert [(job["id"], job["output"]["text"]) for job in listed] == [(long_job, None)]
    early = server.job(long_job)["output"]["text"]
    later = wait_for(lambda: (text := server.job(long_job)["output"]["text"]) != early and text)
    assert later.startswith(early)


def test_the_list_can_be_narrowed_by_status_and_task(server: Server, finished: str) -> None:
    def ids(**query: str) -> set[str]:
        jobs = server.http.get("/api/jobs", params={"limit": "200", **query}).json()["jobs"]
        return {job["id"] for job in jobs}

    waited = server.http.post(f"/api/models/{MODEL}/unload", json={}).json()["id"]
    server.until(waited, "done")
    assert finished in ids(status="done") and finished in ids(status="error,done") and finished in ids(task="text")
    assert finished not in ids(status="error") and finished not in ids(task="unload")
    assert waited in ids(task="unload") and waited not in ids(task="text")
    assert ids(task="unload", status="error") == set()


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"limit": "1.5"}, "limit"),
        ({"limit": ""}, "limit"),
        ({"status": "finished"}, "status"),
        ({"status": ""}, "status"),
        ({"status": "done,"}, "status"),
        ({"status": "DONE"}, "status"),
        ({"task": "poetry"}, "task"),
        ({"task": ""}, "task"),
        ({"before": "yesterday"}, "before"),
        ({"before": ""}, "before"),
    ],
)
def test_a_list_that_cannot_be_is_refused_by_name(server: Server, query: dict[str, str], name: str) -> None:
    assert name in refused(server.http.get("/api/jobs", params=query), 422, "validation_error")["detail"]


@pytest.mark.parametrize("job_id", [ABSENT, "x", "..%2F..", "%00", "%ED%A0%80", "'; DROP TABLE jobs; --"])
@pytest.mark.parametrize(
    ("method", "rest"),
    [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/rerun"), ("DELETE", "")],
)
def test_a_job_that_is_not_there_is_404_on_every_route(server: Server, method: str, rest: str, job_id: str) -> None:
    answer = server.http.request(method, f"/api/jobs/{job_id}{rest}")
    refused(answer, 404, "not_found" if "%2F" in job_id else "unknown_job")


# Events and resuming


def test_a_finished_job_resumes_at_every_point_without_loss_or_repeat(server: Server, finished: str) -> None:
    whole = follow(server, finished)
    assert [event.event for event in whole][0] == "queued" and whole[-1].event == "done"
    assert text_of(whole) == server.job(finished)["output"]["text"]
    for cut in range(whole[-1].id):
        rest = [event for event in whole if event.id > cut]
        assert follow(server, finished, after=cut) == rest
        with server.http.stream("GET", f"/api/jobs/{finished}/events", params={"after": cut}) as answer:
            assert list(read_events(answer.iter_lines())) == rest
            assert answer.headers["x-accel-buffering"] == "no"


def test_a_running_job_resumes_at_every_point_without_loss_or_repeat(server: Server) -> None:
    """Lines that are cut after each single event, until the end comes."""
    job_id = begin(server, {**SHORT, "options": {"max_tokens": 24, "temperature": 0}})
    seen: list[Event] = []
    while not seen or seen[-1].event not in TERMINAL:
        headers = {"Last-Event-ID": str(seen[-1].id)} if seen else {}
        with server.http.stream("GET", f"/api/jobs/{job_id}/events", headers=headers) as answer:
            assert answer.status_code == 200
            seen.append(next(read_events(answer.iter_lines())))
    assert seen == follow(server, job_id)
    assert len({event.id for event in seen}) == len(seen)
    assert text_of(seen) == server.job(job_id)["output"]["text"]
    assert server.job(job_id)["receipt"]["counts"]["tokens"] == 24, "leaving events never cancels"


def test_followers_that_join_at_different_moments_see_the_same(server: Server) -> None:
    job_id = begin(server, {**SHORT, "options": {"max_tokens": 32, "temperature": 0}})
    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(follow, server, job_id) for _ in range(2)]
        wait_for(lambda: server.job(job_id)["output"]["text"])
        second = [pool.submit(follow, server, job_id) for _ in range(2)]
        views = [future.result() for future in [*first, *second]]
    assert views[0] == views[1] == views[2] == views[3] == follow(server, job_id)


def test_the_last_event_id_wins_over_the_address(server: Server, finished: str) -> None:
    """A browser's EventSource keeps the address when it reconnects."""
    with server.http.stream(
        "GET", f"/api/jobs/{finished}/events", params={"after": 1}, headers={"Last-Event-ID": "3"}
    ) as answer:
        assert next(read_events(answer.iter_lines())).id == 4


def test_whoever_saw_the_end_gets_204(server: Server, finished: str) -> None:
    end = follow(server, finished)[-1].id
    for after in (end, end + 1, 999_999_999_999):
        answer = server.http.get(f"/api/jobs/{finished}/events", headers={"Last-Event-ID": str(after)})
        assert (answer.status_code, answer.content) == (204, b"")
        assert server.http.get(f"/api/jobs/{finished}/events", params={"after": after}).status_code == 204


def test_a_reconnect_right_after_the_end_gets_204(server: Server) -> None:
    for _ in range(5):
        last = list(stream_events(server, SHORT))[-1]
        path = f"/api/jobs/{last.data['job_id']}/events"
        assert server.http.get(path, headers={"Last-Event-ID": str(last.id)}).status_code == 204


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "1e3", " ", "0x1", "9" * 40, "१", "+1"])
def test_an_event_id_that_is_none_is_refused(server: Server, finished: str, after: str) -> None:
    refused(server.http.get(f"/api/jobs/{finished}/events", params={"after": after}), 422, "validation_error")
    if after.strip() and after.isascii():
        headers = {"Last-Event-ID": after}
        refused(server.http.get(f"/api/jobs/{finished}/events", headers=headers), 422, "validation_error")


# Cancel


def test_cancel_while_queued_ends_a_job_that_never_ran(server: Server, long_job: str) -> None:
    waiting = begin(server, SHORT)
    job = cancel(server, waiting)
    assert (job["status"], job["output"]["text"], job["receipt"], job["error"]) == ("cancelled", None, None, None)
    names = [event.event for event in follow(server, waiting)]
    assert (names[0], names[-1]) == ("queued", "cancelled") and not {"loading", "running"} & set(names)
    assert server.job(long_job)["status"] == "running"


def test_cancel_while_loading_frees_the_lane(server: Server) -> None:
    server.until(server.http.post(f"/api/models/{MODEL}/unload").json()["id"], "done")
    names: list[str] = []
    for event in stream_events(server, SHORT):
        names.append(event.event)
        if event.event == "loading":
            cancel(server, event.data["job_id"])
    assert names == ["queued", "loading", "cancelled"]
    assert server.generate(**SHORT)["status"] == "done"


def test_cancel_in_the_middle_of_the_prompt_ends_within_a_chunk(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_SUPERVISION__CANCEL_S": "60"})  # never by force, however slow the machine
    body = {"prompt": "word " * 3000, "options": {"max_tokens": 4}}
    names: list[str] = []
    for event in stream_events(server, body):
        if event.event == "progress" and "progress" not in names:
            assert event.data["done"] < event.data["total"]
            cancel(server, event.data["job_id"])
        names.append(event.event)
    assert names[-1] == "cancelled" and "token" not in names
    job = server.generate(**SHORT)
    assert (job["status"], job["receipt"]["times"]["load_s"]) == ("done", 0.0), "the worker lives on"


def test_cancel_while_writing_keeps_the_text_so_far_and_frees_the_lane(server: Server, long_job: str) -> None:
    job = cancel(server, long_job)
    assert job["status"] == "cancelled"
    assert job["error"] is None
    assert job["output"]["text"] == text_of(follow(server, long_job))
    assert job["output"]["finish_reason"] == "cancelled"
    assert job["receipt"]["used"] == "cpu"
    last = follow(server, long_job)[-1]
    assert last.event == "cancelled" and last.data["output"] == job["output"]
    after = server.generate(**SHORT)
    assert after["status"] == "done" and after["receipt"]["times"]["queued_s"] < 1


def test_cancel_may_be_repeated_until_the_end_and_is_refused_after_it(server: Server, long_job: str) -> None:
    for _ in range(3):
        answer = server.http.post(f"/api/jobs/{long_job}/cancel")
        if answer.status_code != 202:
            break
        assert answer.json()["id"] == long_job
    server.until(long_job, "cancelled")
    refused(server.http.post(f"/api/jobs/{long_job}/cancel"), 409, "job_finished")


def test_two_cancels_at_once_are_both_accepted(server: Server, long_job: str) -> None:
    """Another job stands before it, so that the first cancel cannot end it before the second arrives."""
    waiting = begin(server, SHORT)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: httpx.post(f"{server.url}/api/jobs/{waiting}/cancel"), range(2)))
    assert {answer.status_code for answer in answers} <= {202, 409} and 202 in {a.status_code for a in answers}
    assert server.until(waiting, *TERMINAL)["status"] == "cancelled"
    assert server.job(long_job)["status"] == "running"


def test_cancel_after_the_end_is_refused(server: Server, finished: str) -> None:
    assert "done" in refused(server.http.post(f"/api/jobs/{finished}/cancel"), 409, "job_finished")["detail"]


def test_a_waiting_post_whose_job_is_cancelled_says_so(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        prompt = f"{LONG['prompt']} Cancelled while awaited."  # its answer is long: no other end comes first
        waiting = pool.submit(server.http.post, "/api/generate", json={**LONG, "prompt": prompt})
        job_id = wait_for(lambda: running(server, prompt))
        cancel(server, job_id)
        problem = refused(waiting.result(), 409, "job_cancelled")
    assert problem["job"] == server.job(job_id)


# Delete and rerun


def test_delete_forgets_a_job_and_its_events(server: Server, finished: str) -> None:
    answer = server.http.delete(f"/api/jobs/{finished}")
    assert (answer.status_code, answer.content) == (204, b"")
    refused(server.http.get(f"/api/jobs/{finished}"), 404, "unknown_job")
    refused(server.http.delete(f"/api/jobs/{finished}"), 404, "unknown_job")
    with sqlite3.connect(server.data_dir / "jobs.sqlite3") as database:
        left = database.execute("SELECT count(*) FROM events WHERE job = ?", [finished]).fetchone()
    database.close()
    assert left == (0,)


def test_a_living_job_cannot_be_deleted(server: Server, long_job: str) -> None:
    waiting = begin(server, SHORT)
    for job_id in (long_job, waiting):
        refused(server.http.delete(f"/api/jobs/{job_id}"), 409, "job_active")
    cancel(server, waiting)
    assert server.http.delete(f"/api/jobs/{waiting}").status_code == 204


def test_rerun_is_a_new_job_with_the_same_request(server: Server) -> None:
    options = {"max_tokens": 4, "seed": 5, "stop": ["zzz"]}
    first = server.generate(messages=[{"role": "user", "content": "Hi."}], options=options, device="cuda:0")
    answer = server.http.post(f"/api/jobs/{first['id']}/rerun")
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/jobs/{answer.json()['id']}"
    second = server.until(answer.json()["id"], *TERMINAL)
    assert second["id"] != first["id"]
    assert second["request"] == first["request"]
    assert second["output"] == first["output"]
    assert second["receipt"]["asked"] == "cuda:0"


def test_rerun_may_ask_for_another_device(server: Server, finished: str) -> None:
    answer = server.http.post(f"/api/jobs/{finished}/rerun", json={"device": "cuda:3"})
    receipt = server.until(answer.json()["id"], "done")["receipt"]
    assert (receipt["asked"], receipt["used"]) == ("cuda:3", "cpu")


def test_rerun_refuses_what_cannot_be(server: Server, finished: str) -> None:
    path = f"/api/jobs/{finished}/rerun"
    refused(server.http.post(path, json={"device": "warp"}), 404, "unknown_device")
    refused(server.http.post(path, json={"devices": "cpu"}), 422, "validation_error")
    refused(server.http.post(path, json={"device": 1}), 422, "validation_error")
    refused(server.http.post(path, json=[]), 422, "validation_error")
    unload = server.http.post(f"/api/models/{MODEL}/unload").json()["id"]
    server.until(unload, "done")
    refused(server.http.post(f"/api/jobs/{unload}/rerun"), 422, "validation_error")


def test_the_same_idempotency_key_twice_at_once_makes_one_job(server: Server) -> None:
    barrier = threading.Barrier(4)

    def post(_: int) -> httpx.Response:
        barrier.wait()
        headers = {**ASYNC, "Idempotency-Key": "at-once"}
        return httpx.post(f"{server.url}/api/generate", json=SHORT, headers=headers)

    with ThreadPoolExecutor(4) as pool:
        ids = {answer.json()["id"] for answer in pool.map(post, range(4))}
    assert len(ids) == 1
    assert server.until(ids.pop(), *TERMINAL)["status"] == "done"


# Who leaves


def running(server: Server, prompt: str, status: str = "running") -> str | None:
    """The id of the job in that state with this prompt."""
    jobs = server.http.get("/api/jobs", params={"status": status}).json()["jobs"]
    return next((job["id"] for job in jobs if job["request"].get("prompt") == prompt), None)


def post_raw(server: Server, body: dict[str, Any]) -> http.client.HTTPConnection:
    """Sends a request and leaves the answer unread."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", "/api/generate", json.dumps(body), {"Content-Type": "application/json"})
    return connection


@pytest.mark.parametrize("stream", [False, True], ids=["waiting", "stream"])
def test_leaving_a_post_cancels_its_job(server: Server, stream: bool) -> None:
    prompt = f"Left alone, stream {stream}."
    connection = post_raw(server, {**LONG, "prompt": prompt, "stream": stream})
    job_id = wait_for(lambda: running(server, prompt))
    connection.close()
    job = server.until(job_id, *TERMINAL, limit_s=10)
    assert job["status"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True], ids=["waiting", "stream"])
def test_leaving_a_post_whose_job_still_waits_cancels_it_as_well(server: Server, long_job: str, stream: bool) -> None:
    prompt = f"Left in the queue, stream {stream}."
    connection = post_raw(server, {**SHORT, "prompt": prompt, "stream": stream})
    job_id = wait_for(lambda: running(server, prompt, "queued"))
    connection.close()
    assert server.until(job_id, *TERMINAL, limit_s=10)["status"] == "cancelled"
    assert server.job(long_job)["status"] == "running"


def test_leaving_a_stream_after_its_first_token_stops_the_writing(server: Server) -> None:
    for event in stream_events(server, LONG):
        if event.event == "token":
            job_id = event.data["job_id"]
            break
    job = server.until(job_id, *TERMINAL, limit_s=10)
    assert job["status"] == "cancelled"
    assert job["receipt"]["counts"]["tokens"] < 1000


def test_leaving_the_events_cancels_nothing(server: Server, long_job: str) -> None:
    with server.http.stream("GET", f"/api/jobs/{long_job}/events") as answer:
        next(read_events(answer.iter_lines()))
    text = server.job(long_job)["output"]["text"]
    assert wait_for(lambda: len(server.job(long_job)["output"]["text"]) > len(text) + 20)
    assert server.job(long_job)["status"] == "running"


def test_a_repeat_of_an_idempotency_key_that_leaves_cancels_nothing(server: Server) -> None:
    headers = {"Idempotency-Key": "mine-not-yours"}
    body = {**LONG, "prompt": "Not the repeat's to cancel."}
    job_id = begin(server, body, **headers)
    wait_for(lambda: server.job(job_id)["output"]["text"])
    with server.http.stream("POST", "/api/generate", json={**body, "stream": True}, headers=headers) as answer:
        assert next(read_events(answer.iter_lines())).data["job_id"] == job_id
    text = server.job(job_id)["output"]["text"]
    assert wait_for(lambda: len(server.job(job_id)["output"]["text"]) > len(text) + 20)
    assert cancel(server, job_id)["status"] == "cancelled"


# A full queue


def test_a_full_queue_is_refused_with_the_time_to_wait(launch: Callable[..., Server], tmp_path: Path) -> None:
    server = launch(environ={"TOUCHSTONE_QUEUE__LIMIT": "2"})
    first = begin(server, LONG)
    server.until(first, "running")
    for _ in range(2):
        begin(server, SHORT)
    answer = server.http.post("/api/generate", json=SHORT)
    refused(answer, 429, "queue_full")
    assert int(answer.headers["retry-after"]) > 0
    cancel(server, first)
    wait_for(lambda: server.http.get("/api/health").json()["jobs"]["queued"] == 0)
    assert server.http.post("/api/generate", json=SHORT).status_code == 200
