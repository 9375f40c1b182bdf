"""A tune on the page: task, prompt or fields, progress, player, sheet, text, downloads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import played_jobs
from tests.browser.test_look import DESK, PHONE, fits, violations
from tests.browser.touchstone_page import LONG_MS, TouchstonePage, play

pytestmark = pytest.mark.browser

PROGRESS = {"job_id": "played1", "at": played_jobs.AT, "unit": "bars", "phase": "composing", "total": 32, "per_s": None}


@pytest.fixture
def music(touchstone: TouchstonePage) -> TouchstonePage:
    touchstone.open("?task=music")
    expect(touchstone.page.get_by_role("radio", name="Music")).to_be_checked()
    return touchstone


def words(music: TouchstonePage) -> Locator:
    return music.page.get_by_label("Description (optional)")


def set_field(music: TouchstonePage, **values: str) -> None:
    box = music.page.locator("#options-box")
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    for name, value in values.items():
        field = music.page.locator(f"#option-{name}")
        if field.evaluate("element => element.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def make(music: TouchstonePage, text: str = "", **fields: str) -> dict[str, Any]:
    """Makes a tune and returns its job."""
    set_field(music, **fields)
    words(music).fill(text)
    music.generate.click()
    music.expect_end()
    job: dict[str, Any] = music.job()
    return job


def test_kinds_of_files_are_ticked_and_come(music: TouchstonePage) -> None:
    set_field(music, seconds="2", backing="none")
    kinds = music.page.get_by_role("group", name="Formats")
    for name in ("mp3", "midi"):
        kinds.get_by_label(name).check()
    expect(music.page.locator("#options-count")).to_contain_text('formats ["mp3","midi"]')
    job = make(music)
    assert [file["name"] for file in job["output"]["artifacts"]] == ["tune.mid", "tune.mp3"]
    expect(music.page.locator("#artifacts audio")).to_have_attribute("src", re.compile(r"/artifacts/tune\.mp3$"))
    kinds.get_by_label("mp3").uncheck()
    expect(music.page.locator("#options-count")).to_contain_text('formats ["midi"]')
    expect(music.page.locator("#sound-box")).to_be_hidden()


def test_words_become_a_tune_that_plays_shows_and_downloads(music: TouchstonePage) -> None:
    job = make(music, "a slow purple air in D minor, 4 seconds", backing="none")
    page = music.page
    expect(music.output).to_contain_text("Understood:")
    expect(music.output).to_contain_text("Ignored: “purple”")
    player = page.locator("#artifacts audio")
    expect(player).to_have_count(1)
    expect(player).to_have_attribute("src", re.compile(r"/artifacts/tune\.(wav|flac)$"))
    known = "audio.readyState ? done(audio.duration) : audio.onloadedmetadata = () => done(audio.duration)"
    duration = f"audio => new Promise(done => {known})"
    assert abs(player.evaluate(duration) - 4) < 0.1
    seek = "audio => new Promise(done => { audio.onseeked = () => done(audio.currentTime); audio.currentTime = 2; })"
    assert abs(player.evaluate(seek) - 2) < 0.1
    expect(page.locator(".waveform path")).to_have_attribute("d", re.compile(r"^(M[\d.]+ [\d.]+V[\d.]+){600}$"))
    sheet = page.get_by_role("img", name="The notes of tune as sheet music")
    assert sheet.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    page.get_by_text("tune.abc as text").click()
    expect(page.get_by_label("Text of tune.abc")).to_contain_text("K:Dm")
    links = page.get_by_role("list", name="Downloads of tune").get_by_role("link")
    assert {link.split()[0] for link in links.all_inner_texts()} == {
        each["name"] for each in job["output"]["artifacts"]
    }
    with page.expect_download() as download:
        links.filter(has_text="tune.mid").click()
    assert download.value.suggested_filename == "tune.mid"
    expect(music.status).to_contain_text(re.compile(r"^Done: 4\.00 s of audio in .* × real time\) on cpu\.$"))
    music.open_receipt()
    expect(music.row("Composing").get_by_role("cell")).to_contain_text("× real time")
    expect(music.row("Options used").get_by_role("cell")).to_contain_text("key D")


def test_fields_alone_are_enough_and_go_into_the_request(music: TouchstonePage) -> None:
    job = make(music, form="jig", key="G", bars="2", backing="none", seed="3")
    options = job["request"]["options"]
    assert (options["form"], options["key"], options["bars"], options["seed"]) == ("jig", "G", 2, 3)
    assert job["request"]["prompt"] is None
    expect(music.page.locator("#asked-box")).to_be_hidden()
    expect(music.page.locator("#jobs")).to_contain_text("Music, form jig, key G, bars 2")
    expect(music.page.locator("#curl")).to_contain_text('"form":"jig"')


def test_another_seed_makes_another_tune_of_the_same_wish(music: TouchstonePage) -> None:
    first = make(music, form="reel", bars="2", backing="none", seed="3")
    music.page.get_by_role("button", name="Another seed").click()
    expect(music.page.locator("#jobs [data-job]").first).not_to_have_attribute("data-job", first["id"])
    music.expect_end()
    second = music.job()
    assert second["id"] != first["id"] and second["request"]["options"]["seed"] != 3
    unchanged = ("form", "bars", "backing", "key")
    assert all(second["request"]["options"][name] == first["request"]["options"][name] for name in unchanged)


def test_variations_stand_under_each_other(music: TouchstonePage) -> None:
    make(music, bars="2", backing="none", variations="2")
    for number in (1, 2):
        one = music.page.get_by_role("region", name=f"Variation {number}", exact=True)
        expect(one.locator("audio")).to_have_count(1)
        expect(one.get_by_role("link")).to_have_count(5)


def test_each_task_keeps_its_words_and_fields(music: TouchstonePage) -> None:
    page = music.page
    set_field(music, form="march")
    words(music).fill("in D")
    page.get_by_role("radio", name="Text").check()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("")
    expect(page.locator("#option-form")).to_have_count(0)
    expect(page.locator("#option-max_tokens")).to_have_count(1)
    music.prompt.fill("Say hello.")
    page.get_by_role("radio", name="Music").check()
    expect(words(music)).to_have_value("in D")
    expect(page.locator("#option-form")).to_have_value("march")
    page.reload()
    expect(page.get_by_role("radio", name="Music")).to_be_checked()
    expect(words(music)).to_have_value("in D")
    page.get_by_role("radio", name="Text").check()
    expect(music.prompt).to_have_value("Say hello.")


def test_progress_tells_bars_and_the_time_left(touchstone: TouchstonePage) -> None:
    half = {**PROGRESS, "done": 16, "eta_s": 3.2}
    job = played_jobs.job(task="music", request={"device": "cpu", "options": {"seed": None}})
    play(touchstone.page, job, [("running", {"job_id": "played1", "at": job["created_at"]}), ("progress", half)])
    touchstone.open("?task=music").generate.click()
    expect(touchstone.page.locator("#figures")).to_have_text("Composing: 16 of 32 bars, about 4 s left")
    expect(touchstone.page.locator("#progress")).to_have_js_property("position", 0.5)


def test_an_impossible_wish_is_refused_with_the_possible_ones(music: TouchstonePage, console: Any) -> None:
    console.expect("422")
    set_field(music, form="jig", meter="4/4")
    music.generate.click()
    expect(music.alert).to_contain_text("Tunes of the form jig in 4/4 are not supported")
    expect(music.alert.locator(".remedy")).to_contain_text("6/8")


def test_stop_ends_composing(music: TouchstonePage) -> None:
    set_field(music, bars="256", variations="4", tempo_bpm="300")
    music.generate.click()
    expect(music.page.locator("#figures")).to_contain_text("Composing", timeout=LONG_MS)
    music.page.keyboard.press("Escape")
    music.expect_end("Stopped")
    assert music.job()["status"] == "cancelled"


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_no_violation_with_a_tune_on_the_page(music: TouchstonePage, size: Any, colours: Any) -> None:
    page = music.page
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=colours, reduced_motion="reduce")
    make(music, form="air", bars="4")
    page.get_by_text("tune.abc as text").click()
    expect(page.get_by_label("Text of tune.abc")).to_contain_text("X:1")
    set_field(music)
    assert violations(page) == [] and fits(page)
