"""Help with the choice: presets, lyrics, what each device offers, measured speeds, and notes on slow devices."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from backend.common.types import Model, Speed
from tests.browser import played_jobs
from tests.browser.test_look import violations
from tests.browser.test_machine import CARD, CHIP, CPU, VULKAN
from tests.browser.touchstone_page import TouchstonePage, play

pytestmark = pytest.mark.browser

MODEL = "smollm2-135m-instruct"
AT = "2026-01-01T00:00:00.000Z"


def show(page: Page, **more: Any) -> None:
    """A machine with two devices whose speeds were measured."""
    cpu = replace(
        CPU,
        memory_free_bytes=12_000_000_000,
        engines=["llama.cpp"],
        speed=[Speed(MODEL, "llama.cpp", 90.0, "tokens/s", AT)],
    )
    card = replace(
        VULKAN,
        memory_free_bytes=3_000_000_000,
        engines=["llama.cpp"],
        speed=[Speed(MODEL, "llama.cpp", 30.0, "tokens/s", AT)],
    )
    found: dict[str, Any] = {
        "devices": [asdict(cpu), asdict(card)],
        "hardware": [asdict(CHIP), asdict(CARD)],
        "default": "cpu",
        "default_reason": "It was the fastest.",
        "probing": False,
        "loaded": [],
        **more,
    }
    page.route("**/api/devices*", lambda route: route.fulfill(json=found))


def test_one_press_makes_a_text(touchstone: TouchstonePage) -> None:
    touchstone.open().page.get_by_role("button", name="Chat").click()
    touchstone.expect_text()
    touchstone.stop.click()
    touchstone.expect_end("(Stopped|Done)")
    assert "touchstone" in touchstone.job()["request"]["prompt"]
    expect(touchstone.page.get_by_role("button", name="Chat")).to_be_hidden()


def test_lyrics_from_fields_with_a_plain_word_on_small_models_and_a_song_of_them(touchstone: TouchstonePage) -> None:
    page = touchstone.open().page
    page.get_by_role("radio", name="Lyrics").check()
    expect(page.locator("#task-note")).to_contain_text("seldom rhyme")
    page.get_by_role("textbox", name="Theme").fill("a lighthouse")
    page.get_by_role("textbox", name="Style").fill("sea shanty")
    page.get_by_role("textbox", name="Sections").fill("verse\nchorus")
    page.get_by_label("Lines per section").fill("1")
    page.get_by_label("More instructions (optional)").fill("Name the keeper.")
    touchstone.generate.click()
    touchstone.expect_end()
    job = touchstone.job()
    assert (job["task"], job["request"]["prompt"]) == ("lyrics", "Name the keeper.")
    assert job["request"]["options"]["sections"] == ["verse", "chorus"]
    page.get_by_text("Syllables and rhymes").click()
    expect(page.locator("#sounds caption").first).to_contain_text("Verse 1")
    assert violations(page) == []
    page.reload()
    expect(page.get_by_role("radio", name="Lyrics")).to_be_checked()
    expect(page.get_by_role("textbox", name="Theme")).to_have_value("a lighthouse")
    assert "task=lyrics" in page.url
    page.get_by_role("button", name="Make a song of it").click()
    expect(page.get_by_role("radio", name="Music")).to_be_checked()
    expect(page.locator("#model option:checked")).to_contain_text("songs with voices")
    expect(page.get_by_role("textbox", name="Lyrics")).to_have_value(job["output"]["text"])
    expect(page.get_by_label("Description of the sound")).to_have_value("sea shanty about a lighthouse")
    expect(page.locator("#model-hint")).to_contain_text("MIT")
    page.locator("#model").select_option("audioldm2-music")
    expect(page.locator("#model-hint")).to_contain_text("NOT for commercial use")
    page.locator("#model").select_option("folk-tunes")
    expect(page.locator("#task-note")).to_contain_text("does not take lyrics")


def test_each_device_says_its_engine_free_memory_and_measured_speed(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    show(page)
    touchstone.open()
    groups = touchstone.device.locator("optgroup")
    assert groups.evaluate_all("all => all.map((one) => one.label)") == [CHIP.name, CARD.name]
    expect(groups.nth(0).locator("option")).to_have_text("cpu · llama.cpp · 12.0 GB free · 90 tokens/s")
    expect(groups.nth(1).locator("option")).to_have_text("vulkan:0 · llama.cpp · 3.0 GB free · 30 tokens/s")
    chart = page.get_by_role("table", name="Speed of")
    expect(chart.get_by_role("rowheader")).to_have_text(["cpu", "vulkan:0"])
    widths = chart.locator(".bar").evaluate_all("all => all.map((one) => one.offsetWidth)")
    assert abs(widths[0] / widths[1] - 3) < 0.1


def test_a_device_slower_than_the_processor_is_said(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    show(page)
    receipt = played_jobs.receipt(
        asked="vulkan:0", resolved="vulkan:0", used="vulkan:0", rate={"value": 31.0, "unit": "tokens/s"}
    )
    job = played_jobs.job(model=MODEL, receipt=receipt, output={"text": "a", "artifacts": []})
    play(page, job, [*played_jobs.tokens(["a"]), ("done", job)])
    touchstone.open().ask("played")
    touchstone.expect_end()
    expect(touchstone.banner).to_contain_text("Slower than the CPU")
    expect(touchstone.banner).to_contain_text("ran this at 31 tokens/s; the CPU reached 90 tokens/s")


def test_a_link_carries_the_whole_choice(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    touchstone.open("?device=cpu").fallback.select_option("never")
    page.get_by_role("button", name="Copy a link to these settings").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == f"{touchstone.url}/?task=text&device=cpu&fallback=never"


def test_models_are_added_and_removed_on_the_page(touchstone: TouchstonePage) -> None:
    page, sent = touchstone.page, list[tuple[str, Any]]()
    stone = asdict(
        Model("stone", "Stone", "text", ["llama.cpp"], "ready", 1_000_000, source="https://a.example/stone.gguf")
    )
    half = {"phase": "download", "done": 5e5, "total": 1e6, "unit": "bytes", "eta_s": 3.0}
    job = played_jobs.job(id="load1", task="download", model="stone", status="running", receipt=None, progress=half)

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            found = route.fetch().json()["models"]
            route.fulfill(json={"models": found if ("DELETE", None) in sent else [*found, stone]})
        else:
            sent.append((route.request.method, route.request.post_data_json if route.request.post_data else None))
            route.fulfill(status=202, json=job)

    page.route(re.compile(r"/api/models(/stone)?$"), answer)
    touchstone.open()
    models = page.get_by_role("region", name="Models")
    entry = models.get_by_role("listitem").filter(has_text="stone.gguf")
    expect(entry).to_contain_text("1.0 MB · licence unknown · runs with llama.cpp")
    models.get_by_role("textbox", name="Add a model").fill("hf:someone/some/stone.gguf")
    models.get_by_role("button", name="Add").click()
    expect(entry).to_contain_text("500 kB of 1.0 MB (50 %), about 3 s left")
    entry.get_by_role("button", name="Remove").click()
    entry.get_by_role("button", name="Press again").click()
    expect(page.locator("#model-said")).to_have_text("stone was removed.")
    expect(entry).to_have_count(0)
    assert sent == [("POST", {"source": "hf:someone/some/stone.gguf"}), ("DELETE", None)]
