"""A page object: find and use parts of the page by their labels and names."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

LONG_MS = 60_000
LONG_STORY = "Write a long story about a river, with many chapters. Do not stop early."
ABSENT = "cuda:63"  # well-formed and known, and no machine has it


class TouchstonePage:
    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.device = page.get_by_label("Backend / Device")
        self.fallback = page.get_by_label("If the device cannot run the job")
        self.prompt = page.get_by_label("Prompt", exact=True)
        self.generate = page.get_by_role("button", name="Generate")
        self.stop = page.get_by_role("button", name="Stop")
        self.rerun = page.get_by_role("button", name="Run again")
        self.status = page.locator("#status")
        self.output = page.get_by_role("region", name="Generated text")
        self.banner = page.locator("#banner")
        self.alert = page.locator("#alert")
        self.receipt = page.locator("#receipt")

    def open(self, query: str = "") -> TouchstonePage:
        self.page.goto(f"{self.url}/{query}")
        expect(self.page.locator("#device-hint")).not_to_contain_text("Checking devices", timeout=LONG_MS)
        expect(self.page.get_by_label("Model", exact=True)).not_to_have_value("")
        return self

    def options(self, **values: object) -> TouchstonePage:
        summary = self.page.locator("#options-box summary")
        summary.click()
        for name, value in values.items():
            self.page.locator(f"#option-{name}").fill(str(value))
        summary.click()
        return self

    def ask(self, prompt: str, **options: object) -> TouchstonePage:
        if options:
            self.options(**options)
        self.prompt.fill(prompt)
        self.generate.click()
        return self

    def expect_text(self) -> None:
        """Waits until the first words are there and more are to come."""
        expect(self.output).to_have_attribute("aria-busy", "true", timeout=LONG_MS)
        expect(self.output).not_to_be_empty(timeout=LONG_MS)

    def expect_end(self, word: str = "Done") -> None:
        expect(self.status).to_have_text(re.compile(f"^{word}"), timeout=LONG_MS)
        expect(self.page.locator("#output")).to_have_attribute("aria-busy", "false")

    def text(self) -> str:
        return self.output.text_content() or ""

    @property
    def job_id(self) -> str:
        found = self.page.evaluate("sessionStorage.getItem('touchstone.job')")
        assert found
        return str(found)

    def api(self, path: str) -> Any:
        return self.page.request.get(f"{self.url}/api/{path}").json()

    def job(self) -> Any:
        return self.api(f"jobs/{self.job_id}")

    def open_receipt(self) -> Locator:
        self.receipt.locator("summary").click()
        return self.receipt.locator("table")

    def row(self, name: str) -> Locator:
        return self.receipt.get_by_role("row").filter(has=self.page.get_by_role("rowheader", name=name, exact=True))


def stream(events: list[tuple[str, dict[str, Any]]]) -> str:
    """Events as they stand on the wire, numbered from 1."""
    return "".join(
        f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for number, (name, data) in enumerate(events, 1)
    )


def play(page: Page, job: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> None:
    """Answers in the server's place, for what a healthy server cannot be made to do."""

    def start(route: Route) -> None:
        route.fulfill(status=202, json={**job, "status": "queued", "receipt": None, "output": {}, "error": None})

    page.route("**/api/generate", start)
    page.route(f"**/api/jobs/{job['id']}", lambda route: route.fulfill(json=job))
    page.route(
        f"**/api/jobs/{job['id']}/events*",
        lambda route: route.fulfill(body=stream(events), headers={"Content-Type": "text/event-stream"}),
    )
