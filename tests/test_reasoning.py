"""What a model thinks is separated from its answer, however the text is cut into pieces."""

from __future__ import annotations

import pytest

from backend.tasks.text.reasoning import MARKS, ReasoningParser, find_open_mark, split_reasoning

CASES = [
    ("<think>\nfirst\n</think>\n\nanswer", False, "first", "answer"),
    ("\n<think>a<b</think>c", False, "a<b", "c"),
    ("no thoughts, 1 < 2", False, "", "no thoughts, 1 < 2"),
    ("<thin air", False, "", "<thin air"),
    ("<", False, "", "<"),
    ("  x <think>y</think>", False, "", "  x <think>y</think>"),
    ("first\n</think>\nanswer </think>", True, "first", "answer </think>"),
    ("cut off </thi", True, "cut off </thi", ""),
    ("<think>cut off", False, "cut off", ""),
    ("</think>x", True, "", "x"),
    ("", True, "", ""),
    ("", False, "", ""),
    ("a\n\nb\n\n</think>\n\nc\n\nd", True, "a\n\nb", "c\n\nd"),
    *((f"{opening}why{closing}so", False, "why", "so") for opening, closing in MARKS),
    *((f"why{closing}so", True, "why", "so") for _, closing in MARKS),
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("text", "is_open", "thoughts", "answer"), CASES)
def test_thoughts_and_answer_are_separated(text: str, is_open: bool, thoughts: str, answer: str, size: int) -> None:
    parser = ReasoningParser(is_open)
    pairs = [parser.feed(text[at : at + size]) for at in range(0, len(text), size)] + [parser.end()]
    assert ("".join(pair[0] for pair in pairs), "".join(pair[1] for pair in pairs)) == (thoughts, answer)
    assert split_reasoning(text, is_open) == (thoughts, answer)


def test_thoughts_are_shown_as_they_come() -> None:
    parser = ReasoningParser()
    assert [parser.feed(piece) for piece in ("<think>", "one", " two", "</think>", "three")] == [
        ("", ""),
        ("one", ""),
        (" two", ""),
        ("", ""),
        ("", "three"),
    ]


@pytest.mark.parametrize(
    ("prompt", "mark"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
        ("[THINK]", "[THINK]"),
        ("<think> a", None),
        ("", None),
    ],
)
def test_a_prompt_that_opens_the_thoughts_is_found(prompt: str, mark: str | None) -> None:
    assert find_open_mark(prompt) == mark
