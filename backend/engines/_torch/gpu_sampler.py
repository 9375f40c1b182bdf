"""Sample the next tokens of several sequences on the device, by the rules of `_text/sampler.py`.

The options of a sequence are one row of tensors on the device. What a step's sequences have in common is decided on the
host first (`Traits`), so that steps with the same traits run the same operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BELOW_ONE = 1 - 2.0**-24  # the highest random number as float32


@dataclass(frozen=True)
class Traits:
    """What a step has to compute for its sequences. `candidates`: the most tokens that one is sampled from; 0: all."""

    greedy: bool
    biased: bool
    penalised: bool
    candidates: int
    logprobs: int | None


class TorchSampler:
    """The sampler of a model's rows."""

    def __init__(self, torch: Any, device: Any, rows: int, context_tokens: int, vocabulary_size: int) -> None:
        self._torch = torch
        self._device = device
        self._size = vocabulary_size
        zeros = torch.zeros
        self._option_columns = {
            name: zeros((rows, 1), dtype=torch.float32, device=device)
            for name in ("temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty")
        }
        self._option_columns["top_k"].fill_(vocabulary_size)  # unused rows may pad a step
        self._option_columns["top_p"].fill_(1)
        self._random = zeros((rows, context_tokens), dtype=torch.float32, device=device)
        self._generated = zeros((rows, 1), dtype=torch.int64, device=device)
        self._one = torch.ones((rows, 1), dtype=torch.float32, device=device)
        self._biases: Any = None  # (rows, vocabulary), made when a text has any
        self._counts: Any = None  # occurrences of each token in prompt and text
        self._ranks = torch.arange(vocabulary_size, device=device)

    def assign_row(self, row: int, options: Mapping[str, Any], seed: int, prompt: Sequence[int], limit: int) -> None:
        """Set a row's options, random numbers and penalty counts for a new sequence."""
        import numpy

        for name, column in self._option_columns.items():
            column[row] = self._encode_option(name, options[name])
        self._generated[row] = 0
        if options["temperature"] > 0:
            random = numpy.random.Generator(numpy.random.PCG64(seed))
            random_values = numpy.minimum(random.random(limit), _BELOW_ONE).astype(numpy.float32)
            self._random[row, :limit] = self._torch.from_numpy(random_values).to(self._device)
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

    def move_row(self, source: int, target: int) -> None:
        """Copy the options and state of a row to another row."""
        arrays = [*self._option_columns.values(), self._random, self._generated, self._biases, self._counts]
        for array in arrays:
            if array is not None:
                array[target].copy_(array[source])

    def next(self, logits: Any, first: int, traits: Traits, active: Any = None) -> tuple[Any, Any]:
        """Return the next tokens (rows, 1) for logits (rows, vocabulary) of rows `first` and up, and an output array.

        The output is float32 (rows, 2): the token and the highest logit. With log probabilities it is (rows, 3 + 2 ·
        count): then that of the token, the ids of the most likely tokens, and their log probabilities. `active` (rows,
        1): optional, 1 for rows with a sequence, 0 for padding. Does not wait for the device.
        """
        torch, rows = self._torch, slice(first, first + logits.shape[0])
        values = self._apply_penalties(logits, rows, traits)
        chosen = values.argmax(-1, keepdim=True)
        if not traits.greedy:
            sampled = self._sample_rows(values, rows, traits)
            chosen = torch.where(self._option_columns["temperature"][rows] > 0, sampled, chosen)
        outputs = [chosen.to(torch.float32), logits.amax(-1, keepdim=True)]  # exact for vocabularies below 2^24
        if traits.logprobs is not None:
            logprobs = torch.log_softmax(logits, -1)
            best, ids = logprobs.topk(traits.logprobs, -1)
            outputs += [logprobs.gather(-1, chosen), ids.to(torch.float32), best]
        self._generated[rows] += 1 if active is None else active
        if traits.penalised:
            more = self._one[rows] if active is None else active.to(torch.float32)
            self._counts[rows].scatter_add_(1, chosen, more)
        return chosen, torch.cat(outputs, -1)

    def _apply_penalties(self, logits: Any, rows: slice, traits: Traits) -> Any:
        values = logits + self._biases[rows] if traits.biased else logits
        if not traits.penalised:
            return values
        counts, by = self._counts[rows], self._option_columns["repetition_penalty"][rows]
        lower = self._torch.where(values > 0, values / by, values * by)
        lower = (
            lower
            - counts * self._option_columns["frequency_penalty"][rows]
            - self._option_columns["presence_penalty"][rows]
        )
        return self._torch.where(counts > 0, lower, values)

    def _sample_rows(self, values: Any, rows: slice, traits: Traits) -> Any:
        """Sample (rows, 1): of the `top_k` most likely tokens the `top_p` share; then temperature, then at random."""
        torch = self._torch
        values, ids = values.topk(traits.candidates or self._size, -1)
        likeliest = self._ranks[: values.shape[1]] < self._option_columns["top_k"][rows]
        shares = torch.softmax(values, -1) * likeliest
        sums = shares.cumsum(-1)
        allowed = likeliest & ((sums - shares) < self._option_columns["top_p"][rows] * sums[:, -1:])
        temperature = self._option_columns["temperature"][rows]
        heat = torch.where(temperature > 0, temperature, self._one[rows])
        sums = (torch.exp((values - values[:, :1]) / heat) * allowed).cumsum(-1)
        chance = self._random[rows].gather(1, self._generated[rows])
        place = (sums <= chance * sums[:, -1:]).sum(-1, keepdim=True)
        last = allowed.sum(-1, keepdim=True) - 1
        return ids.gather(-1, torch.minimum(place, last))

    def _encode_option(self, name: str, value: float) -> float:
        if name == "top_k":
            return float(min(value or self._size, self._size))
        return 2.0 if name == "top_p" and value >= 1 else float(value)  # 2: above what rounding makes of all

    def _array(self, existing: Any) -> Any:
        if existing is not None:
            return existing
        shape = (self._random.shape[0], self._size)
        return self._torch.zeros(shape, dtype=self._torch.float32, device=self._device)


def penalised(options: Mapping[str, Any]) -> bool:
    """Return whether tokens that occurred before get a lower weight."""
    return bool(
        options["repetition_penalty"] != 1 or options["presence_penalty"] != 0 or options["frequency_penalty"] != 0
    )


def traits_of(options_of: Sequence[Mapping[str, Any]], vocabulary_size: int) -> Traits:
    """Return what a step with these sampling options has to compute."""
    sampling = [options for options in options_of if options["temperature"] > 0]
    candidates = max((options["top_k"] or vocabulary_size for options in sampling), default=1)
    logprobs = [options["logprobs"] for options in options_of if options["logprobs"] is not None]
    return Traits(
        greedy=not sampling,
        biased=any(options["logit_bias"] for options in options_of),
        penalised=any(penalised(options) for options in options_of),
        candidates=0 if candidates >= vocabulary_size else candidates,
        logprobs=max(logprobs, default=None),
    )
