"""A page of another origin in a real browser can neither read from the server nor start jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.browser.browser_console import Console
from tests.browser.conftest import FOREIGN_NAME

pytestmark = pytest.mark.browser

ANY_MESSAGE = ""  # the browser reports each attempt that it or the server refused
LEAST_ATTEMPTS = 28


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    """Serves the hostile page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(Path(__file__).parent))) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        yield site.server_address[1]
        site.shutdown()
        thread.join(5)


@pytest.mark.parametrize("name", [FOREIGN_NAME, "127.0.0.1", "localhost"])
def test_a_foreign_page_reads_nothing_and_starts_nothing(
    page: Page, server: Any, console: Console, foreign_port: int, name: str
) -> None:
    console.expect(ANY_MESSAGE)
    before = server.http.get("/api/jobs?limit=1").json()
    page.goto(f"http://{name}:{foreign_port}/hostile.html?target={server.url}")
    page.wait_for_function("window.got", timeout=30_000)
    got = page.evaluate("window.got")
    assert len(got) >= LEAST_ATTEMPTS
    assert {attempt: what for attempt, what in got.items() if what is not None} == {}
    assert server.http.get("/api/jobs?limit=1").json() == before


def test_a_name_that_is_made_to_point_here_opens_nothing(page: Page, server: Any, console: Console) -> None:
    """DNS rebinding: for the browser the page and the API have one origin then."""
    console.expect(ANY_MESSAGE)
    port = urlsplit(server.url).port
    answer = page.goto(f"http://{FOREIGN_NAME}:{port}/")
    assert answer and answer.status == 421
    statuses = page.evaluate(
        """async () => {
            const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"prompt": "Hi"}' };
            const asked = [["/api/health"], ["/api/jobs"], ["/metrics"], ["/api/generate", post], ["/api/events"]];
            return await Promise.all(asked.map(async (one) => (await fetch(...one)).status));
        }"""
    )
    assert statuses == [421] * 5
