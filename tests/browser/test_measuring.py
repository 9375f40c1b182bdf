"""Benchmarks on the page with the real server: start, progress, result, and the order of `auto`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from backend.common.types import Speed
from tests.browser.browser_console import Console
from tests.browser.test_look import violations
from tests.browser.test_machine import CARD, CHIP, CPU, VULKAN, show
from tests.browser.touchstone_page import LONG_MS, TouchstonePage

pytestmark = pytest.mark.browser

MODEL = "smollm2-135m-instruct"
AT = "2026-01-01T00:00:00.000Z"


def shortly(page: Page, runs: int) -> list[Any]:
    """Lets the page's measurements be short ones; what it sent is in the list."""
    sent: list[Any] = []

    def shortened(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.continue_(post_data=json.dumps({**sent[-1], "runs": runs, "streams": 1}))

    page.route("**/api/bench", shortened)
    return sent


def speeds(page: Page) -> Locator:
    return page.get_by_role("region", name="Speed of")


def test_a_measurement_from_the_button_to_what_auto_says(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    sent = shortly(page, 1)
    touchstone.open()
    speeds(page).get_by_role("button", name=re.compile("^Measure ")).click()
    expect(page.get_by_role("progressbar", name=f"Measuring {MODEL}")).to_be_visible()
    expect(page.locator("#measure-coming")).to_contain_text(f"{MODEL} on cpu with llama.cpp", timeout=LONG_MS)
    assert violations(page) == []
    expect(page.locator("#measure-said")).to_contain_text(f"{MODEL}: cpu with llama.cpp:", timeout=LONG_MS)
    assert sent == [{"models": [MODEL]}]
    row = speeds(page).get_by_role("row").filter(has_text="cpu")
    expect(row).to_contain_text("measured, llama.cpp")
    expect(page.locator("#device-hint")).to_contain_text(re.compile(f"with {MODEL}: [0-9.]+ tokens/s"))
    expect(touchstone.device.locator("option[value=cpu]")).to_contain_text("tokens/s")
    expect(page.get_by_role("progressbar", name=f"Measuring {MODEL}")).to_have_count(0)
    assert violations(page) == []


def test_a_measurement_of_one_device_can_be_stopped(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    sent = shortly(page, 50)
    touchstone.open()
    page.get_by_role("region", name="This machine").get_by_role("button", name="Measure cpu").click()
    expect(page.locator("#measure-coming")).to_contain_text("on cpu with", timeout=LONG_MS)
    page.get_by_role("button", name=f"Stop measuring {MODEL}").click()
    expect(page.locator("#measure-said")).to_have_text(
        "The measurement was stopped; no result was kept.", timeout=LONG_MS
    )
    assert sent == [{"models": [MODEL], "devices": ["cpu"]}]
    expect(speeds(page).get_by_role("button", name=re.compile("^Measure "))).to_be_visible()


def test_the_chart_has_every_engine_with_its_spread_and_says_what_is_slower(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    slow = Speed(MODEL, "llama.cpp", 106.0, "tokens/s", AT)
    fast = Speed(MODEL, "onnx-genai", 154.0, "tokens/s", AT, 150.0, 158.0, 4, 227.0)
    cpu = replace(CPU, engines=["llama.cpp", "onnx-genai"], speed=[slow, fast])
    card = replace(VULKAN, engines=["llama.cpp"], speed=[Speed(MODEL, "llama.cpp", 20.0, "tokens/s", AT)])
    show(page, [cpu, card], [CHIP, CARD])
    touchstone.open()
    rows = speeds(page).locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("onnx-genai")
    expect(rows.nth(0)).to_contain_text("half of the runs 150 to 158 tokens/s, 227 tokens/s in 4 streams")
    expect(rows.nth(2)).to_contain_text("vulkan:0")
    expect(rows.nth(2)).to_contain_text("slower than the CPU")
    expect(speeds(page).get_by_text("slower than the CPU")).to_have_count(1)
    expect(touchstone.device.locator("option[value=cpu]")).to_contain_text("154 tokens/s")


def test_auto_says_what_it_would_take_for_the_model_that_is_chosen(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    found: dict[str, Any] = {
        "devices": [asdict(CPU), asdict(VULKAN)],
        "hardware": [asdict(CHIP), asdict(CARD)],
        "default": "vulkan:0",
        "default_reason": "It comes first.",
        "auto": {MODEL: {"device": "cpu", "reason": "It is the fastest measured with it."}},
        "probing": False,
        "loaded": [],
    }
    page.route("**/api/devices*", lambda route: route.fulfill(json=found))
    touchstone.open()
    expect(page.locator("#device-hint")).to_have_text("Auto would use cpu: It is the fastest measured with it.")
    expect(touchstone.device.locator("option[value=auto]")).to_have_text("Auto (now: cpu)")


def test_what_cannot_be_measured_is_said(touchstone: TouchstonePage, console: Console) -> None:
    console.expect("409")
    page = touchstone.page
    problem = {"type": "about:blank", "title": "Not downloaded", "status": 409, "code": "model_not_downloaded"}
    words = {"detail": "The model is not here.", "remedy": "Download it."}
    page.route("**/api/bench", lambda route: route.fulfill(status=409, json={**problem, **words}))
    touchstone.open()
    speeds(page).get_by_role("button", name=re.compile("^Measure ")).click()
    expect(touchstone.alert).to_contain_text("The model is not here.")
    expect(page.locator("#measure-coming")).to_be_hidden()
