"""The rule for texts of others: what is shown, what is escaped, and what generated text keeps."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from backend.common.clean_text import (
    DEPTH_LIMIT,
    clean,
    clean_data,
    clean_name,
    encodable,
    escape,
    json_safe,
    restore_path,
)
from backend.common.errors import BY_CODE, from_child
from backend.models.entries import entry_for
from backend.server.json_response import JsonResponse, sendable
from backend.server.sse import data_line

PERSIAN = "می\u200cخواهم \u200f👩\u200d🚀❤\ufe0f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tof text", "two\nlines\tof text"),
        ("a\ud83d b\udcff", "a\\ud83d b\\udcff"),
        ("\x1b[1;31mred\x1b[0m \x1b]8;;https://x\x07link\x1b]8;;\x1b\\ \x1bM", "red link "),
        ("RTX\u202e0904\u2066\u200b\u2060\ufeff\u00ad\u061c", "RTX0904"),
        ("A\U000e0041\U000e007f\ufe0f\U000e0100\u034f\u115f\u3164\uffa0\u2800", "A"),
        ("NUL\x00DEL\x7fC1\x85\x9b31m", "NULDELC1"),
        ("é ä 漢 ش \u0600", "é ä 漢 ش \u0600"),
    ],
)
def test_a_text_is_shown_without_what_hides_or_commands(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_no_invisible_format_character_is_shown() -> None:
    with_glyph = {*range(0x600, 0x606), 0x6DD, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    every = [chr(code) for code in range(0x110000) if code not in with_glyph]
    left = [char for char in every if unicodedata.category(char) in ("Cf", "Cc", "Zl", "Zp") and clean(char)]
    assert left == ["\t", "\n"]


def test_a_name_is_one_short_line_and_never_empty() -> None:
    assert clean_name(" GeForce\r\n RTX \x00 4090 \u200b") == "GeForce RTX 4090"
    assert clean_name("\u3164\u200b\n") == clean_name("") == "unnamed"
    assert clean_name("R" * 10**6) == "R" * 100 and len(clean("R" * 10**6)) == 4000


def test_generated_text_keeps_all_but_lone_surrogates() -> None:
    assert encodable(PERSIAN) == PERSIAN
    assert clean_data({"text": PERSIAN + "\ud800"}, is_exact=True) == {"text": PERSIAN + "\\ud800"}
    assert escape(PERSIAN) == PERSIAN and escape("a\x1b[31m\u202e") == "a\\x1b[31m\\u202e"


def test_a_path_that_is_not_utf_8_can_be_opened_again() -> None:
    path = b"/models/\xff\xfe.gguf".decode("utf-8", "surrogateescape")
    assert restore_path(encodable(path)) == path


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**128, -(2**200), [0] * 30_000])
def test_data_without_bounds_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="out of range|more than"):
        clean_data({"a": [value]})


def test_deep_data_is_refused() -> None:
    deep: Any = []
    for _ in range(DEPTH_LIMIT + 2):
        deep = [deep]
    with pytest.raises(ValueError, match="too deeply"):
        clean_data(deep)


def test_json_answers_and_events_are_valid_whatever_they_hold() -> None:
    content = {"name": "a\udc80", "list": [float("nan"), {"b\ud800": -float("inf")}], "path": Path("/x"), "n": 10**400}
    app = FastAPI()

    @app.get("/")
    async def read() -> dict[str, Any]:
        return sendable(content)

    answer = TestClient(app).get("/")
    assert answer.status_code == 200 and answer.json()["name"] == "a\\udc80" and answer.json()["list"][0] is None
    assert sendable({"a": PERSIAN}) == {"a": PERSIAN}
    for safe in (json.loads(bytes(JsonResponse(content).body)), json.loads(data_line(json_safe(content))[6:])):
        assert safe["list"] == [None, {"b\\ud800": None}]
    assert json.loads(data_line({"t": "\ud800", "v": float("nan")})[6:].encode()) == {"t": "\\ud800", "v": None}


def test_a_model_s_name_cannot_turn_the_list() -> None:
    entry = entry_for("a", Path("/models/nice\u202effug.gguf"), "text", "llama.cpp")
    assert entry.name == "niceffug"


@pytest.mark.parametrize("code", ["job_cancelled", "unauthorized", "nonsense", "queue_full"])
def test_a_child_cannot_report_an_error_that_only_the_server_has(code: str) -> None:
    error = from_child({"code": code, "detail": "It is.", "remedy": "Do."})
    assert error.code == "worker_crashed" and code in error.detail


def test_an_error_of_a_child_keeps_its_own_members_and_cannot_replace_those_of_the_problem() -> None:
    extra = {"status": 200, "detail": "x", "self": 1, "retry_after_s": "soon", "prompt_tokens": 5}
    error = from_child({"code": "context_length_exceeded", "detail": "It is.", "remedy": "Do.", "extra": extra})
    assert isinstance(error, BY_CODE["context_length_exceeded"]) and error.extra == {"prompt_tokens": 5}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Z" + "\u0316\u0331\u0353" * 30 + "algo", "Z" + "\u0316\u0331\u0353\u0316\u0331" + "algo"),
        ("\u0301\u0302card", "card"),
        ("a \u0301card", "a card"),
        ("\u20dd" * 9, "unnamed"),
        ("e\u0302\u0301u", "e\u0302\u0301u"),
        ("\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd"),
        ("\u0e17\u0e35\u0e48", "\u0e17\u0e35\u0e48"),
    ],
    ids=["stacked", "at the start", "after a space", "nothing else", "Vietnamese", "Hebrew", "Thai"],
)
def test_a_name_keeps_as_many_combining_marks_as_letters_have(name: str, shown: str) -> None:
    assert clean_name(name) == shown
