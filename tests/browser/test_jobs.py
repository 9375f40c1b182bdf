"""Jobs on the page: search, filter, compare, rerun on another device, delete; and actions for a finished tune."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser import played_jobs
from tests.browser.test_look import PHONE, fits, violations
from tests.browser.touchstone_page import TouchstonePage, play

pytestmark = pytest.mark.browser

ABC = """%abc-2.1
X:1
T:Air in D minor
M:3/4
L:1/8
Q:1/4=90
K:Dm
V:1 name="flute"
%%MIDI program 73
"Dm"D2 F2 A2 | "C"G2 E2 C2 | D2 F2 A2 | G4 z2 |
A2 F2 D2 | E2 C2 E2 | D6- | D6 |]
V:2 name="bass" clef=bass
D,6 | C,6 | D,6 | C,6 | D,6 | C,6 | D,6 | D,6 |]
"""


def test_jobs_are_found_compared_run_again_elsewhere_and_deleted(touchstone: TouchstonePage) -> None:
    page = touchstone.open().page
    for word in ("amethyst", "basalt"):
        touchstone.ask(f"Say {word}.", max_tokens=4)
        expect(page.locator("#asked")).to_have_text(f"Say {word}.")
        touchstone.expect_end()
    rows = page.locator("#jobs li")
    page.get_by_label("Search", exact=True).fill("say amethyst")
    expect(page.locator("#jobs-said")).to_have_text("1 job found.")
    expect(rows).to_have_count(1)
    page.get_by_label("State").select_option("error")
    expect(page.locator("#jobs-said")).to_have_text("No jobs found.")
    page.get_by_label("State").select_option("done")
    page.get_by_role("search").get_by_label("Task").select_option("text")
    expect(rows).to_have_count(1)
    page.get_by_label("Search", exact=True).fill("")
    page.get_by_role("checkbox", name="Compare: Say amethyst.").first.check()
    page.get_by_role("checkbox", name="Compare: Say basalt.").first.check()
    comparison = page.get_by_role("region", name="Two jobs side by side")
    expect(comparison).to_be_focused()
    prompts = comparison.get_by_role("row").filter(has=page.get_by_role("rowheader", name="Prompt"))
    expect(prompts.get_by_role("cell")).to_have_text(["Say amethyst.", "Say basalt.", "differs"])
    expect(comparison.get_by_role("row").filter(has_text="Device used").get_by_role("cell").last).to_have_text("same")
    assert violations(page) == []
    page.set_viewport_size(PHONE)
    assert violations(page) == [] and fits(page)

    page.get_by_label("Run again on").select_option("cpu")
    first = touchstone.job_id
    touchstone.rerun.click()
    expect(page.locator("#jobs [data-job]").first).not_to_have_attribute("data-job", first)
    touchstone.expect_end()
    assert touchstone.job()["request"]["device"] == "cpu"

    gone = touchstone.job_id
    delete = page.get_by_role("region", name="Result").get_by_role("button", name="Delete")
    delete.click()
    assert touchstone.page.request.get(f"{touchstone.url}/api/jobs/{gone}").ok  # asked once more first
    page.get_by_role("button", name="Press again to confirm").click()
    expect(touchstone.status).to_have_text("The job was deleted.")
    expect(page.locator(f'#jobs [data-job="{gone}"]')).to_have_count(0)
    assert touchstone.page.request.get(f"{touchstone.url}/api/jobs/{gone}").status == 404


def test_a_tune_is_varied_and_gone_on_from(touchstone: TouchstonePage) -> None:
    page, sent = touchstone.page, list[Any]()
    chosen = {"form": "air", "key": "D", "mode": "minor", "bars": 8, "backing": "bass", "instrument": "flute"}
    files = [{"name": "tune.abc", "media_type": "text/vnd.abc", "bytes": len(ABC), "url": "/api/jobs/played1/tune.abc"}]
    job = played_jobs.job(
        task="music",
        request={"device": "cpu", "prompt": "sad", "options": {"seed": 1}},
        receipt=played_jobs.receipt(chosen=chosen, audio_s=8.0),
        output={"text": "Understood.", "artifacts": files},
    )
    play(page, job, [("done", job)])
    page.route("**/tune.abc", lambda route: route.fulfill(body=ABC, content_type="text/vnd.abc"))

    def start(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(status=202, json={**job, "status": "queued", "receipt": None, "output": {}})

    page.route("**/api/generate", start)
    touchstone.open("?task=music").generate.click()
    for name in ("Vary", "Continue from here"):
        touchstone.expect_end()
        page.get_by_role("button", name=name).click()
        expect(touchstone.status).not_to_have_text("Sending…")
    touchstone.expect_end()
    varied, continued = (one["options"] for one in sent[1:])
    assert varied["abc"] == "M:3/4\nL:1/8\nK:Dm\nD2 F2 A2 | G2 E2 C2 |" and varied["bars"] == 8
    assert continued["abc"].count("|") == 8 and continued["abc"].endswith("D6- | D6 |") and continued["bars"] == 16
    for options in (varied, continued):
        assert (options["form"], options["instrument"], options["backing"]) == ("air", "flute", "bass")
        assert "key" not in options and "seconds" not in options and options["seed"] != 1
    assert "prompt" not in sent[1]
