"""States of the page: devices, downloads, an unreachable server, missing evidence."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.browser import played_jobs
from tests.browser.stream_server import begin, between
from tests.browser.touchstone_page import TouchstonePage, play, stream

pytestmark = pytest.mark.browser


def change_answer(page: Page, path: str, change: Any) -> None:
    """Lets the real server answer and changes what the page gets to see of it."""

    def handle(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=change(answer.json()))

    page.route(path, handle)


def test_ready_devices_are_choices_the_others_stand_below(touchstone: TouchstonePage) -> None:
    found = touchstone.open().api("devices?wait_s=30")
    choices = touchstone.device.locator("option").evaluate_all("all => all.map((one) => one.value)")
    assert choices == ["auto", *choices[1:]]
    assert sorted(choices[1:]) == sorted(one["id"] for one in found["devices"] if one["state"] == "ready")
    expect(touchstone.device.locator("option").first).to_contain_text(found["default"])
    expect(touchstone.page.locator("#device-hint")).to_contain_text(found["default_reason"].rstrip("."))
    for device in found["devices"]:
        if device["state"] != "ready":
            reason, remedy = (device[key].rstrip(".").replace("`", "") for key in ("reason", "remedy"))
            row = touchstone.page.locator("#others-rows tr").filter(has_text=reason)
            expect(row.filter(has_text=remedy).filter(has_text=device["id"])).to_be_visible()


def broken_cpu(found: dict[str, Any]) -> dict[str, Any]:
    words = {"state": "broken", "proof": None, "reason": "The numbers were wrong.", "remedy": "Check the memory."}
    devices = [{**one, **words} for one in found["devices"]]
    return {**found, "devices": devices, "default": None, "default_reason": "No device is ready."}


def test_no_ready_device_is_said(touchstone: TouchstonePage) -> None:
    change_answer(touchstone.page, "**/api/devices*", broken_cpu)
    touchstone.open()
    expect(touchstone.device.locator("option")).to_have_text(["Auto (no device is ready)"])
    expect(touchstone.page.locator("#device-hint")).to_contain_text("Auto has no ready device")
    row = touchstone.page.locator("#others-rows tr").first
    for words in ("broken", "The numbers were wrong.", "Check the memory."):
        expect(row).to_contain_text(words)
    row.get_by_role("button", name="Select it anyway").click()
    expect(touchstone.device).to_be_focused()
    expect(touchstone.page.locator("#device-hint")).to_contain_text("The numbers were wrong.")
    expect(touchstone.page.locator("#device-hint")).to_contain_text("the CPU is not ready either")


def test_devices_under_test_are_waited_for(touchstone: TouchstonePage) -> None:
    def probing(route: Route) -> None:
        if "wait_s" in route.request.url:
            route.continue_()
        else:
            words: Any = {"devices": [], "hardware": [], "default": None, "default_reason": None, "probing": True}
            route.fulfill(json=words)

    touchstone.page.route("**/api/devices*", probing)
    touchstone.open()
    expect(touchstone.device.locator("option[value=cpu]")).to_be_attached()


def test_a_model_is_downloaded_from_the_page(touchstone: TouchstonePage) -> None:
    page, half_seen = touchstone.page, threading.Event()
    absent = {"state": "downloadable", "reason": "It is not on this machine yet.", "remedy": "Download it."}
    change_answer(page, "**/api/models", lambda found: {"models": [{**one, **absent} for one in found["models"]]})
    touchstone.open()
    expect(page.locator("#model-hint")).to_contain_text("It is not on this machine yet.")
    page.unroute("**/api/models")
    job = played_jobs.job(id="load1", task="download", receipt=None)
    half = ("progress", {"phase": "download", "done": 49, "total": 98, "unit": "bytes", "eta_s": 2.0})

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            assert route.request.post_data_json == {"source": touchstone.page.locator("#model").input_value()}
            route.fulfill(status=202, json={**job, "status": "queued"})
        else:
            route.continue_()  # the real server has the model

    def send(handler: BaseHTTPRequestHandler) -> None:
        first, whole = stream([half]).encode(), stream([half, ("done", job)]).encode()
        begin(handler)
        handler.wfile.write(first)
        handler.wfile.flush()
        half_seen.wait(30)
        handler.wfile.write(whole[len(first) :])

    page.route("**/api/models", answer)
    with between(page, "load1", send):
        page.locator("#download").get_by_role("button", name="Download").click()
        expect(page.locator("#download-progress")).to_have_js_property("position", 0.5)
        expect(page.locator("#download-words")).to_contain_text("Download: 49 bytes of 98 bytes (50 %), about 2 s left")
        half_seen.set()
        expect(page.locator("#download-progress")).to_be_hidden()
    expect(page.locator("#download")).to_be_hidden()
    expect(page.locator("#model-hint")).not_to_contain_text("not on this machine")


def test_a_server_that_is_away_is_said_and_comes_back(touchstone: TouchstonePage, offline: BrowserContext) -> None:
    touchstone.page.clock.install()
    touchstone.open()
    expect(touchstone.page.locator("#health")).to_contain_text("Version")
    offline.set_offline(True)
    touchstone.page.clock.run_for(11_000)
    gone = touchstone.page.locator("#gone")
    expect(gone).to_contain_text("The server cannot be reached")
    offline.set_offline(False)
    gone.get_by_role("button", name="Try now").click()
    expect(gone).to_be_hidden()
    expect(touchstone.page.locator("#health")).to_contain_text("Version")


def test_a_waiting_job_tells_its_place_as_it_changes(touchstone: TouchstonePage) -> None:
    moved = {"phase": "queue", "done": 0, "total": 3, "unit": "jobs", "eta_s": 12.0}
    waiting: list[tuple[str, dict[str, Any]]] = [("queued", {"position": 5}), ("progress", moved)]
    page, job, seen = touchstone.page, played_jobs.job(output={"text": "a", "artifacts": []}), threading.Event()

    def send(handler: BaseHTTPRequestHandler) -> None:
        first, whole = stream(waiting).encode(), stream([*waiting, *played_jobs.tokens(["a"]), ("done", job)]).encode()
        begin(handler)
        handler.wfile.write(first)
        handler.wfile.flush()
        seen.wait(30)
        handler.wfile.write(whole[len(first) :])

    play(page, job, [])
    with between(page, "played1", send):
        touchstone.open().ask("played")
        expect(touchstone.status).to_have_text("Queued: number 3 in line, about 12 s left.")
        expect(page.locator("#progress")).to_be_hidden()
        seen.set()
        touchstone.expect_end()


def test_without_evidence_nothing_is_claimed(touchstone: TouchstonePage) -> None:
    placement: dict[str, Any] = {"on_device": None, "parts": [], "evidence": "The engine printed no buffer sizes."}
    receipt = played_jobs.receipt(used=None, fell_back=None, placement=placement)
    job = played_jobs.job(receipt=receipt, output={"text": "a b", "artifacts": []})
    play(touchstone.page, job, [*played_jobs.tokens(["a", " b"]), ("done", job)])
    touchstone.open().ask("played")
    touchstone.expect_end()
    expect(touchstone.banner).to_contain_text("The device is unknown")
    expect(touchstone.banner).to_contain_text("The engine printed no buffer sizes.")
    expect(touchstone.receipt).to_contain_text("Not proved")


def test_a_fallback_on_the_way_clears_the_text_and_says_so(touchstone: TouchstonePage) -> None:
    words = {"from": "cuda:0", "to": "cpu", "code": "device_lost", "reason": "The card fell off the bus."}
    receipt = played_jobs.receipt(asked="cuda:0", resolved="cuda:0", fell_back=True, reason=words["reason"])
    job = played_jobs.job(receipt=receipt, output={"text": "new", "artifacts": []})
    play(touchstone.page, job, [*played_jobs.tokens(["old", " text"]), ("fallback", words),
                                *played_jobs.tokens(["new"]), ("done", job)])  # fmt: skip
    touchstone.open().ask("played")
    touchstone.expect_end()
    assert touchstone.text() == "new"
    expect(touchstone.banner).to_contain_text("cuda:0")
    expect(touchstone.banner).to_contain_text("ran on")
    expect(touchstone.banner).to_contain_text("The card fell off the bus.")


def test_a_failed_job_says_why_and_keeps_its_text(touchstone: TouchstonePage) -> None:
    problem = {"type": "about:blank", "title": "The worker process died", "status": 502, "code": "worker_crashed",
               "detail": "It was killed by signal 9.", "remedy": "Run the job again."}  # fmt: skip
    job = played_jobs.job(status="error", error=problem, output={"text": "half", "artifacts": []})
    play(touchstone.page, job, [*played_jobs.tokens(["half"]), ("error", problem)])
    touchstone.open().ask("played")
    touchstone.expect_end("Failed")
    expect(touchstone.alert).to_contain_text("It was killed by signal 9.")
    expect(touchstone.alert).to_contain_text("Run the job again.")
    expect(touchstone.alert).to_be_focused()
    expect(touchstone.rerun).to_be_enabled()
    assert touchstone.text() == "half"
