"""Compare a card's llama.cpp server with the same program on the processor (`_text/agreement.py`).

The server takes no given tokens between two steps of a text, so both sides generate greedily, and the steps are
compared as long as both chose the same tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.common.types import JsonObject
from backend.engines import LoadRequest
from backend.engines._llama.server_process import ON_PROCESSOR, LlamaServer
from backend.engines._text.agreement import BUDGET_S, LISTED, STEPS, TEXT, Reading
from backend.engines._text.batch_decoder import SampledToken
from backend.engines._text.processor_check import ProcessorCheck

_SHORT_WORDS = 18
_TOKENS_A_WORD = 2  # at most, for most vocabularies; a longer prompt is refused by the server
CONTEXT_TOKENS = 1024


class Refused(Exception):
    """The server cannot answer the check's prompts."""


def compare(server: Any, request: LoadRequest, check: ProcessorCheck, begin: int | None, arguments: list[str]) -> None:
    """Compare a server on a card with a copy on the processor. `begin`: the BOS token that prompts begin with, if any.

    `arguments` are those for the program that do not choose a device. Raises DeviceWrong, RuntimeError.
    """
    context = min(request.context_tokens, CONTEXT_TOKENS)

    def read_copy() -> Reading:
        folder = Path(request.scratch) / "copy"
        folder.mkdir()
        sizes = ["--ctx-size", str(context), "--parallel", "1"]
        copy = LlamaServer(folder, [*arguments, *sizes, *ON_PROCESSOR])
        try:
            return read(copy, context, begin, BUDGET_S)
        finally:
            copy.close()

    check.read_copy(read_copy)
    try:
        reading = read(server, context, begin)
    except Refused as error:
        check.give_up(str(error))
    else:
        check.judge(reading)


def read(
    server: Any,
    context_tokens: int,
    begin: int | None,
    budget_s: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Reading:
    """Generate after both prompts. `budget_s`: optional, the time that the long prompt may take.

    Raises Refused, and RuntimeError if the program exits.
    """
    words = TEXT.split(" ")
    short = " ".join(words[:_SHORT_WORDS])
    long = " ".join(words[: max(_SHORT_WORDS, (context_tokens - STEPS) // _TOKENS_A_WORD)])
    reading, began = Reading(is_forced=False), clock()
    reading.short = _generate(server, _prompt(begin, short), STEPS + 1)
    if (clock() - began) / len(short) * len(long) <= budget_s:
        reading.long = _generate(server, _prompt(begin, long), STEPS + 1)
    if len(reading.short) > STEPS:
        ids = [step.token for step in reading.short[:STEPS]]
        [reading.prefilled] = _generate(server, _prompt(begin, short, ids), 1)
    [reading.repeated] = _generate(server, _prompt(begin, short), 1)
    return reading


def _prompt(begin: int | None, text: str, ids: list[int] | None = None) -> str | list[int | str]:
    """Return a prompt: a text alone gets the BOS token from the server, a list with ids does not."""
    return [*([] if begin is None else [begin]), text, *ids] if ids else text


def _generate(server: Any, prompt: str | list[int | str], count: int) -> list[SampledToken]:
    steps: list[SampledToken] = []
    errors: list[str] = []

    def take(chunk: JsonObject) -> bool:
        if "error" in chunk:
            errors.append(str(chunk["error"].get("message", "no message")))
            return True
        for choice in chunk.get("choices", ()):
            steps.extend(_to_step(token) for token in (choice.get("logprobs") or {}).get("content", ()))
        return False

    body = {"prompt": prompt, "max_tokens": count, "temperature": 0.0, "n_probs": LISTED, "seed": 1, "ignore_eos": True}
    server.handle_completions({**body, "stream": True, "cache_prompt": False, "repeat_penalty": 1.0}, take)
    if errors or not steps:
        raise Refused(f"llama.cpp answered: {errors[0][:200] if errors else 'no probabilities'}")
    return steps


def _to_step(token: JsonObject) -> SampledToken:
    """Return a token of the server as a step. The server writes null for a number that is not finite."""
    listed = tuple((int(one["id"]), _number(one["logprob"])) for one in token.get("top_logprobs", ()))
    return SampledToken(int(token["id"]), 0.0, _number(token["logprob"]), listed)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
