"""20,000 tokens: the page stays responsive, and a token late costs what a token early costs."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser import played_jobs
from tests.browser.stream_server import between, paced
from tests.browser.touchstone_page import TouchstonePage, play, stream

pytestmark = pytest.mark.browser

TOKENS = 20_000
LONGEST_BLOCK_MS = 100
WATCH = """
window.blocks = [];
new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.blocks.push(Math.round(entry.duration))))
  .observe({ type: "longtask", buffered: true });
"""


@pytest.mark.parametrize("word", [" stone", " line\n"], ids=["one paragraph", "many lines"])
def test_the_main_thread_is_never_held(touchstone: TouchstonePage, word: str) -> None:
    page, words = touchstone.page, [word] * TOKENS
    job = played_jobs.job(output={"text": "".join(words), "artifacts": []})
    play(page, job, [])
    events = stream([*played_jobs.tokens(words), ("done", job)]).encode()
    touchstone.open()
    page.evaluate(WATCH)
    with between(page, "played1", paced(events)):
        touchstone.ask("played")
        touchstone.expect_end()
    expect(touchstone.stop).to_have_attribute("aria-disabled", "true")
    assert touchstone.text() == "".join(words)
    blocks = page.evaluate("window.blocks")
    assert max(blocks, default=0) < LONGEST_BLOCK_MS, blocks
