"""The models on the page: the recommended one, search of Hugging Face, and downloads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Route, expect

from tests.browser.browser_console import Console
from tests.browser.touchstone_page import TouchstonePage

pytestmark = pytest.mark.browser
FILE = {
    "name": "Tiny-Q4_K_M.gguf",
    "source": "hf:maker/Tiny-GGUF/Tiny-Q4_K_M.gguf",
    "bytes": 2_500_000_000,
    "parts": 1,
    "quantization": "Q4_K_M",
    "fits": [
        {"device": "cpu", "fits": "no", "reason": "only 1.0 GB usable."},
        {"device": "cuda:0", "fits": "partly", "reason": "about 60% of its layers fit."},
    ],
}
FOUND = {
    "source": "hf:maker/Tiny-GGUF",
    "name": "Tiny-GGUF",
    "author": "maker",
    "downloads": 1_234_567,
    "likes": 12,
    "licence": "apache-2.0",
    "updated_at": "2026-11-01T10:20:30.000Z",
    "gated": False,
    "page": "https://huggingface.co/maker/Tiny-GGUF",
    "reason": None,
    "files": [FILE],
}
GATED = FOUND | {"name": "<b>Closed</b>", "gated": True, "page": "https://huggingface.co/maker/closed", "files": []}


def answered(page: TouchstonePage, *results: dict[str, Any], status: int = 200, **problem: object) -> list[str]:
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=status, json=problem or {"results": results})

    page.page.route("**/api/models/search*", answer)
    return asked


def test_a_search_shows_size_and_fit_and_one_press_downloads(touchstone: TouchstonePage) -> None:
    asked, sent = answered(touchstone, FOUND, GATED), list[Any]()

    def add(route: Route) -> None:
        if route.request.method != "POST":
            route.fallback()
            return
        sent.append(json.loads(route.request.post_data or ""))
        route.fulfill(status=202, json={"id": "j", "model": "tiny", "task": "download", "status": "queued"})

    touchstone.page.route("**/api/models", add)
    touchstone.open()
    touchstone.page.get_by_label("Search Hugging Face", exact=True).fill("tiny & 4b")
    touchstone.page.get_by_role("button", name="Search", exact=True).click()
    expect(touchstone.page.locator("#search-said")).to_have_text("2 repositories found.")
    assert asked[0].endswith("?q=tiny%20%26%204b")
    found = touchstone.page.locator("#found > li")
    expect(found.first).to_contain_text("maker/Tiny-GGUF")
    expect(found.first).to_contain_text("1.2M downloads · 12 likes · apache-2.0 · updated 2026-11-01")
    expect(found.last).to_contain_text("<b>Closed</b>")
    expect(found.last.get_by_role("link")).to_have_attribute("href", str(GATED["page"]))
    found.first.locator("summary").click()
    expect(found.first).to_contain_text("Q4_K_M · 2.5 GB · fits partly cuda:0")
    expect(found.first).to_contain_text("about 60% of its layers fit.")
    assert Axe().run(touchstone.page, context="#models-part").response["violations"] == []
    found.first.get_by_role("button", name="Download Tiny-Q4_K_M.gguf").click()
    expect(touchstone.page.locator("#model-said")).to_have_text(f"Downloading {FILE['source']}…")
    assert sent == [{"source": FILE["source"]}]


@pytest.mark.parametrize(
    ("status", "problem", "words"),
    [
        (503, {"code": "search_unavailable", "detail": "HF_HUB_OFFLINE is set.", "remedy": "Unset it."}, "Unset it."),
        (200, {}, "Nothing was found. Use fewer words."),
    ],
)
def test_a_search_without_results_says_why(
    touchstone: TouchstonePage, console: Console, status: int, problem: dict[str, object], words: str
) -> None:
    if problem:
        console.expect("503")
    answered(touchstone, status=status, **problem)
    touchstone.open()
    touchstone.page.get_by_label("Search Hugging Face", exact=True).fill("tiny")
    touchstone.page.get_by_label("Search Hugging Face", exact=True).press("Enter")
    expect(touchstone.page.locator("#search-said")).to_contain_text(words)
    expect(touchstone.page.locator("#found > li")).to_have_count(0)


def test_the_recommended_model_is_offered_with_size_and_time(touchstone: TouchstonePage) -> None:
    touchstone.open()
    found = touchstone.api("models")["recommended"]
    offer = touchstone.page.locator("#model-offer")
    expect(offer).to_contain_text(f"Recommended for this machine: {found['name']}. {found['reason']}")
    expect(offer).to_contain_text("min at 100 Mbit/s")
    expect(offer.get_by_role("button", name=f"Download {found['name']}")).to_be_visible()
    expect(touchstone.page.locator("#model option:checked")).to_contain_text("test model")
