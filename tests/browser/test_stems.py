"""Stems on the page: a file chosen or dropped, separated, played, muted, soloed, downloaded."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.test_look import DESK, PHONE, fits, violations
from tests.browser.touchstone_page import LONG_MS, TouchstonePage
from tests.service import Server
from tests.stems.conftest import MODEL, spleeter  # noqa: F401 (a fixture)
from tests.stems.sounds import RATE, noise, write

pytestmark = pytest.mark.browser


@pytest.fixture
def stems(touchstone: TouchstonePage, server: Server, spleeter: Path) -> TouchstonePage:  # noqa: F811
    target = server.data_dir / "models" / MODEL
    if not target.exists():
        shutil.copytree(spleeter, target, copy_function=os.link)
    touchstone.open("?task=stems")
    expect(touchstone.page.get_by_role("radio", name="Stems")).to_be_checked()
    expect(touchstone.page.get_by_label("Prompt", exact=True)).to_be_hidden()
    return touchstone


@pytest.fixture(scope="module")
def song(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("song") / "a song.wav", noise(4 * RATE, 2))


def separate(stems: TouchstonePage, song: Path) -> Any:
    stems.page.get_by_label("Sound file: select it or drop it here").set_input_files(song)
    expect(stems.page.locator("#sound-hint")).to_have_text("a song.wav, 706 kB.")
    stems.generate.click()
    stems.expect_end()
    return stems.job()


def test_a_file_becomes_stems_that_play_together(stems: TouchstonePage, song: Path) -> None:
    job = separate(stems, song)
    page = stems.page
    assert job["task"] == "stems" and list(job["request"]["inputs"]) == ["audio"]
    expect(stems.status).to_contain_text(re.compile(r"^Done: 4\.00 s of audio in .* × real time\) on cpu\.$"))
    players = page.locator("#artifacts audio")
    expect(players).to_have_count(2)
    expect(page.locator(".stems .waveform path")).to_have_count(2, timeout=LONG_MS)
    expect(page.locator(".transport")).to_contain_text("0:00 of 0:04")
    page.get_by_role("slider", name="Position").fill("1.5")
    each = "players => players.map(player => player.currentTime)"
    page.wait_for_function(
        "() => [...document.querySelectorAll('#artifacts audio')].every(one => one.currentTime === 1.5)"
    )
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelector('#artifacts audio').currentTime > 2.5")
    first, second = players.evaluate_all(each)
    assert abs(first - second) < 0.1
    page.get_by_role("button", name="Pause").click()
    assert players.evaluate_all("players => players.every(player => player.paused)")


def test_stems_are_muted_and_heard_alone(stems: TouchstonePage, song: Path) -> None:
    separate(stems, song)
    page = stems.page
    muted = "players => players.map(player => player.muted)"
    players = page.locator("#artifacts audio")
    press = {word: page.get_by_role("button", name=word, exact=True) for word in ("Mute vocals", "Solo vocals")}
    press["Mute vocals"].click()
    assert players.evaluate_all(muted) == [True, False]
    expect(press["Mute vocals"]).to_have_attribute("aria-pressed", "true")
    press["Solo vocals"].click()
    assert players.evaluate_all(muted) == [False, True]
    press["Solo vocals"].click()
    assert players.evaluate_all(muted) == [True, False]
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        assert fits(page) and violations(page) == []
    names = []
    page.on("download", lambda download: names.append(download.suggested_filename))
    page.get_by_role("button", name="Download all").click()
    page.wait_for_function("() => true")
    while len(names) < 2:
        page.wait_for_event("download")
    assert sorted(names) == ["accompaniment.wav", "vocals.wav"]


def test_a_dropped_file_is_taken_and_a_text_is_refused_in_words(stems: TouchstonePage) -> None:
    page = stems.page
    drop = """form => {
        const files = new DataTransfer();
        files.items.add(new File(["Dear all, this is a text."], "letter.mp3", { type: "audio/mpeg" }));
        form.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
    }"""
    page.locator("#form").evaluate(drop)
    expect(page.locator("#sound-hint")).to_have_text("letter.mp3, 25 bytes.")
    stems.generate.click()
    stems.expect_end("Failed")
    expect(stems.alert).to_contain_text("letter.mp3 cannot be decoded as audio: Format not recognised")
    expect(stems.alert).to_contain_text("Send WAV, FLAC, OGG")


def test_without_a_file_nothing_is_sent(stems: TouchstonePage) -> None:
    stems.generate.click()
    assert stems.page.locator("#sound").evaluate("input => input.validity.valueMissing")
    expect(stems.status).to_have_text("No job has run yet.")
    expect(stems.page.locator("#curl")).to_contain_text("curl -T FILE")
