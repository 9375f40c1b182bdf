"""Runtimes on the page: the list, an install with progress, and a removal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.runtimes.stacks import NAME, Index, make_wheel, recipe_folder
from tests.service import Server, start_server

pytestmark = pytest.mark.browser
LONG_MS = 60_000
ALONE = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "UV_NO_CONFIG": "1"}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    make_wheel(tmp_path / "wheels", "1.0")
    with Index(tmp_path / "wheels") as served:
        yield served


@pytest.fixture
def own(index: Index, tmp_path: Path) -> Iterator[Server]:
    """A server that knows one runtime more."""
    under = [sys.executable, "-m", "tests.runtimes.with_recipes", str(recipe_folder(tmp_path / "recipes"))]
    running = start_server(tmp_path / "data", environ={**ALONE, "PIP_INDEX_URL": index.url}, under=under)
    yield running
    assert running.stop() == 0


def test_a_runtime_is_installed_and_removed_on_the_page(page: Page, own: Server, index: Index) -> None:
    page.goto(own.url)
    tiny = page.locator("#runtimes li").filter(has_text="A tiny runtime")
    expect(tiny.locator(".state")).to_have_text("installable", timeout=LONG_MS)
    expect(page.locator("#runtimes")).to_contain_text("Not for this machine:")
    index.gate.clear()
    tiny.get_by_role("button", name=f"Install {NAME}").click()
    expect(tiny.get_by_role("progressbar", name=f"Progress of {NAME}")).to_be_visible()
    expect(tiny.get_by_role("button", name=f"Cancel {NAME}")).to_be_visible(timeout=LONG_MS)
    assert index.stalled.wait(60)
    index.gate.set()
    expect(tiny.locator(".state")).to_have_text("installed", timeout=LONG_MS)
    expect(page.locator("#runtime-said")).to_contain_text("tiny is installed")
    expect(tiny).to_contain_text("devices: cpu")
    found = Axe().run(page, context="#runtimes-part")
    assert found.violations_count == 0, found.generate_report()
    remove = tiny.get_by_role("button", name=f"Remove {NAME}")
    remove.click()
    tiny.get_by_role("button", name="Press again").click()
    expect(tiny.locator(".state")).to_have_text("installable", timeout=LONG_MS)
