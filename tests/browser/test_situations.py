"""A table of situations of the page: in each it reports the state, keeps working, fits and is accessible.

Elsewhere: a token is needed (test_token), 20,000 tokens (test_long_answer), foreign text (test_untrusted_text), a line
that breaks (test_generate), a server that goes while the page is open (test_states).
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, ViewportSize, expect

from tests.browser import played_jobs
from tests.browser.browser_console import Console
from tests.browser.test_look import DESK, fits, violations
from tests.browser.touchstone_page import LONG_MS, LONG_STORY, TouchstonePage, play
from tests.service import wait_for

pytestmark = pytest.mark.browser

ZOOMED = ViewportSize(width=320, height=256)  # 1280 by 1024 at 400 %
NARROW = ViewportSize(width=320, height=640)
HEBREW = "שלום עולם, <b>not bold</b> 123."
TABS = 7


def gone(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    page.goto(touchstone.url)
    expect(page.locator("#health")).to_contain_text("Version")
    page.route("**/api/**", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#gone")).to_contain_text("The server cannot be reached")
    expect(page.locator("#gone")).to_contain_text("launch_wsl.sh")
    expect(touchstone.prompt).to_be_editable()


def slow(touchstone: TouchstonePage) -> None:
    """Devices are long in coming: the page is there, says what it waits for, and takes words meanwhile."""
    page, held, models, free = touchstone.page, list[Route](), list[Route](), threading.Event()
    page.route("**/api/devices*", lambda route: route.continue_() if free.is_set() else held.append(route))
    page.route("**/api/models", lambda route: models.append(route), times=1)  # noqa: PLW0108 (its signature is read)
    page.goto(touchstone.url)
    expect(page.locator("#device-hint")).to_have_text("Checking devices…")
    touchstone.prompt.fill("typed while it waits")
    for route in models:  # they come amid the typing, before what is typed is kept
        route.continue_()
    expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    free.set()
    for route in held:
        route.continue_()
    expect(page.locator("#device-hint")).to_contain_text("Auto would use")
    expect(touchstone.prompt).to_have_value("typed while it waits")


def right_to_left(touchstone: TouchstonePage) -> None:
    job = played_jobs.job(output={"text": HEBREW, "artifacts": []}, request={"prompt": HEBREW, "device": "cpu"})
    play(touchstone.page, job, [*played_jobs.tokens([HEBREW]), ("done", job)])
    touchstone.open().ask(HEBREW)
    touchstone.expect_end()
    assert touchstone.text() == HEBREW and touchstone.output.locator("b").count() == 0
    block = touchstone.output.locator("div").first
    assert block.evaluate("element => getComputedStyle(element).unicodeBidi") == "plaintext"


def five_hundred_jobs(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    jobs = [
        played_jobs.job(id=f"{number:021x}", request={"prompt": f"Wish number {number}", "device": "cpu"})
        for number in range(500, 0, -1)
    ]

    def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        before, limit = query.get("before", ["g"])[0], int(query["limit"][0])
        found = [job for job in jobs if job["id"] < before]
        rest = found[limit:]
        route.fulfill(json={"jobs": found[:limit], "next": found[limit - 1]["id"] if rest else None})

    page.route("**/api/jobs?*", answer)
    touchstone.open()
    rows = page.locator("#jobs [data-job]")
    expect(rows).to_have_count(8)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(48)
    page.get_by_label("Search", exact=True).fill("number WISH")
    expect(page.locator("#jobs-said")).to_have_text("500 jobs found.")
    page.get_by_label("Search", exact=True).fill("wish 39")
    expect(page.locator("#jobs-said")).to_have_text("17 jobs found.")  # by number or id
    page.get_by_label("Search", exact=True).fill("nothing of that kind")
    expect(page.locator("#jobs-said")).to_have_text("No jobs found.")


def look(**media: Any) -> Callable[[TouchstonePage], None]:
    def situation(touchstone: TouchstonePage) -> None:
        touchstone.page.emulate_media(**media)
        job = played_jobs.job(output={"text": "a stone", "artifacts": []})
        play(touchstone.page, job, [*played_jobs.tokens(["a stone"]), ("done", job)])
        touchstone.open().ask("played")
        touchstone.expect_end()
        if media.get("reduced_motion"):
            assert touchstone.page.evaluate("document.getAnimations().length") == 0
        for name in ("Generate", "Jobs", "Devices", "Models", "Runtimes"):
            touchstone.page.get_by_role("link", name=name, exact=True).click()

    return situation


SITUATIONS: dict[str, tuple[ViewportSize, Callable[[TouchstonePage], None]]] = {
    "gone": (DESK, gone),
    "slow": (DESK, slow),
    "right to left": (NARROW, right_to_left),
    "500 jobs": (DESK, five_hundred_jobs),
    "320 px, dark": (NARROW, look(color_scheme="dark")),
    "400 % zoom, light": (ZOOMED, look(color_scheme="light")),
    "reduced motion": (DESK, look(reduced_motion="reduce")),
    "forced colours": (DESK, look(forced_colors="active")),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_page_holds(touchstone: TouchstonePage, console: Console, name: str) -> None:
    console.expect("ERR_FAILED")
    size, situation = SITUATIONS[name]
    touchstone.page.set_viewport_size(size)
    situation(touchstone)
    assert violations(touchstone.page) == [] and fits(touchstone.page)


def test_without_scripts_a_command_is_shown(browser: Browser, server: Any) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(server.url)
    expect(page.locator("noscript pre")).to_contain_text("/api/generate")
    expect(page.get_by_role("button", name="Generate")).to_be_hidden()
    page.close()


def test_seven_tabs_follow_one_job_and_none_is_cut_off(touchstone: TouchstonePage) -> None:
    """A browser allows six connections a host: with a stream for each tab the seventh would wait for ever."""
    tabs = [touchstone, *(TouchstonePage(touchstone.page.context.new_page(), touchstone.url) for _ in range(TABS - 1))]
    for tab in tabs:
        tab.open()
    touchstone.ask(LONG_STORY, max_tokens=1500)
    touchstone.expect_text()
    job = touchstone.job_id
    for tab in tabs[1:]:
        tab.page.locator(f'#jobs [data-job="{job}"]').click()
    for tab in tabs:
        tab.expect_text()
    tabs[-1].stop.click()
    for tab in tabs:
        tab.expect_end("Stopped")
        expect(tab.page.locator(f'#jobs [data-job="{job}"] .state')).to_have_text("cancelled")
        assert tab.text() == touchstone.text() != ""


def test_a_killed_server_comes_back_and_the_page_tells_what_became_of_the_job(
    page: Page, console: Console, launch: Callable[..., Any]
) -> None:
    console.expect("ERR_")
    first = launch()
    port = str(urlsplit(first.url).port)
    touchstone = TouchstonePage(page, first.url).open().ask(LONG_STORY, max_tokens=1500)
    touchstone.expect_text()
    # What is not written yet would be lost.
    with contextlib.closing(sqlite3.connect(first.data_dir / "jobs.sqlite3")) as history:
        wait_for(lambda: history.execute("SELECT 1 FROM events WHERE pack LIKE '%\"token\"%'").fetchone())
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(20)
    expect(touchstone.status).to_contain_text("Reconnecting", timeout=LONG_MS)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#gone")).to_be_visible()
    launch("--port", port)
    touchstone.expect_end("Interrupted")
    expect(page.locator("#gone")).to_be_hidden(timeout=LONG_MS)
    expect(page.locator("#jobs li").first).to_contain_text("the server stopped during the job")
    assert touchstone.text() == touchstone.job()["output"]["text"]
    expect(touchstone.rerun).to_be_enabled()


def test_a_job_of_another_program_appears_and_ends_by_itself(touchstone: TouchstonePage, server: Any) -> None:
    touchstone.open()
    row = touchstone.page.locator("#jobs li").filter(has_text="asked by another program")
    thread = threading.Thread(
        target=lambda: server.generate(prompt="asked by another program", options={"max_tokens": 4})
    )
    thread.start()
    expect(row.first).to_be_visible(timeout=LONG_MS)
    expect(row.first.locator(".state")).to_have_text("done", timeout=LONG_MS)
    thread.join(30)
