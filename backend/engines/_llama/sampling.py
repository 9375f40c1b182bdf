"""Sampling by llama.cpp's own samplers, in the order of `_text/sampler.py`: one chain per sequence.

Log probabilities, and tokens that a grammar excludes, need the logits: they are copied into the library's own array of
candidates by strided copies, so that no loop over the vocabulary runs in Python.
"""

from __future__ import annotations

import ctypes
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

from backend.common.errors import WorkerCrashed
from backend.common.system.resources import usable_threads
from backend.engines._llama import c_api
from backend.engines._text.batch_decoder import SampledToken, TextSequence

_FIELDS = c_api.TOKEN_BYTES // 4
_SHARED_LOGITS = 400_000  # of a step: from here on, several threads sample; 128,000 of them take a thread 0.13 ms
_MAX_THREADS = 4


def sampling_threads() -> int:
    """Return how many threads of this machine may sample at once."""
    return max(1, min(_MAX_THREADS, usable_threads() // 2))


class Candidates:
    """An array of the library with all tokens of a vocabulary and their logits."""

    def __init__(self, llama: Any, vocabulary_size: int) -> None:
        self._llama, self._size = llama, vocabulary_size
        self._data = (ctypes.c_uint8 * (c_api.TOKEN_BYTES * vocabulary_size))()
        self._ids = memoryview(self._data).cast("B").cast("i")
        self._floats = memoryview(self._data).cast("B").cast("f")
        self._all_ids = memoryview(array("i", range(vocabulary_size)))
        # The sampler `dist` computes the probability of each candidate, of which only the likeliest are read.
        self._softmax = llama.llama_sampler_init_dist(1)
        self._best: dict[int, int] = {}

    def likeliest(self, logits: Any, count: int) -> tuple[float, list[tuple[int, float]]]:
        """Return the logarithm of the sum of exp(logit), and the `count` tokens with the highest logits, in order."""
        found = self._filled(logits)
        self._llama.llama_sampler_apply(self._softmax, ctypes.byref(found))
        top = self._best.get(count)
        if top is None:
            top = self._best[count] = self._llama.llama_sampler_init_top_k(max(1, count))
        self._llama.llama_sampler_apply(top, ctypes.byref(found))
        data = ctypes.cast(found.data, ctypes.POINTER(ctypes.c_float))
        ids = ctypes.cast(found.data, ctypes.POINTER(ctypes.c_int32))
        highest, share = data[1], data[2]
        total = highest - math.log(share) if share > 0 else math.nan
        size = min(found.size, count)
        return total, [(ids[_FIELDS * at], data[_FIELDS * at + 1] - total) for at in range(size)]

    def choose(self, chain: int, logits: Any, allowed: bytes | None = None) -> int:
        """Return a token by a chain of samplers. -1 if there is none.

        `allowed`: optional, a byte per token; those with 0 are left out.
        """
        if allowed is None:
            return self._apply(chain, self._filled(logits))
        ids = [match.start() for match in re.finditer(rb"[^\0]", allowed[: self._size], re.DOTALL)]
        if not ids:
            return -1
        values = [logits[ids[0]]] if len(ids) == 1 else itemgetter(*ids)(logits)
        count = len(ids)
        self._ids[0 : _FIELDS * count : _FIELDS] = memoryview(array("i", ids))
        self._floats[1 : _FIELDS * count : _FIELDS] = memoryview(array("f", values))
        return self._apply(chain, c_api.TokenDataArray(ctypes.addressof(self._data), count, -1, False))

    def _apply(self, chain: int, candidates: c_api.TokenDataArray) -> int:
        self._llama.llama_sampler_apply(chain, ctypes.byref(candidates))
        return ctypes.c_int32.from_address(candidates.data + c_api.TOKEN_BYTES * candidates.selected).value

    def _filled(self, logits: Any) -> c_api.TokenDataArray:
        self._ids[::_FIELDS] = self._all_ids
        self._floats[1::_FIELDS] = logits
        return c_api.TokenDataArray(ctypes.addressof(self._data), self._size, -1, False)


class Chain:
    """The samplers of one request. `prompt` is what its penalties count, besides the generated tokens."""

    def __init__(
        self, llama: Any, options: Mapping[str, Any], seed: int, prompt: Sequence[int], sizes: tuple[int, int]
    ) -> None:
        """`sizes`: of the vocabulary and of the context."""
        self._llama = llama
        vocabulary_size, context_tokens = sizes
        self.handle = llama.llama_sampler_chain_init(c_api.SamplerChainParams(True))
        for sampler in self._samplers(options, seed, vocabulary_size, context_tokens):
            llama.llama_sampler_chain_add(self.handle, sampler)
        if _penalties(options):
            for token in prompt:
                llama.llama_sampler_accept(self.handle, token)

    def _samplers(
        self, options: Mapping[str, Any], seed: int, vocabulary_size: int, context_tokens: int
    ) -> Iterator[int]:
        """Return new samplers in their order. The chain frees them."""
        llama = self._llama
        if biases := options["logit_bias"]:
            listed = [c_api.LogitBias(int(token), value) for token, value in biases.items()]
            array_of = c_api.LogitBias * len(listed)
            yield llama.llama_sampler_init_logit_bias(vocabulary_size, len(listed), array_of(*listed))
        if penalties := _penalties(options):
            yield llama.llama_sampler_init_penalties(vocabulary_size, context_tokens, *penalties)
        if options["temperature"] <= 0:
            yield llama.llama_sampler_init_greedy()
            return
        if options["top_k"]:
            yield llama.llama_sampler_init_top_k(options["top_k"])
        if options["top_p"] < 1:
            yield llama.llama_sampler_init_top_p(options["top_p"], 1)
        yield llama.llama_sampler_init_temp(options["temperature"])
        yield llama.llama_sampler_init_dist(seed % c_api.RANDOM_SEED)

    def close(self) -> None:
        """Free the samplers."""
        if self.handle:
            self._llama.llama_sampler_free(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()


class Sampling:
    """Samples the outputs of a context's last step."""

    def __init__(self, llama: Any, context: int, vocabulary_size: int, threads: int = 1) -> None:
        """`threads`: that sample at once. More than one only where several may ask the library for a step's logits."""
        self._llama, self._context, self._size = llama, context, vocabulary_size
        self._floats = ctypes.c_float * vocabulary_size
        self._candidates: Candidates | None = None
        self._threads = ThreadPoolExecutor(threads - 1, "sampling") if threads > 1 else None
        self._groups = threads

    def next_of_all(self, rows: Sequence[tuple[TextSequence, Chain, int]]) -> list[SampledToken]:
        """Return the next token of each sequence, by its samplers and the logits of its output."""
        plain = all(sequence.options["logprobs"] is None and not sequence.constraint for sequence, _, _ in rows)
        if self._threads is None or not plain or len(rows) * self._size < _SHARED_LOGITS:
            return [self.next(*row) for row in rows]
        first = self.next(*rows[0])  # waits for the device, after which the library only reads
        groups = [rows[1:][start :: self._groups] for start in range(self._groups)]
        others = [self._threads.submit(self._next_of_group, group) for group in groups[1:]]
        sampled = [self._next_of_group(groups[0]), *(other.result() for other in others)]
        return [first, *(sampled[at % self._groups][at // self._groups] for at in range(len(rows) - 1))]

    def _next_of_group(self, rows: Sequence[tuple[TextSequence, Chain, int]]) -> list[SampledToken]:
        return [self.next(*row) for row in rows]

    def next(self, sequence: TextSequence, chain: Chain, output: int) -> SampledToken:
        """Return the next token of a sequence, by the logits of an output."""
        logprobs, constraint = sequence.options["logprobs"], sequence.constraint
        if logprobs is None and constraint is None:
            token: int = self._llama.llama_sampler_sample(chain.handle, self._context, output)
            address = self._llama.llama_get_logits_ith(self._context, output)
            return SampledToken(token, ctypes.c_float.from_address(address + 4 * token).value)
        address = self._llama.llama_get_logits_ith(self._context, output)
        logits = memoryview(self._floats.from_address(address)).cast("B").cast("f")
        if self._candidates is None:
            self._candidates = Candidates(self._llama, self._size)
        token = self._candidates.choose(chain.handle, logits)
        if constraint is not None and not constraint.accept(token):
            token = self._candidates.choose(chain.handle, logits, constraint.allowed())
            if token < 0 or not constraint.accept(token):
                raise WorkerCrashed("The grammar of the response format allows no token.", "Report this as a bug.")
        self._llama.llama_sampler_accept(chain.handle, token)
        if logprobs is None:
            return SampledToken(token, logits[token])
        total, likeliest = self._candidates.likeliest(logits, logprobs)
        return SampledToken(token, logits[token], logits[token] - total, tuple(likeliest))


def _penalties(options: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the penalties of repetition, frequency and presence; nothing if none has an effect."""
    values = tuple(float(options[name]) for name in ("repetition_penalty", "frequency_penalty", "presence_penalty"))
    return () if values == (1.0, 0.0, 0.0) else values
