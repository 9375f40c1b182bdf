"""Fixtures: Chromium on the real page. An unexpected error in the console fails the test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.browser_console import Console
from tests.browser.touchstone_page import TouchstonePage

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
FOREIGN_NAME = "a-foreign-site.example"  # resolved to this machine, as an attacker's name server would
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert path, "No Chromium found: sudo apt-get install --no-install-recommends chromium"
    rebound = f"--host-resolver-rules=MAP {FOREIGN_NAME} 127.0.0.1"
    return {**browser_type_launch_args, "executable_path": path, "args": [*FLAGS, rebound]}


@pytest.fixture(scope="session")
def base_url(server: Any) -> str:
    """In the place of a plug-in's own fixture, which newer versions of pytest warn about."""
    return str(server.url)


@pytest.fixture(autouse=True)
def console(page: Page) -> Iterator[Console]:
    seen = Console()
    page.on("console", seen.message)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("dialog", seen.dialog)
    yield seen
    assert seen.unexpected() == []


@pytest.fixture
def touchstone(page: Page, server: Any) -> TouchstonePage:
    return TouchstonePage(page, server.url)


@pytest.fixture
def offline(context: BrowserContext, console: Console) -> Iterator[BrowserContext]:
    console.expect("ERR_INTERNET_DISCONNECTED")
    yield context
    context.set_offline(False)
