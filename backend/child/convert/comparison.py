"""Compare two forms of a model: greedy texts of the same prompts, counted up to the first different token."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TypedDict

from backend.common.engine_api import EventData
from backend.common.system.resources import usable_threads
from backend.common.types import JsonObject
from backend.engines import LoadRequest, RunRequest, load_engine

PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about a river.",
    "Why is the sky blue?",
    "Name three colours.",
    "What is 7 times 8?",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "Translate 'good morning' into Spanish.",
)
TOKENS = 24


class Answer(TypedDict):
    """The greedy answer of a form to a prompt. `tokens` are the texts of its tokens."""

    text: str
    tokens: list[str]
    prompt_tokens: int


class Difference(TypedDict):
    """The two answers to a prompt, if they differ."""

    prompt: str
    source: str
    made: str


class Comparison(TypedDict):
    """Counts over all prompts; those `alike` are counted up to the first different token."""

    prompts: int
    tokens: int
    tokens_alike: int
    first_alike: int
    texts_alike: int
    prompts_tokenized_alike: int
    differences: list[Difference]


class ConvertedModel(TypedDict):
    """The result of a conversion."""

    path: str
    bytes: int
    comparison: Comparison


def texts(engine: str, path: str, options: JsonObject, context_tokens: int = 512) -> list[Answer]:
    """Load a form in this process; return the answer to each prompt.

    `options` are all text options, with greedy decoding and `logprobs`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        request = LoadRequest("cpu", path, context_tokens, usable_threads(), 1, scratch)
        session = load_engine(engine).load(request)
    answers: list[Answer] = []
    for prompt in PROMPTS:
        tokens: list[str] = []

        def emit(event: str, data: EventData, tokens: list[str] = tokens) -> bool:
            if "text" in data:
                tokens += [entry["token"] for entry in data.get("logprobs", ())]
            return False

        result = session.run(RunRequest(None, prompt, options, 1, False), emit)
        prompt_tokens = result.counts["prompt_tokens"]
        answers.append({"text": "".join(tokens), "tokens": tokens, "prompt_tokens": prompt_tokens})
    return answers


def compare(source: Sequence[Answer], made: Sequence[Answer]) -> Comparison:
    """Return counts of equal tokens before the first difference, equal texts, and equally tokenized prompts."""
    same = [_count_equal(before["tokens"], after["tokens"]) for before, after in zip(source, made, strict=True)]
    return {
        "prompts": len(PROMPTS),
        "tokens": sum(len(before["tokens"]) for before in source),
        "tokens_alike": sum(same),
        "first_alike": sum(count > 0 for count in same),
        "texts_alike": sum(before["text"] == after["text"] for before, after in zip(source, made, strict=True)),
        "prompts_tokenized_alike": sum(
            before["prompt_tokens"] == after["prompt_tokens"] for before, after in zip(source, made, strict=True)
        ),
        "differences": [
            {"prompt": prompt, "source": before["text"], "made": after["text"]}
            for prompt, before, after in zip(PROMPTS, source, made, strict=True)
            if before["text"] != after["text"]
        ],
    }


def _count_equal(first: list[str], second: list[str]) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count
