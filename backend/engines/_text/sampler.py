"""Choose the next token from logits, in the order of llama.cpp's samplers, so that options mean the same everywhere.

The order is: biases, penalties, the `top_k` most likely tokens, of these the `top_p` share, then the temperature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_CHUNK = 64  # the highest logits are searched by chunks, which is much faster in NumPy than sorting all logits


class Sampler:
    """The sampler of one request. `prompt` and the generated tokens are what its penalties count."""

    def __init__(self, options: Mapping[str, Any], seed: int, prompt: Sequence[int]) -> None:
        import numpy

        self._np = numpy
        self._options = options
        self._random = numpy.random.Generator(numpy.random.PCG64(seed))
        bias = options["logit_bias"] or {}
        self._bias = [(int(token), value) for token, value in bias.items()]
        self._penalised = (
            options["repetition_penalty"] != 1 or options["presence_penalty"] != 0 or options["frequency_penalty"] != 0
        )
        self._seen = Counter(prompt) if self._penalised else Counter()

    def next(self, logits: Any) -> int:
        """Return the next token. `logits` (vocabulary,) is float32 and may be modified."""
        self._weigh(logits)
        token = self._chosen(logits)
        if self._penalised:
            self._seen[token] += 1
        return token

    def _weigh(self, logits: Any) -> None:
        for token, value in self._bias:
            if token < len(logits):
                logits[token] += value
        if self._penalised:
            ids = self._np.fromiter(self._seen, self._np.int64, len(self._seen))
            times = self._np.fromiter(self._seen.values(), self._np.float32, len(self._seen))
            seen, by = logits[ids], self._options["repetition_penalty"]
            seen = self._np.where(seen > 0, seen / by, seen * by)
            logits[ids] = seen - times * self._options["frequency_penalty"] - self._options["presence_penalty"]

    def _chosen(self, logits: Any) -> int:
        np, options = self._np, self._options
        if options["temperature"] <= 0:
            return int(logits.argmax())
        count = min(options["top_k"] or len(logits), len(logits))
        ids = self._likeliest(logits, count)
        values = logits[ids].astype(np.float64)
        if options["top_p"] < 1:
            shares = np.exp(values - values[0])
            reached = np.cumsum(shares) >= options["top_p"] * shares.sum()
            kept = int(reached.argmax()) + 1
            ids, values = ids[:kept], values[:kept]
        shares = np.exp((values - values[0]) / options["temperature"])
        sums = np.cumsum(shares)
        return int(ids[np.searchsorted(sums, self._random.random() * sums[-1], side="right").clip(max=len(ids) - 1)])

    def _likeliest(self, logits: Any, count: int) -> Any:
        """Return the ids of the `count` highest logits, highest first.

        They are all in the `count` chunks with the highest maxima.
        """
        np = self._np
        chunked = len(logits) // _CHUNK * _CHUNK  # logits in full chunks
        if count * 4 < chunked // _CHUNK:
            chunks = logits[:chunked].reshape(-1, _CHUNK)
            best = np.argpartition(chunks.max(1), -count)[-count:]
            rest = np.arange(chunked, len(logits))
            ids = np.concatenate([(best[:, None] * _CHUNK + np.arange(_CHUNK)).ravel(), rest])
        else:
            ids = np.arange(len(logits))
        values = logits[ids]
        if count < len(ids):
            some = np.argpartition(values, -count)[-count:]
            ids, values = ids[some], values[some]
        return ids[np.argsort(-values, kind="stable")]
