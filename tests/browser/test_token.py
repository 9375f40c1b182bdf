"""A server with a token: the page and its event stream work after the token was entered once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.browser_console import Console
from tests.browser.touchstone_page import TouchstonePage

pytestmark = pytest.mark.browser


def test_the_token_opens_the_page(page: Page, console: Console, launch: Callable[..., Any]) -> None:
    console.expect("401")
    touchstone = TouchstonePage(page, launch(environ={"TOUCHSTONE_TOKEN": "a-stone-and-a-streak"}).url)
    page.goto(touchstone.url)
    field = page.get_by_label("This server requires a token")
    expect(field).to_be_focused()
    field.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-wrong")).to_be_focused()
    expect(page.locator("#token-wrong")).to_contain_text("Wrong token")
    field.fill("a-stone-and-a-streak")
    page.get_by_role("button", name="Open").click()
    expect(field).to_be_hidden()
    expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    touchstone.ask("Say hello.", max_tokens=4)
    touchstone.expect_end()
    expect(touchstone.receipt).to_be_visible()
    touchstone.open()
    expect(field).to_be_hidden()


def test_an_address_with_the_token_opens_the_page_and_forgets_it(
    page: Page, console: Console, launch: Callable[..., Any]
) -> None:
    url = launch(environ={"TOUCHSTONE_TOKEN": "a-stone-and-a-streak"}).url
    page.goto(f"{url}/#token=a-stone-and-a-streak")
    expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    expect(page.get_by_label("This server requires a token")).to_be_hidden()
    assert page.url == f"{url}/"


def test_an_address_with_a_wrong_token_leads_to_the_form(
    page: Page, console: Console, launch: Callable[..., Any]
) -> None:
    console.expect("401")
    url = launch(environ={"TOUCHSTONE_TOKEN": "a-stone-and-a-streak"}).url
    page.goto(f"{url}/#token=wrong")
    expect(page.get_by_label("This server requires a token")).to_be_focused()
    assert page.url == f"{url}/"
