"""Sampling on the CPU: one sampler per sequence, and log probabilities if requested."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.engines._text.sampler import Sampler


class HostSampling:
    """The samplers of all sequences of a model. A sampler is dropped together with its sequence."""

    def __init__(self) -> None:
        import numpy

        self._np = numpy
        self._samplers: WeakKeyDictionary[TextSequence, Sampler] = WeakKeyDictionary()

    def add(self, sequence: TextSequence) -> None:
        """Create the sampler of a sequence from its options and seed."""
        self._samplers[sequence] = Sampler(sequence.options, sequence.seed, sequence.prompt)

    def sample(self, sequence: TextSequence, logits: Any) -> SampledToken:
        """Return the next token. `logits` (vocabulary,) is float32 and may be modified."""
        max_logit = float(logits.max())
        count = sequence.options["logprobs"]
        logprobs = None if count is None else self._log_softmax(logits)
        token = self._samplers[sequence].next(logits)
        if logprobs is None:
            return SampledToken(token, max_logit)
        best = self._np.argsort(-logprobs)[:count]
        top_logprobs = tuple((int(other), float(logprobs[other])) for other in best)
        return SampledToken(token, max_logit, float(logprobs[token]), top_logprobs)

    def _log_softmax(self, logits: Any) -> Any:
        values = logits.astype(self._np.float64)
        values -= values.max()
        return values - self._np.log(self._np.exp(values).sum())
