"""Sampling of MusicGen's codes, and a callback for each step, within transformers' own `generate`.

The library samples a complete batch from one random state, so a song would depend on the others in its batch. Here
each song has its own random numbers, from its seed, and sampling runs on the CPU: the same numbers on every device.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backend.common.error_patterns import require_finite

if TYPE_CHECKING:
    from collections.abc import Callable

_BELOW_ONE = 1 - 2.0**-24


class SamplingProcessor:
    """A logits processor that leaves one token per row, by temperature, `top_k`, `top_p` and random numbers."""

    def __init__(self, torch: Any, options: Mapping[str, Any], seeds: Sequence[int]) -> None:
        import numpy

        self._torch = torch
        self._temperature, self._top_k = float(options["temperature"]), int(options["top_k"])
        self._top_p = float(options["top_p"])
        self._chances = [numpy.random.Generator(numpy.random.PCG64(seed)) for seed in seeds]

    def __call__(self, ids: Any, scores: Any) -> Any:
        """Return scores (songs · codebooks, vocabulary) that allow only the sampled token. Raises WorkerCrashed."""
        import numpy

        torch = self._torch
        values = scores.detach().to("cpu", torch.float32).numpy()
        require_finite(float(numpy.abs(values).max()))
        chosen = values.argmax(-1) if self._temperature == 0 else self._sample(values)
        kept = torch.full(tuple(scores.shape), -torch.inf)
        kept[torch.arange(len(values)), torch.from_numpy(chosen)] = 0.0
        return kept.to(scores.device, scores.dtype)

    def _sample(self, values: Any) -> Any:
        import numpy

        order = numpy.argsort(-values, -1, kind="stable")[:, : self._top_k or None]
        likeliest = numpy.take_along_axis(values, order, -1).astype(numpy.float64) / self._temperature
        shares = numpy.exp(likeliest - likeliest[:, :1])
        sums = shares.cumsum(-1)
        if self._top_p < 1:
            shares *= (sums - shares) < self._top_p * sums[:, -1:]
            sums = shares.cumsum(-1)
        rows = len(values) // len(self._chances)
        chances = numpy.concatenate([numpy.minimum(each.random(rows), _BELOW_ONE) for each in self._chances])
        places = (sums <= chances[:, None] * sums[:, -1:]).sum(-1)
        places = numpy.minimum(places, (shares > 0).sum(-1) - 1)
        return numpy.take_along_axis(order, places[:, None], -1)[:, 0]


def guidance_before_sampling(transformers: Any, choice: SamplingProcessor) -> Any:
    """Return processors with the sampler last: `generate` appends its guidance, which must come before it."""

    class GuidedFirst(transformers.LogitsProcessorList):  # type: ignore[misc]
        def append(self, processor: Any) -> None:
            self.insert(0, processor)

    return GuidedFirst([choice])


def each_step(torch: Any, transformers: Any, on_step: Callable[[int], None]) -> Any:
    """Return stopping criteria that never stop and call `on_step` after each step; `on_step` may raise.

    A criterion that stops within a song leaves codebooks of different lengths, which makes `generate` fail.
    """

    class EachStep(transformers.StoppingCriteria):  # type: ignore[misc]
        done = 0

        def __call__(self, ids: Any, scores: Any, **more: Any) -> Any:
            self.done += 1
            on_step(self.done)
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    return transformers.StoppingCriteriaList([EachStep()])


def condition_from_the_first(model: Any) -> None:
    """Make MusicGen Melody use prompt and melody in transformers 5.13.1, the newest for torch 2.4.1.

    Its model uses both for the first token only, and recognised that token by a missing cache; but `generate` creates
    an empty cache before, so both were ignored. Later versions pass which step is the first.
    """
    prepare = model.prepare_inputs_for_generation
    if "is_first_iteration" in inspect.signature(prepare).parameters:
        return

    @functools.wraps(prepare)
    def prepared(ids: Any, encoder_hidden_states: Any = None, past_key_values: Any = None, **more: Any) -> Any:
        given = prepare(ids, encoder_hidden_states, past_key_values, **more)
        if past_key_values is not None and past_key_values.get_seq_length() == 0:
            given["encoder_hidden_states"] = encoder_hidden_states
        return given

    model.prepare_inputs_for_generation = prepared
