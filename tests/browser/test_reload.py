"""A reload keeps the selection, the prompt, and the running job."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.touchstone_page import ABSENT, LONG_STORY, TouchstonePage

pytestmark = pytest.mark.browser


def test_choice_and_prompt_survive(touchstone: TouchstonePage) -> None:
    touchstone.open().device.select_option("cpu")
    touchstone.fallback.select_option("never")
    touchstone.options(max_tokens=17).prompt.fill("Two lines\nwith ünïcode ☕")
    touchstone.open()
    expect(touchstone.device).to_have_value("cpu")
    expect(touchstone.fallback).to_have_value("never")
    expect(touchstone.prompt).to_have_value("Two lines\nwith ünïcode ☕")
    expect(touchstone.page.locator("#option-max_tokens")).to_have_value("17")


def test_the_address_presets_the_choice_and_follows_it(touchstone: TouchstonePage) -> None:
    touchstone.open(f"?device={ABSENT}&fallback=any")
    expect(touchstone.device).to_have_value(ABSENT)
    expect(touchstone.fallback).to_have_value("any")
    touchstone.device.select_option("cpu")
    expect(touchstone.page).to_have_url(f"{touchstone.url}/?device=cpu&fallback=any")
    touchstone.page.reload()
    expect(touchstone.device).to_have_value("cpu")
    expect(touchstone.fallback).to_have_value("any")


def test_a_vanished_choice_stays_and_is_marked(touchstone: TouchstonePage) -> None:
    touchstone.open(f"?device={ABSENT}")
    touchstone.open()
    expect(touchstone.device).to_have_value(ABSENT)
    expect(touchstone.device.locator("option:checked")).to_contain_text("NOT READY")


def test_a_running_job_goes_on_no_token_twice_none_lost(touchstone: TouchstonePage) -> None:
    touchstone.open().ask(LONG_STORY, max_tokens=200)
    touchstone.expect_text()
    running = touchstone.job_id
    touchstone.page.reload()
    touchstone.expect_text()
    touchstone.page.reload()
    touchstone.expect_end()
    assert touchstone.job_id == running
    assert touchstone.text() == touchstone.job()["output"]["text"] != ""


def test_a_finished_job_is_there_again(touchstone: TouchstonePage) -> None:
    touchstone.open().ask("Say hello.", max_tokens=8)
    touchstone.expect_end()
    text, said = touchstone.text(), touchstone.status.text_content() or ""
    touchstone.page.reload()
    expect(touchstone.status).to_have_text(said)
    assert touchstone.text() == text
    expect(touchstone.receipt).to_be_visible()
