"""Variations of one job on several devices, chosen on the page."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.test_look import violations
from tests.browser.test_machine import CARD, CHIP, CPU, VULKAN
from tests.browser.touchstone_page import TouchstonePage

pytestmark = pytest.mark.browser


def test_devices_that_share_the_variations_are_in_the_request(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    devices = [asdict(replace(one, tasks=["text", "music"], engines=["onnxruntime"])) for one in (CPU, VULKAN)]
    hardware = [asdict(CHIP), asdict(CARD)]
    found: dict[str, Any] = {"devices": devices, "hardware": hardware, "default": "cpu", "default_reason": "It is."}
    page.route("**/api/devices*", lambda route: route.fulfill(json={**found, "probing": False, "loaded": []}))
    touchstone.open("?task=music&device=auto&fallback=cpu")
    curl = page.locator("#curl")
    expect(curl).to_contain_text('"device":"auto"')
    page.get_by_text("Use several devices for the variations").click()
    page.get_by_role("checkbox", name=CPU.id).check()
    expect(curl).to_contain_text('"device":"auto"')  # one alone shares nothing
    page.get_by_role("checkbox", name=VULKAN.id).check()
    page.get_by_label("Distribution").select_option(label="One after another")
    expect(curl).to_contain_text('"spread":"sequential"')
    expect(curl).to_contain_text('"devices"')
    expect(curl).not_to_contain_text('"device":')
    assert violations(page) == []
    page.get_by_role("radio", name="Text").check()
    expect(page.locator("#sharing")).to_be_hidden()
    expect(curl).to_contain_text('"device":"auto"')
