"""Accessibility by axe at both widths and colour schemes, no horizontal scrolling, and the size of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Response, ViewportSize, expect

from tests.browser.browser_console import Console
from tests.browser.touchstone_page import ABSENT, TouchstonePage

pytestmark = pytest.mark.browser

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
PHONE, DESK = ViewportSize(width=390, height=844), ViewportSize(width=1280, height=800)
MOST_BYTES = 150_000
MOST_LINES = 150
LONGER = {"api.js": 180}  # one module touches the network, with a line for each route
LEAST_TARGET_PX = 44
MAKES_MARKUP = (".innerHTML", ".outerHTML", "insertAdjacentHTML", "eval(")


def violations(page: Page) -> list[tuple[str, list[Any]]]:
    found = Axe().run(page, options=RULES).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways; what sticks out is printed."""
    found = page.evaluate(
        """() => {
            const { clientWidth: width, scrollWidth } = document.documentElement;
            const sticksOut = (one) => one.getBoundingClientRect().right > width;
            const out = [...document.querySelectorAll("body *")].filter(sticksOut);
            return [scrollWidth <= width, out.map((one) => `${one.tagName} ${one.id} ${one.className}`)];
        }"""
    )
    if not found[0]:
        print(found[1])
    return bool(found[0])


@pytest.mark.parametrize(("size", "colours"), [(PHONE, "dark"), (DESK, "light")], ids=["390-dark", "1280-light"])
def test_no_violation_in_any_state(touchstone: TouchstonePage, console: Console, size: Any, colours: Any) -> None:
    page = touchstone.page
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=colours, reduced_motion="reduce")
    touchstone.open()
    assert violations(page) == [] and fits(page)
    page.locator("#options-box summary").click()
    assert violations(page) == [] and fits(page)
    page.locator("#options-box summary").click()
    touchstone.open(f"?device={ABSENT}&fallback=cpu").ask("word" * 200, max_tokens=8)
    touchstone.expect_end()
    touchstone.open_receipt()
    page.locator("#asked-box summary").click()
    assert violations(page) == [] and fits(page)
    console.expect("409")
    touchstone.fallback.select_option("never")
    touchstone.generate.click()
    expect(touchstone.alert).to_be_visible()
    assert violations(page) == [] and fits(page)


def test_targets_are_large_enough_for_a_thumb(touchstone: TouchstonePage) -> None:
    touchstone.page.set_viewport_size(PHONE)
    touchstone.open().ask("Say hello.", max_tokens=4)
    touchstone.expect_end()
    measure = """all => all.filter((one) => one.offsetParent).map((one) => one.closest("label") ?? one)
        .map((one) => [one.id || one.textContent, one.offsetHeight])"""
    controls = touchstone.page.locator("main :is(button, select, input, textarea, summary), nav a")
    sizes = controls.evaluate_all(measure)
    assert len(sizes) > 8
    assert [size for size in sizes if size[1] < LEAST_TARGET_PX] == []


def test_the_device_is_labelled(touchstone: TouchstonePage) -> None:
    touchstone.open()
    expect(touchstone.page.locator("label", has_text="Backend / Device")).to_be_visible()
    assert touchstone.device.evaluate("element => element.tagName") == "SELECT"
    expect(touchstone.page.get_by_role("combobox", name="Backend / Device")).to_be_visible()


def test_the_page_is_light_and_its_own(touchstone: TouchstonePage) -> None:
    answers: list[Response] = []
    touchstone.page.on("response", lambda answer: answers.append(answer))
    touchstone.open()
    touchstone.page.wait_for_load_state("networkidle")
    files = [answer for answer in answers if "/api/" not in answer.url]
    assert all(answer.url.startswith(touchstone.url) and answer.status == 200 for answer in answers)
    sizes = """performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
        .filter((one) => !one.name.includes("/api/")).map((one) => one.encodedBodySize)"""
    sent = touchstone.page.evaluate(sizes)
    assert 10 < len(files) == len(sent) and min(sent) > 0 and sum(sent) < MOST_BYTES
    policy = files[0].headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy


def test_every_module_is_asked_for_at_once() -> None:
    """Else each level of imports would wait for the one above it."""
    found, waiting = set[str](), ["main.js"]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += re.findall(r'from "\./([\w-]+\.js)"', (FRONTEND / module).read_text(encoding="utf-8"))
    page = (FRONTEND / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'rel="modulepreload" href="([\w-]+\.js)"', page)) == found - {"main.js"}


def test_the_files_keep_the_rules() -> None:
    modules = sorted(FRONTEND.glob("*.js"))
    assert len(modules) > 10
    for module in modules:
        text = module.read_text(encoding="utf-8")
        assert text.startswith("// @ts-check\n"), module.name
        assert len(text.splitlines()) <= LONGER.get(module.name, MOST_LINES), module.name
        assert not any(word in text for word in MAKES_MARKUP), module.name
        if module.name != "api.js":
            assert "fetch(" not in text and "new EventSource" not in text, module.name
