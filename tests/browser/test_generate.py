"""One job on the page with the real model: choose, generate, watch, read the receipt, cancel, rerun."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.browser_console import Console
from tests.browser.stream_server import CutOnce, between
from tests.browser.touchstone_page import ABSENT, LONG_MS, LONG_STORY, TouchstonePage

pytestmark = pytest.mark.browser


def test_cpu_generates_streams_and_shows_its_receipt(touchstone: TouchstonePage) -> None:
    touchstone.open().device.select_option("cpu")
    touchstone.ask(LONG_STORY, max_tokens=120, seed=1)
    touchstone.expect_text()
    early = touchstone.text()
    touchstone.expect_end()
    whole, job = touchstone.text(), touchstone.job()
    assert whole.startswith(early) and len(early) < len(whole)
    assert whole == job["output"]["text"]
    assert job["request"]["device"] == "cpu"
    assert {"max_tokens": 120, "seed": 1}.items() <= job["request"]["options"].items()
    expect(touchstone.status).to_contain_text(f"{job['receipt']['counts']['tokens']} tokens")
    expect(touchstone.receipt.get_by_role("heading")).to_have_text(re.compile(r"^Ran on .*cpu\)?, as requested$"))
    expect(touchstone.banner).to_be_hidden()
    touchstone.open_receipt()
    expect(touchstone.row("Used").get_by_role("cell")).to_have_text("cpu")
    expect(touchstone.row("Evidence").get_by_role("cell")).to_have_text(job["receipt"]["placement"]["evidence"])


def test_stop_ends_the_job_and_keeps_the_text(touchstone: TouchstonePage) -> None:
    touchstone.open().ask(LONG_STORY, max_tokens=2000)
    touchstone.expect_text()
    touchstone.stop.click()
    touchstone.expect_end("Stopped")
    job = touchstone.job()
    assert job["status"] == "cancelled"
    expect(touchstone.receipt.get_by_role("heading")).to_contain_text("until it was stopped")
    assert touchstone.text() == job["output"]["text"] != ""


def test_keyboard_alone_is_enough(touchstone: TouchstonePage) -> None:
    page = touchstone.open().page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the prompt")).to_be_focused()
    for name in ("Generate", "Jobs", "Devices", "Models", "Runtimes"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    expect(touchstone.device).to_be_focused()
    page.keyboard.type("cpu")
    expect(touchstone.device).to_have_value("cpu")
    for _ in range(10):
        if touchstone.prompt.evaluate("field => field === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.type(LONG_STORY)
    page.keyboard.press("Control+Enter")
    touchstone.expect_text()
    expect(touchstone.prompt).to_be_focused()
    page.keyboard.press("Escape")
    touchstone.expect_end("(Stopped|Done)")
    assert touchstone.job()["request"]["device"] == "cpu"


def test_run_again_makes_a_new_job_of_the_same_request(touchstone: TouchstonePage) -> None:
    touchstone.open().ask("Say hello.", max_tokens=8, seed=3)
    touchstone.expect_end()
    first = touchstone.job()
    touchstone.rerun.click()
    expect(touchstone.page.locator("#jobs [data-job]")).not_to_have_count(1)
    touchstone.expect_end()
    second = touchstone.job()
    assert second["id"] != first["id"]
    assert second["request"]["prompt"] == first["request"]["prompt"]


def test_a_job_of_the_list_is_shown_again(touchstone: TouchstonePage) -> None:
    touchstone.open().ask("The first of two prompts.", max_tokens=8)
    touchstone.expect_end()
    first = touchstone.job()
    touchstone.ask("The second of two prompts.")
    expect(touchstone.page.locator("#asked")).to_have_text("The second of two prompts.")
    touchstone.expect_end()
    touchstone.page.get_by_role("button", name="The first of two prompts.").first.click()
    expect(touchstone.page.locator("#asked")).to_have_text("The first of two prompts.")
    assert touchstone.job_id == first["id"]
    assert touchstone.text() == first["output"]["text"]


def test_an_absent_device_falls_back_and_says_so(touchstone: TouchstonePage) -> None:
    touchstone.open(f"?device={ABSENT}&fallback=cpu")
    expect(touchstone.device).to_have_value(ABSENT)
    expect(touchstone.page.locator("#device-hint")).to_contain_text(f"{ABSENT} is not ready")
    touchstone.ask("Say hello.", max_tokens=8)
    touchstone.expect_end()
    job = touchstone.job()
    assert job["request"]["device"] == ABSENT and job["receipt"]["used"] == "cpu" and job["receipt"]["fell_back"]
    expect(touchstone.banner).to_contain_text(f"Requested {ABSENT}, ran on")
    expect(touchstone.banner).to_contain_text("cpu")
    expect(touchstone.banner).to_contain_text(job["receipt"]["reason"].rstrip("."))


def test_never_is_refused_with_reason_and_remedy(touchstone: TouchstonePage, console: Console) -> None:
    console.expect("409")
    touchstone.open(f"?device={ABSENT}&fallback=never").ask("Say hello.")
    expect(touchstone.alert).to_be_visible()
    expect(touchstone.alert).to_be_focused()
    expect(touchstone.alert).to_have_attribute("role", "alert")
    body = {"device": ABSENT, "fallback": "never", "prompt": "Say hello."}
    answer = touchstone.page.request.post(f"{touchstone.url}/api/generate", data=body)
    assert answer.status == 409
    problem = answer.json()
    expect(touchstone.alert.locator(".detail")).to_contain_text(problem["detail"].rstrip("."))
    expect(touchstone.alert.locator(".remedy")).to_contain_text(problem["remedy"].rstrip("."))
    expect(touchstone.output).to_be_hidden()


@pytest.mark.parametrize("replays", [False, True], ids=["resumes", "replays"])
def test_a_cut_line_is_taken_up_again(touchstone: TouchstonePage, replays: bool) -> None:
    line = CutOnce(touchstone.url, after_bytes=5000, replays=replays)
    with between(touchstone.page, "*", line):
        touchstone.open().ask(LONG_STORY, max_tokens=200)
        expect(touchstone.status).to_contain_text("Reconnecting", timeout=LONG_MS)
        touchstone.expect_end()
    assert len(line.resumed_after) > 1 and line.resumed_after[0] is None and line.resumed_after[1]
    assert touchstone.text() == touchstone.job()["output"]["text"] != ""
