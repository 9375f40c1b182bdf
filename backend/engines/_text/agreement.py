"""Compare the next-token probabilities of a loaded model with those of a copy on the processor.

Both get the same tokens (teacher forcing), so a tie that rounding decides is not a difference. The prompts are of two
shape classes: a short one, and one of more than 256 tokens, for which libraries use other kernels. Both decode together
where the model has two rows. Prefill must also agree with step-by-step decoding, and a prompt must give the same
result again in a row that held a longer one: this needs no copy.

The difference of two steps is the mean difference of the log probabilities of the trusted side's likeliest tokens,
weighted by their probabilities. Measured with SmolLM2-135M against float32 on x86-64, largest and mean over 18 steps:
float16 0.009 and 0.004, bfloat16 0.07 and 0.03. Products halved: 6.9 and 4.4; a tenth too small: 0.95 and 0.50; the
last of 300 rows missing: 15.7 and 1.2; 1 % of noise on each product 0.40 and 0.14, 5 % of noise 1.5 and 0.66.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend.common.commands import command
from backend.common.errors import DeviceWrong
from backend.engines._text.batch_decoder import BatchModel, SampledToken, TextSequence

SHORT_TOKENS, LONG_TOKENS, STEPS = 24, 300, 8
LISTED = 20  # tokens whose probabilities are compared in each step
TOLERANCE, MEAN_TOLERANCE = 0.6, 0.3  # of the difference of two steps, and of its mean over all steps
BUDGET_S = 40.0  # on the processor: the long prompt is left out if it would take longer
TEXT = (
    "A touchstone is a small tablet of dark stone, such as slate or lydite, that was used to find out how pure a "
    "precious metal is. The stone has a finely grained surface on which soft metals leave a visible trace. Because "
    "different alloys of gold leave traces of different colours, an unknown sample can be compared with samples whose "
    "content is known. The merchant drew a line with the ring that he was offered, and beside it a line with a needle "
    "of a known alloy. Then he put a drop of acid on both lines and watched how fast they faded. If the lines looked "
    "the same, the ring was as good as the needle; if not, the price was wrong. The method was known in the Indus "
    "Valley more than four thousand years ago, and it reached Greece and Rome through trade. It made gold and silver "
    "coins possible, since everyone could verify what a coin was worth without melting it. Even today the test is used "
    "in small shops, because it is quick, cheap, and needs no electricity. Modern laboratories use X-rays and fire "
    "assay instead: they melt a weighed sample, remove every other metal, and weigh what remains. The result is exact "
    "to one part in ten thousand. The lesson of the stone is simple, and it holds for machines as well as for metals. "
    "Do not believe what is written on the label. Take a small sample, compare it with something that you trust, and "
    "write down what you saw, so that other people can repeat the test and come to the same conclusion as you did."
)
_OPTIONS: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
}


class ForcedModel(BatchModel, Protocol):
    """A batch model whose next token can be set."""

    def force_token(self, row: int, token: int) -> None:
        """Make the next decode step append this token, which is also `sequence.last_token`, to a row."""
        ...


@dataclass
class Reading:
    """The steps of both prompts: after the prompt, and after each further token. `long` is empty if it was left out.

    `prefilled` is the last step of `short` again, computed in one piece; `repeated` its first step, computed again.
    """

    short: list[SampledToken] = field(default_factory=list)
    long: list[SampledToken] = field(default_factory=list)
    prefilled: SampledToken | None = None
    repeated: SampledToken | None = None
    is_forced: bool = True  # the tokens were given; otherwise each side appended its own


@dataclass(frozen=True)
class Agreement:
    """How many steps were compared, their largest difference, and the mean."""

    steps: int
    difference: float
    mean: float


def prompt_tokens(tokens: Sequence[int], context_tokens: int) -> tuple[list[int], list[int]]:
    """Return the short and the long prompt, each with the tokens that follow it. `tokens` are those of `TEXT`."""
    enough = [*tokens] * (1 + (LONG_TOKENS + STEPS) // max(1, len(tokens))) if tokens else [0] * (LONG_TOKENS + STEPS)
    long = max(1, min(LONG_TOKENS, context_tokens - STEPS - 1))
    short = min(SHORT_TOKENS, long)
    return enough[: short + STEPS], enough[: long + STEPS]


def read(
    model: ForcedModel,
    tokens: Sequence[int],
    context_tokens: int,
    rows: int,
    budget_s: float = math.inf,
    repeats: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Reading:
    """Compute the steps of both prompts. `rows`: the model's rows; with two of them the prompts decode together.

    `budget_s`: optional, the time that the long prompt may take. `repeats`: whether prompts are read again, for
    `check_consistency`.
    """
    short, long = prompt_tokens(tokens, context_tokens)
    reading, began = Reading(), clock()
    first = _Row(model, 0, short)
    reading.short.append(first.prefill())
    spent_s = clock() - began
    with_long = spent_s / len(short) * len(long) <= budget_s
    second = _Row(model, 1, long) if with_long and rows > 1 else None
    if second:
        reading.long.append(second.prefill())
    for _ in range(STEPS):
        together = [first, second] if second else [first]
        for row in together:
            row.force()
        sampled = model.decode([row.sequence for row in together])
        for row, target, step in zip(together, (reading.short, reading.long), sampled, strict=False):
            row.sequence.length += 1
            target.append(step)
    if with_long and not second:
        third = _Row(model, 0, long)
        reading.long.append(third.prefill())
        for _ in range(STEPS):
            third.force()
            reading.long += model.decode([third.sequence])
            third.sequence.length += 1
    if not repeats:
        return reading
    if second:  # it becomes the first row, so that what follows overwrites a longer sequence
        model.move_row(1, 0, second.sequence.length)
    reading.prefilled = _Row(model, 0, short).prefill(len(short))
    reading.repeated = _Row(model, 0, short).prefill()
    return reading


class _Row:
    """A sequence of known tokens in a row of a model."""

    def __init__(self, model: ForcedModel, row: int, tokens: list[int]) -> None:
        self._model, self._row, self._tokens = model, row, tokens
        options = {**_OPTIONS, "logprobs": LISTED}
        self.sequence = TextSequence(tokens[:-STEPS], options, 1, STEPS + 1, frozenset())
        model.assign_row(row, self.sequence)

    def prefill(self, count: int | None = None) -> SampledToken:
        """Prefill the prompt, or the first `count` tokens, in chunks; return the step after it."""
        tokens, sequence, sampled = self._tokens[: count or -STEPS], self.sequence, None
        while sequence.length < len(tokens):
            chunk = tokens[sequence.length : sequence.length + self._model.prefill_chunk_tokens]
            is_last = sequence.length + len(chunk) == len(tokens)
            sampled = self._model.prefill(self._row, sequence, chunk, is_last)
            sequence.length += len(chunk)
        assert sampled is not None, "the last chunk returns a token"
        return sampled

    def force(self) -> None:
        """Make the next known token the one that the next step appends."""
        self.sequence.last_token = self._tokens[self.sequence.length]
        self._model.force_token(self._row, self.sequence.last_token)


def difference(trusted: SampledToken, other: SampledToken) -> float:
    """Return the difference of two steps; infinite if the other one is not finite.

    A token that the other side does not list is at most as likely there as the last that it lists.
    """
    if not _is_finite(other):
        return math.inf
    found = dict(other.top_logprobs)
    lowest = min(found.values(), default=-math.inf)
    total = spread = 0.0
    for token, logprob in trusted.top_logprobs:
        weight = math.exp(logprob)
        gap = abs(logprob - found[token]) if token in found else max(0.0, logprob - lowest)
        total, spread = total + weight, spread + weight * gap
    return spread / total if total else math.inf


def compare(trusted: Reading, other: Reading, name: str, device: str) -> Agreement:
    """Compare a device's reading with the processor's, step by step as far as both go. Raises DeviceWrong."""
    amounts: list[float] = []
    for prompt, mine, theirs in (("short", trusted.short, other.short), ("long", trusted.long, other.long)):
        for number, (expected, step) in enumerate(zip(mine, theirs, strict=False)):
            amounts.append(difference(expected, step))
            if not amounts[-1] <= TOLERANCE:
                further = f" and {number} further tokens" if number else ""
                raise _wrong(name, device, f"after the {prompt} prompt{further}", "the processor's", amounts[-1])
            if expected.token != step.token and not trusted.is_forced:
                break  # a tie that rounding decided: from here on the texts differ
    mean = sum(amounts) / len(amounts)
    if not mean <= MEAN_TOLERANCE:
        raise _wrong(name, device, f"over {len(amounts)} steps", "the processor's", mean, MEAN_TOLERANCE)
    return Agreement(len(amounts), max(amounts), mean)


def check_consistency(reading: Reading, name: str, device: str) -> Agreement:
    """Compare a reading with itself: prefill with decoding, a prompt with its repetition. Raises DeviceWrong."""
    for prompt, steps in (("short", reading.short), ("long", reading.long)):
        for number, step in enumerate(steps):
            if not _is_finite(step):
                further = f" and {number} further tokens" if number else ""
                raise _wrong(name, device, f"after the {prompt} prompt{further}", "finite", math.inf)
    pairs = [
        (reading.short[-1], reading.prefilled, "those of the same tokens one by one"),
        (reading.short[0], reading.repeated, "those of the same prompt before"),
    ]
    amounts = [0.0]
    for step, again, what in pairs:
        if again is not None:
            amounts.append(difference(step, again))
            if not amounts[-1] <= TOLERANCE:
                raise _wrong(name, device, "after a repeated prompt", what, amounts[-1])
    return Agreement(len(amounts) - 1, max(amounts), sum(amounts) / len(amounts))


def _is_finite(step: SampledToken) -> bool:
    values = [step.max_logit, *(logprob for _, logprob in step.top_logprobs)]
    return bool(step.top_logprobs) and all(map(math.isfinite, values))


def _wrong(name: str, device: str, where: str, other: str, amount: float, allowed: float = TOLERANCE) -> DeviceWrong:
    measured = (
        "They are NaN or infinite"
        if math.isinf(amount)
        else f"Log probabilities differ by {amount:.2g} on average, {allowed:g} is allowed"
    )
    return DeviceWrong(
        f"{device} computes {name} wrongly: {where}, its probabilities of the next token are not {other}. {measured}.",
        f"Update the driver of {device} and the runtime, then refresh the devices; until then use another device. "
        f"`{command('doctor')}` shows the versions to report.",
    )
