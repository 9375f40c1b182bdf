"""Stop sequences and control tokens in text, compared with a plain search in the complete text."""

from __future__ import annotations

import random

import pytest

from backend.tasks.text.stop_sequences import StopFilter
from backend.tasks.text.templates import ControlTokens


def pieces_of(text: str, chance: random.Random) -> list[str]:
    """Return the text, split at random positions."""
    cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(200))
def test_a_stream_ends_where_the_complete_text_has_its_first_stop_sequence(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choice("ab\n") for _ in range(chance.randrange(30)))
    stops = ["".join(chance.choice("ab\n") for _ in range(chance.randrange(1, 5))) for _ in range(chance.randrange(4))]
    filter_, shown = StopFilter(stops), ""
    for piece in pieces_of(text, chance):
        shown += filter_.feed(piece)
        if filter_.matched:
            break
    else:
        shown += filter_.flush()
    assert not any(stop in shown for stop in stops)
    assert text.startswith(shown)
    if filter_.matched:
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
    else:
        assert shown == text and not any(stop in text for stop in stops)


def test_text_is_held_back_only_while_it_may_become_a_stop_sequence() -> None:
    filter_ = StopFilter(["END", "\n\n"])
    assert [filter_.feed(piece) for piece in ("a", "E", "N", "x", "\n", "b")] == ["a", "", "", "ENx", "", "\nb"]
    assert filter_.feed("EN") == "" and filter_.flush() == "EN" and filter_.flush() == ""


def test_without_stop_sequences_all_text_passes_at_once() -> None:
    filter_ = StopFilter([])
    assert [filter_.feed(piece) for piece in ("a", "", "b")] == ["a", "", "b"] and filter_.flush() == ""


@pytest.mark.parametrize("seed", range(100))
def test_no_segment_of_a_raw_prompt_contains_a_control_token(seed: int) -> None:
    chance = random.Random(seed)
    tokens = ["<s>", "<|end|>", "<|end", "[INST]"]
    text = "".join(chance.choice([*tokens, "a", "<", "|", " "]) for _ in range(chance.randrange(1, 20)))
    segments = ControlTokens(tokens).split(text)
    assert "".join(segments) == text
    assert not any(token in segment for segment in segments for token in tokens)
    assert all(segments) and (len(segments) > 1) == any(token in text for token in tokens)


def test_control_tokens_are_escaped_in_keys_and_nested_values() -> None:
    data = {"<s>": ["x", {"a": "y<s>"}], "n": 1, "none": None}
    escaped, separator = ControlTokens(["<s>"]).escape(data)
    assert escaped == {f"<{separator}s>": ["x", {"a": f"y<{separator}s>"}], "n": 1, "none": None}
    assert len(separator) == 1 and data == {"<s>": ["x", {"a": "y<s>"}], "n": 1, "none": None}


def test_the_separator_is_a_character_that_the_request_does_not_contain() -> None:
    _, separator = ControlTokens(["<s>"]).escape("<s>")
    _, other = ControlTokens(["<s>"]).escape(f"<s>{separator}")
    assert other and other != separator
