"""A loaded GGUF model as `BatchModel`: rows are llama.cpp's sequences, and each step is one `llama_decode`.

A sequence keeps its cells of the KV cache after it ended: a later prompt that begins with the same tokens computes only
the rest. llama.cpp computes sequences of a step together only if their numbers follow one another, so new sequences
fill the gaps that ended ones left. A gap that stays for some steps is closed by copying the last sequence there.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.engines._llama import c_api
from backend.engines._llama.sampling import Chain, Sampling
from backend.engines._text.batch_decoder import SampledToken, TextSequence

_LEAST_SHARE = 0.1  # of a prompt that an earlier sequence must have in common to be chosen for it
_GAP_STEPS = 8  # steps with a gap before it is closed: a waiting sequence may fill it, and a copy costs about one step
_REASONS = {1: "its KV cache is full", 2: "it was cancelled", -2: "out of memory"}  # by llama_decode's result


@dataclass
class _Slot:
    """One of llama.cpp's sequences: the tokens in its KV cache, the samplers of its last user, when that was."""

    tokens: list[int] = field(default_factory=list)
    chain: Chain | None = None
    used: int = 0


class LlamaBatchModel:
    """The context of a model. All calls come from one thread."""

    def __init__(
        self,
        llama: Any,
        context: int,
        sizes: tuple[int, int, int],
        sampling: Sampling,
        chunk_tokens: int,
        window: int,
        owner: object = None,
        can_copy: bool = True,
    ) -> None:
        """`sizes`: sequences, context of each, vocabulary. `window`: of sliding attention, 0 without it.

        `owner`: optional, an object that frees the context when it is no longer referenced. `can_copy`: whether a
        sequence can be copied, which is not done for recurrent states.
        """
        self._llama, self._context, self._owner = llama, context, owner
        self._rows, self._context_tokens, self._vocabulary_size = sizes
        self._window, self._can_copy = window, can_copy
        self._memory = llama.llama_get_memory(context)
        self._slots = [_Slot() for _ in range(self._rows)]
        self._numbers: list[int] = []  # of the sequence in each row
        self._clock = itertools.count(1)
        self._gap_steps = 0
        self._batch = Batch(max(chunk_tokens, self._rows), self._rows)
        self._sampling = sampling
        self.prefill_chunk_tokens = chunk_tokens
        self.prefill_batch_tokens = chunk_tokens

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        """Choose one of the free sequences: that with the longest beginning in common, or the best place."""
        del self._numbers[row:]
        taken = set(self._numbers)
        free = [number for number in range(self._rows) if number not in taken]
        number, common = self._choose(free, sequence)
        slot = self._slots[number]
        sequence.length = sequence.cached = self._keep(number, common)
        slot.chain = Chain(
            self._llama,
            sequence.options,
            sequence.seed,
            sequence.prompt,
            (self._vocabulary_size, self._context_tokens),
        )
        slot.used = next(self._clock)
        self._numbers.append(number)

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        """Append prompt tokens to a row. Returns a token after the last chunk."""
        number = self._numbers[row]
        self._batch.clear()
        self._batch.add(number, sequence.length, ids, last)
        self._decode()
        self._slots[number].tokens += ids
        return self._sample([sequence], [number], [len(ids) - 1])[0] if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Prefill the prompts of several sequences into rows `first` and up; return one token for each."""
        self._batch.clear()
        outputs: dict[int, int] = {}
        for number, sequence in sorted(zip(self._numbers[first:], sequences, strict=True), key=lambda pair: pair[0]):
            ids = sequence.prompt[sequence.length :]
            self._batch.add(number, sequence.length, ids, True)
            self._slots[number].tokens += ids
            outputs[number] = self._batch.count - 1
        self._decode()
        numbers = self._numbers[first:]
        return self._sample(sequences, numbers, [outputs[number] for number in numbers])

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Append each sequence's last token to its row, rows 0 and up, and return the next tokens."""
        self._close_gap(len(sequences))
        numbers = self._numbers[: len(sequences)]
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        tokens = [sequence.last_token for sequence in sequences]
        self._batch.set_step(
            [numbers[row] for row in order],
            [tokens[row] for row in order],
            [sequences[row].length for row in order],
        )
        self._decode()
        outputs = [0] * len(numbers)
        for output, row in enumerate(order):
            outputs[row] = output
        for number, token in zip(numbers, tokens, strict=True):
            self._slots[number].tokens.append(token)
        return self._sample(sequences, numbers, outputs)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Give a sequence another row. Nothing is copied."""
        self._numbers[target] = self._numbers[source]

    def force_token(self, row: int, token: int) -> None:
        """The next step appends `sequence.last_token`, so nothing is to be done."""

    def _sample(
        self, sequences: Sequence[TextSequence], numbers: Sequence[int], outputs: Sequence[int]
    ) -> list[SampledToken]:
        """Return the next token of each sequence, by the output of the step that belongs to it."""
        rows: list[tuple[TextSequence, Chain, int]] = []
        for sequence, number, output in zip(sequences, numbers, outputs, strict=True):
            chain = self._slots[number].chain
            assert chain is not None, "a row is assigned before its first step"
            rows.append((sequence, chain, output))
        return self._sampling.next_of_all(rows)

    def _choose(self, free: list[int], sequence: TextSequence) -> tuple[int, int]:
        """Return the number of a free sequence, and how many tokens of the prompt are in its KV cache."""
        prompt = sequence.prompt
        common = {number: _common(self._slots[number].tokens, prompt) if sequence.reuse_cache else 0 for number in free}
        best = max(free, key=lambda number: (common[number], -self._slots[number].used))
        if common[best] <= _LEAST_SHARE * len(prompt):
            taken = set(self._numbers)
            best = min(
                free,
                key=lambda number: (_gaps({*taken, number}), self._slots[number].used, number),
            )
        return best, min(common[best], len(prompt) - 1)

    def _keep(self, number: int, count: int) -> int:
        """Remove all but the first `count` tokens of a sequence. Returns how many are left: some models keep none."""
        slot, remove = self._slots[number], self._llama.llama_memory_seq_rm
        if self._memory and count and self._window:
            first = self._llama.llama_memory_seq_pos_min(self._memory, number)
            count = count if first <= max(0, count - self._window) else 0
        if self._memory and not (count and remove(self._memory, number, count, -1)):
            remove(self._memory, number, -1, -1)
            count = 0
        slot.tokens = slot.tokens[:count]
        return count

    def _close_gap(self, count: int) -> None:
        """Copy the sequence with the highest number of the first `count` rows into a gap that has stayed."""
        numbers = self._numbers[:count]
        if not self._can_copy or not _gaps(set(numbers)):
            self._gap_steps = 0
            return
        self._gap_steps += 1
        free = set(range(min(numbers), max(numbers))) - set(self._numbers)
        if self._gap_steps < _GAP_STEPS or not free:
            return
        source, target = max(numbers), min(free)
        self._llama.llama_memory_seq_rm(self._memory, target, -1, -1)
        self._llama.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._llama.llama_memory_seq_rm(self._memory, source, -1, -1)
        self._slots[target], self._slots[source] = self._slots[source], _Slot()
        self._numbers[self._numbers.index(source)] = target

    def _decode(self) -> None:
        """Compute the batch. Raises RuntimeError."""
        result = self._llama.llama_decode(self._context, self._batch.struct)
        if result:
            self._llama.llama_memory_clear(self._memory, True)
            for slot in self._slots:
                slot.tokens = []
            reason = _REASONS.get(result, f"llama_decode returned {result}")
            raise RuntimeError(f"llama.cpp could not compute a step: {reason}")


class Batch:
    """struct llama_batch with its arrays, allocated once."""

    def __init__(self, tokens: int, sequences: int) -> None:
        numbers: Any = ctypes.c_int32 * tokens
        self._tokens, self._positions, self._counts = numbers(), numbers(), numbers(*(1,) * tokens)
        self._outputs: Any = (ctypes.c_int8 * tokens)()
        self._sequences = (ctypes.c_int32 * sequences)(*range(sequences))
        start, size = ctypes.addressof(self._sequences), ctypes.sizeof(ctypes.c_int32)
        self._addresses = [start + size * number for number in range(sequences)]
        self._pointers: Any = (ctypes.c_void_p * tokens)()
        addresses = (self._tokens, None, self._positions, self._counts, self._pointers, self._outputs)
        self.struct = c_api.Batch(0, *(None if each is None else ctypes.addressof(each) for each in addresses))
        self.count = 0

    def clear(self) -> None:
        """Remove all tokens."""
        self.count = self.struct.n_tokens = 0

    def add(self, sequence: int, position: int, ids: list[int], is_output: bool, all_outputs: bool = False) -> None:
        """Add tokens of a sequence from a position on. `is_output`: whether the last one is an output, or all are."""
        start, end = self.count, self.count + len(ids)
        self._tokens[start:end] = ids
        self._positions[start:end] = range(position, position + len(ids))
        self._pointers[start:end] = [self._addresses[sequence]] * len(ids)
        self._outputs[start:end] = [*(int(all_outputs),) * (len(ids) - 1), int(is_output)]
        self.count = self.struct.n_tokens = end

    def set_step(self, sequences: list[int], tokens: list[int], positions: list[int]) -> None:
        """Set one token of each sequence, all with logits."""
        count = len(sequences)
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._pointers[:count] = [self._addresses[sequence] for sequence in sequences]
        self._outputs[:count] = (1,) * count
        self.count = self.struct.n_tokens = count


def _common(cached: list[int], prompt: list[int]) -> int:
    """Return how many tokens two lists have in common at their beginning."""
    pairs = enumerate(zip(cached, prompt, strict=False))
    return next((count for count, (one, other) in pairs if one != other), min(len(cached), len(prompt)))


def _gaps(numbers: set[int]) -> int:
    """Return how many numbers are missing between the least and the greatest."""
    return max(numbers) - min(numbers) + 1 - len(numbers)
