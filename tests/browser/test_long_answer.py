"""20,000 tokens: the page stays responsive, and late tokens cost no more than early ones.

Measured as processor time of the page's main thread, task by task, so that a busy machine does not count against it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import played_jobs
from tests.browser.stream_server import between, paced
from tests.browser.touchstone_page import TouchstonePage, play, stream

pytestmark = pytest.mark.browser

TOKENS = 20_000
LONGEST_TASK_MS = 100
MOST_GROWTH = 2.0


def tasks(trace: bytes) -> list[tuple[float, float]]:
    """Start and processor time, in ms, of each task on the main thread of the busiest page."""
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {
        (event["pid"], event["tid"]): []
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    for event in events:
        if event["name"].endswith("RunTask") and "tdur" in event and (event["pid"], event["tid"]) in threads:
            threads[event["pid"], event["tid"]].append((event["ts"] / 1000, event["tdur"] / 1000))
    return max(threads.values(), key=lambda found: sum(cost for _, cost in found))


@pytest.mark.parametrize("word", [" stone", " line\n"], ids=["one paragraph", "many lines"])
def test_the_main_thread_is_never_held(touchstone: TouchstonePage, browser: Browser, word: str) -> None:
    page, words = touchstone.page, [word] * TOKENS
    job = played_jobs.job(output={"text": "".join(words), "artifacts": []})
    play(page, job, [])
    events = stream([*played_jobs.tokens(words), ("done", job)]).encode()
    touchstone.open()
    with between(page, "played1", paced(events)):
        touchstone.prompt.fill("played")
        browser.start_tracing(page=page, categories=["toplevel"])
        touchstone.generate.click()
        touchstone.expect_end()
        found = tasks(browser.stop_tracing())
    expect(touchstone.stop).to_have_attribute("aria-disabled", "true")
    assert touchstone.text() == "".join(words)
    assert len(found) > 100 and max(cost for _, cost in found) < LONGEST_TASK_MS
    middle = (found[0][0] + found[-1][0]) / 2
    early = sum(cost for start, cost in found if start < middle)
    assert sum(cost for start, cost in found if start >= middle) < MOST_GROWTH * early
