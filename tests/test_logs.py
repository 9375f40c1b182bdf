"""The log: control characters are escaped, and every JSON line is an object."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from backend.server.log_format import JsonFormatter, TextFormatter, escaped

PROMPTS = sorted((Path(__file__).parent / "cases" / "prompts").glob("*.txt"))
STEERING = {chr(code) for code in [*range(32), 127, *range(128, 160), 0x202E, 0x2066, 0x200B, 0xFEFF, 0x2028, 0x2029]}


def record(text: str) -> logging.LogRecord:
    made = logging.LogRecord("backend.test", logging.INFO, "f.py", 1, "said %s", (text,), None)
    made.job = text
    return made


@pytest.mark.parametrize("file", PROMPTS, ids=lambda file: file.stem)
def test_no_text_can_steer_a_terminal(file: Path) -> None:
    line = TextFormatter().format(record(file.read_bytes().decode("utf-8", "surrogateescape")))
    assert not STEERING & set(line)
    line.encode("utf-8")


@pytest.mark.parametrize("file", PROMPTS, ids=lambda file: file.stem)
def test_json_lines_keep_the_text_code_point_for_code_point(file: Path) -> None:
    text = file.read_bytes().decode("utf-8", "surrogateescape")
    line = JsonFormatter().format(record(text))
    assert "\n" not in line and json.loads(line)["job"] == text


def test_what_is_harmless_stays_readable() -> None:
    assert escaped("naïve 日本 👍 [x]") == "naïve 日本 👍 [x]"
    assert escaped("\x1b[31mred") == "\\x1b[31mred"


def test_a_traceback_stays_and_steers_nothing() -> None:
    made = record("x")
    try:
        raise ValueError("told \x1b[31m")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    lines = TextFormatter().format(made)
    assert "ValueError: told" in lines and "\n" in lines and not STEERING - {"\n"} & set(lines)
    assert "told" in json.loads(JsonFormatter().format(made))["trace"]


def test_each_extra_field_of_a_line_is_a_member_of_the_json_log() -> None:
    extra = {"job": "1a2b", "device": "cuda:0", "seconds": 1.5, "code": None}
    log = logging.getLogger("backend.test")
    line = log.makeRecord(log.name, logging.INFO, "f.py", 1, "done", (), None, extra=extra)
    fields = json.loads(JsonFormatter().format(line))
    assert {name: fields.get(name) for name in extra} == extra and "code" not in fields
    assert {"at", "level", "logger", "message"} <= set(fields)
    assert TextFormatter().format(line).endswith("done job=1a2b device=cuda:0 seconds=1.5")
