"""Untrusted text is shown as text: it never runs, is complete, and its direction marks do not leak."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import played_jobs
from tests.browser.touchstone_page import TouchstonePage, play

pytestmark = pytest.mark.browser

HOSTILE = {
    "markup": "</textarea><img src=x onerror=\"alert('one')\"><script>alert('two')</script><b>bold</b>&lt;&#60;",
    "bidi": "user \u202e}admin{\u202c \u2066nested \u2067deep \u202e never closed",
    "ansi": "\x1b[31mred\x1b[0m \x07\x08\x1b]0;title\x07",
    "null": "before\x00after\x00",
    "separators": "one\u2028two\u2029three\x85four\x0bfive\x0csix",
    "combining": "a" + "\u0316\u0331\u0353\u0300" * 50,
    "joined": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\u200d\u2620\ufe0f \u1112\u1161\u11ab \ufffe\uffff",
    "long word": "w" * 800,
}


def expect_calm(page: Page) -> None:
    for box in ("#asked", "#output", "#jobs"):
        assert page.locator(f"{box} :is(img, script, b)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_prompt_comes_back_as_it_was_sent(touchstone: TouchstonePage, name: str) -> None:
    touchstone.open().ask(HOSTILE[name], max_tokens=4)
    touchstone.expect_end()
    assert touchstone.job()["request"]["prompt"] == HOSTILE[name]
    touchstone.page.locator("#asked-box summary").click()
    assert touchstone.page.locator("#asked").text_content() == HOSTILE[name]
    touchstone.page.reload()
    touchstone.expect_end()
    assert touchstone.page.locator("#asked").text_content() == HOSTILE[name]
    expect(touchstone.prompt).to_have_value(HOSTILE[name])
    expect_calm(touchstone.page)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_shown_as_text(touchstone: TouchstonePage, name: str) -> None:
    text = HOSTILE[name]
    pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
    job = played_jobs.job(output={"text": text, "artifacts": []})
    play(touchstone.page, job, [*played_jobs.tokens(pieces), ("done", job)])
    touchstone.open().ask("played")
    touchstone.expect_end()
    assert touchstone.text() == text
    expect_calm(touchstone.page)


def test_direction_marks_do_not_reach_the_page_around_them(touchstone: TouchstonePage) -> None:
    touchstone.open().ask(HOSTILE["bidi"], max_tokens=4)
    touchstone.expect_end()
    styles = "element => getComputedStyle(element).unicodeBidi"
    assert touchstone.page.locator("#asked").evaluate(styles) in ("isolate", "plaintext")
    assert touchstone.output.evaluate(styles) in ("isolate", "plaintext")
    assert touchstone.page.locator("#jobs .words").first.evaluate(styles) in ("isolate", "plaintext")
