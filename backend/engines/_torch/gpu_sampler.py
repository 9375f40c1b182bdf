"""Chooses the next token of several texts on the device, by the rules of `_sampler.py` and with the same chances.

Everything that a text wants stands in a row of tensors there. What all of them have in common is decided by the host
before (`Traits`), so that a step of the same traits is the same operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BELOW_ONE = 1 - 2.0**-24  # the highest chance as float32


@dataclass(frozen=True)
class Traits:
    """What a step has to do for its texts. `candidates`: of how many tokens at most one is drawn; 0 is all."""

    greedy: bool
    biased: bool
    penalised: bool
    candidates: int
    logprobs: int | None


class TorchSampler:
    """The sampling of the texts in the rows of a model."""

    def __init__(self, torch: Any, device: Any, rows: int, context_tokens: int, vocabulary_size: int) -> None:
        self._torch = torch
        self._device = device
        self._size = vocabulary_size
        zeros = torch.zeros
        self._wishes = {
            name: zeros((rows, 1), dtype=torch.float32, device=device)
            for name in ("temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty")
        }
        self._wishes["top_k"].fill_(vocabulary_size)  # rows that no text has yet may fill up a step
        self._wishes["top_p"].fill_(1)
        self._chances = zeros((rows, context_tokens), dtype=torch.float32, device=device)
        self._made = zeros((rows, 1), dtype=torch.int64, device=device)
        self._one = torch.ones((rows, 1), dtype=torch.float32, device=device)
        self._biases: Any = None  # (rows, vocabulary), made when a text has any
        self._counts: Any = None  # how often each token stands in prompt and text
        self._ranks = torch.arange(vocabulary_size, device=device)

    def begin(self, row: int, options: Mapping[str, Any], seed: int, prompt: Sequence[int], limit: int) -> None:
        """Gives a row to a text."""
        import numpy

        for name, column in self._wishes.items():
            column[row] = self._wish(name, options[name])
        self._made[row] = 0
        if options["temperature"] > 0:
            random = numpy.random.Generator(numpy.random.PCG64(seed))
            chances = numpy.minimum(random.random(limit), _BELOW_ONE).astype(numpy.float32)
            self._chances[row, :limit] = self._torch.from_numpy(chances).to(self._device)
        if biases := options["logit_bias"]:
            self._biases = self._array(self._biases)
        if self._biases is not None:
            line = numpy.zeros(self._size, numpy.float32)
            for token, value in (biases or {}).items():
                line[int(token)] = value
            self._biases[row] = self._torch.from_numpy(line).to(self._device)
        if penalised(options):
            self._counts = self._array(self._counts)
        if self._counts is not None:
            counts = numpy.bincount(numpy.array(prompt, numpy.int64), minlength=self._size).astype(numpy.float32)
            self._counts[row] = self._torch.from_numpy(counts).to(self._device)

    def move(self, source: int, target: int) -> None:
        """A text moves to another row."""
        arrays = [*self._wishes.values(), self._chances, self._made, self._biases, self._counts]
        for array in arrays:
            if array is not None:
                array[target].copy_(array[source])

    def next(self, logits: Any, first: int, traits: Traits, writing: Any = None) -> tuple[Any, Any]:
        """The next tokens (rows, 1) for logits (rows, vocabulary) of rows `first` and on, and what is told of them.

        That is (rows, 2) the token and the highest logit, with log probabilities (rows, 3 + 2 · wanted): after these
        that of the token, then ids and log probabilities of the likeliest, all as float32. `writing` (rows, 1): 1 for
        the rows that write, 0 for those that only fill up the step. Waits for nothing.
        """
        torch, rows = self._torch, slice(first, first + logits.shape[0])
        values = self._weighed(logits, rows, traits)
        chosen = values.argmax(-1, keepdim=True)
        if not traits.greedy:
            drawn = self._drawn(values, rows, traits)
            chosen = torch.where(self._wishes["temperature"][rows] > 0, drawn, chosen)
        told = [chosen.to(torch.float32), logits.amax(-1, keepdim=True)]  # exact for vocabularies below 2^24
        if traits.logprobs is not None:
            chances = torch.log_softmax(logits, -1)
            best, ids = chances.topk(traits.logprobs, -1)
            told += [chances.gather(-1, chosen), ids.to(torch.float32), best]
        self._made[rows] += 1 if writing is None else writing
        if traits.penalised:
            more = self._one[rows] if writing is None else writing.to(torch.float32)
            self._counts[rows].scatter_add_(1, chosen, more)
        return chosen, torch.cat(told, -1)

    def _weighed(self, logits: Any, rows: slice, traits: Traits) -> Any:
        values = logits + self._biases[rows] if traits.biased else logits
        if not traits.penalised:
            return values
        counts, by = self._counts[rows], self._wishes["repetition_penalty"][rows]
        lower = self._torch.where(values > 0, values / by, values * by)
        lower = lower - counts * self._wishes["frequency_penalty"][rows] - self._wishes["presence_penalty"][rows]
        return self._torch.where(counts > 0, lower, values)

    def _drawn(self, values: Any, rows: slice, traits: Traits) -> Any:
        """Of the `top_k` likeliest the `top_p` share, then the temperature, then by chance: (rows, 1)."""
        torch = self._torch
        values, ids = values.topk(traits.candidates or self._size, -1)
        likeliest = self._ranks[: values.shape[1]] < self._wishes["top_k"][rows]
        shares = torch.softmax(values, -1) * likeliest
        sums = shares.cumsum(-1)
        allowed = likeliest & ((sums - shares) < self._wishes["top_p"][rows] * sums[:, -1:])
        temperature = self._wishes["temperature"][rows]
        heat = torch.where(temperature > 0, temperature, self._one[rows])
        sums = (torch.exp((values - values[:, :1]) / heat) * allowed).cumsum(-1)
        chance = self._chances[rows].gather(1, self._made[rows])
        place = (sums <= chance * sums[:, -1:]).sum(-1, keepdim=True)
        last = allowed.sum(-1, keepdim=True) - 1
        return ids.gather(-1, torch.minimum(place, last))

    def _wish(self, name: str, value: float) -> float:
        if name == "top_k":
            return float(min(value or self._size, self._size))
        return 2.0 if name == "top_p" and value >= 1 else float(value)  # 2: above what rounding makes of all

    def _array(self, made: Any) -> Any:
        if made is not None:
            return made
        shape = (self._chances.shape[0], self._size)
        return self._torch.zeros(shape, dtype=self._torch.float32, device=self._device)


def penalised(options: Mapping[str, Any]) -> bool:
    """Whether tokens that stand there already count for less."""
    return bool(
        options["repetition_penalty"] != 1 or options["presence_penalty"] != 0 or options["frequency_penalty"] != 0
    )


def traits_of(wishes: Sequence[Mapping[str, Any]], vocabulary_size: int) -> Traits:
    """What a step for these options has to do."""
    drawing = [options for options in wishes if options["temperature"] > 0]
    candidates = max((options["top_k"] or vocabulary_size for options in drawing), default=1)
    logprobs = [options["logprobs"] for options in wishes if options["logprobs"] is not None]
    return Traits(
        greedy=not drawing,
        biased=any(options["logit_bias"] for options in wishes),
        penalised=any(penalised(options) for options in wishes),
        candidates=0 if candidates >= vocabulary_size else candidates,
        logprobs=max(logprobs, default=None),
    )
