"""Sampling on the processor: a sampler for each text in a model, and log probabilities if they are asked for."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from backend.engines._text.batch_decoder import Drawn, Text
from backend.engines._text.sampler import Sampler


class HostSampling:
    """The samplers of the texts in a model."""

    def __init__(self) -> None:
        import numpy

        self._np = numpy
        self._samplers: WeakKeyDictionary[Text, Sampler] = WeakKeyDictionary()

    def begin(self, text: Text) -> None:
        """Makes a text's sampler."""
        self._samplers[text] = Sampler(text.options, text.seed, text.prompt)

    def draw(self, text: Text, logits: Any) -> Drawn:
        """The next token; `logits` is a row of float32, which may be changed."""
        highest = float(logits.max())
        wanted = text.options["logprobs"]
        chances = None if wanted is None else self._log_softmax(logits)
        token = self._samplers[text].next(logits)
        if chances is None:
            return Drawn(token, highest)
        best = self._np.argsort(-chances)[:wanted]
        likeliest = tuple((int(other), float(chances[other])) for other in best)
        return Drawn(token, highest, float(chances[token]), likeliest)

    def _log_softmax(self, logits: Any) -> Any:
        values = logits.astype(self._np.float64)
        values -= values.max()
        return values - self._np.log(self._np.exp(values).sum())
