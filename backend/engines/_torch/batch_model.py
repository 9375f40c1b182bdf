"""A model of transformers as a `BatchModel`: one forward pass per step, with a KV cache of fixed size and sampling.

What a step reads and writes stays on the device at a fixed address: tokens, lengths, KV cache, random numbers. The host
only decides which rows take part, how far attention looks (in windows of fixed sizes) and what sampling has to do; it
gets token ids back. So a step with the same rows, window and traits can be recorded once and replayed:
`cuda_graphs.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backend.common.errors import ModelIncompatible
from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.engines._text.kv_cache import Layer, Place
from backend.engines._torch.gpu_sampler import TorchSampler, Traits, traits_of

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

_CHECK_TOKENS = 7  # length of the prompt in `verify_incremental`
# Relative to the largest logit. In bfloat16 rounding alone differs by 0.02, and by more than 0.05 where all logits are
# small, as those of 8 billion random weights. A wrong position or mask differs by more than half.
_MAX_DIFFERENCE, _MAX_HALF_DIFFERENCE = 0.05, 0.2
_OTHER = "Choose another engine or model."


class TorchBatchModel:
    """A model with a KV cache of `rows` rows of `context_tokens` tokens. Called from one thread at a time."""

    def __init__(
        self, place: TorchPlace, model: Any, rows: int, context_tokens: int, vocabulary_size: int, name: str
    ) -> None:
        """Allocate the cache. Raises ModelIncompatible for a model with an unsupported kind of attention."""
        import transformers

        torch = place.torch
        self._torch, self._device, self._model, self._name = torch, place.device, model, name
        self._plain = place.access.plain_only
        self.prefill_chunk_tokens = 64 if place.access.type == "cpu" else 512
        self.prefill_batch_tokens = 256 if place.access.type == "cpu" else 2048
        self._grain = 64 if place.access.type == "cpu" else 256
        self._context = context_tokens
        self._vocabulary_size = vocabulary_size
        config = model.config.get_text_config()
        self._masks = _Masks(torch, config, name)
        self._layers = [Layer(rows, context_tokens) for _ in range(config.num_hidden_layers)]
        self._cache = transformers.Cache(layers=self._layers)
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._forward_args: dict[str, Any] = {"use_cache": True}
        self._forward_args["cache" if "cache" in parameters else "past_key_values"] = self._cache  # its name up to 5.23
        self._last = torch.zeros((rows, 1), dtype=torch.int64, device=place.device)
        self._lengths = torch.zeros((rows, 1), dtype=torch.int64, device=place.device)
        self._numbers = torch.arange(rows, device=place.device)[:, None]
        self._sampling_device = torch.device("cpu") if self._plain else place.device
        self._sampler = TorchSampler(torch, self._sampling_device, rows, context_tokens, vocabulary_size)

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        """Reset the row's length and set its sampling options."""
        self._lengths[row] = 0
        self._sampler.assign_row(row, sequence.options, sequence.seed, sequence.prompt, sequence.max_tokens)

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        """Prefill a chunk of a prompt; return a token after the last chunk."""
        torch = self._torch
        with torch.no_grad():
            self._lengths[row] = sequence.length
            tokens = torch.tensor([ids], dtype=torch.int64, device=self._device)
            logits = self._forward(tokens, self._place(row, tokens, [sequence.length]))
            self._lengths[row] = sequence.length + len(ids)
            return self._sample(row, logits, [sequence])[0] if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Prefill several complete prompts, padded at the end. Padding is never read and is overwritten later."""
        torch, counts = self._torch, [len(sequence.prompt) for sequence in sequences]
        padded = [sequence.prompt + [0] * (max(counts) - len(sequence.prompt)) for sequence in sequences]
        with torch.no_grad():
            tokens = torch.tensor(padded, dtype=torch.int64, device=self._device)
            logits = self._forward(tokens, self._place(first, tokens, [0] * len(sequences)), counts)
            long = torch.tensor([[count] for count in counts], dtype=torch.int64, device=self._device)
            self._lengths[first : first + len(sequences)] += long
            return self._sample(first, logits, sequences)

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Run one decode step; return the next token of each sequence."""
        lengths = [sequence.length for sequence in sequences]
        traits = traits_of([sequence.options for sequence in sequences], self._vocabulary_size)
        with self._torch.no_grad():
            outputs = self._step(len(sequences), self._place(0, self._last[: len(sequences)], lengths), traits)
            return to_sampled_tokens(outputs.tolist(), sequences, traits)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move a sequence to another row."""
        with self._torch.no_grad():
            for layer in self._layers:
                layer.move(source, target, length)
            for column in (self._last, self._lengths):
                column[target].copy_(column[source])
            self._sampler.move_row(source, target)

    def force_token(self, row: int, token: int) -> None:
        """Replace the last token of a row."""
        self._last[row] = token

    def verify_incremental(self, ids: list[int]) -> None:
        """Compare incremental decoding with a full forward pass. Raises ModelIncompatible if the logits differ."""
        torch = self._torch
        with torch.no_grad():
            tokens = torch.tensor([(ids * _CHECK_TOKENS)[:_CHECK_TOKENS]], dtype=torch.int64, device=self._device)
            try:
                full = self._model(input_ids=tokens, use_cache=False).logits[0, -1]
                plain = full.float()
                rows = len(self._numbers)
                begin = tokens[:, : _CHECK_TOKENS - 2]
                self._lengths.fill_(0)
                self._forward(begin, self._place(rows - 1, begin, [0]))
                for read in (_CHECK_TOKENS - 2, _CHECK_TOKENS - 1):
                    self._lengths.fill_(read)
                    step = tokens[:, read : read + 1].expand(rows, 1).contiguous()
                    logits = self._forward(step, self._place(0, step, [read] * rows))
            except (TypeError, AttributeError, ValueError, IndexError, NotImplementedError) as error:
                raise ModelIncompatible(
                    f"{self._name} ({self._model.config.model_type}) does not support incremental decoding: {error}"[
                        :600
                    ],
                    _OTHER,
                ) from error
            difference = float((logits[-1] - plain).abs().max()) / max(float(plain.abs().max()), 1e-6)
        if not difference <= (_MAX_HALF_DIFFERENCE if full.element_size() < 4 else _MAX_DIFFERENCE):
            raise ModelIncompatible(
                f"Incremental decoding of {self._name} ({self._model.config.model_type}) does not match a full forward "
                f"pass (logits differ by {difference:.0%}).",
                _OTHER,
            )

    def _place(self, first: int, ids: Any, lengths: list[int]) -> Place:
        """Return where `ids` (rows, tokens) go: rows `first` and up, each after its `lengths` tokens."""
        rows, positions = slice(first, first + ids.shape[0]), self._lengths[first : first + ids.shape[0]]
        if ids.shape[1] > 1:
            positions = positions + self._torch.arange(ids.shape[1], device=self._device)
        window = self._window(max(lengths) + ids.shape[1])
        return Place(first, len(lengths), window, self._numbers[rows], positions, lengths if self._plain else None)

    def _window(self, tokens: int) -> int:
        """Return how far attention looks if it has to see `tokens` tokens."""
        return min(self._context, -(-tokens // self._grain) * self._grain)

    def _step(self, count: int, place: Place, traits: Traits, active: Any = None) -> Any:
        """Decode rows 0 to `count` without waiting for the host; return the sampler's output (see `TorchSampler.next`).

        `active` (rows, 1): optional, 1 for rows with a sequence and 0 for padding.
        """
        logits = self._forward(self._last[:count], place)
        self._lengths[:count] += 1 if active is None else active
        chosen, outputs = self._sampler.next(logits.to(self._sampling_device), 0, traits, active)
        self._last[:count] = chosen.to(self._device)
        return outputs

    def _forward(self, ids: Any, place: Place, counts: list[int] | None = None, last: Any = None) -> Any:
        """Run one pass; return the logits (rows, vocabulary) of each row's last token as float32.

        `counts`: optional, the number of valid tokens of each row. `last` (1,): optional, the index of the last token
        of all rows, where only the device knows it.
        """
        torch = self._torch
        for layer in self._layers:
            layer.place = place
        lasts = sorted({count - 1 for count in counts or [ids.shape[1]]})  # logits of these positions are returned
        wanted = torch.tensor(lasts, dtype=torch.int64, device=self._device) if counts else 1 if last is None else last
        out = self._model(
            input_ids=ids,
            attention_mask=self._masks.of(place.positions, place.window),
            position_ids=place.positions,
            **self._forward_args,
            **({"logits_to_keep": wanted} if self._keeps_logits else {}),
        )
        logits = out.logits
        if last is not None and not self._keeps_logits:
            logits = logits.index_select(1, last)
        if counts is None:
            return logits[:, -1, : self._vocabulary_size].float()
        which = [lasts.index(count - 1) if self._keeps_logits else count - 1 for count in counts]
        each = [logits[row : row + 1, at, : self._vocabulary_size] for row, at in enumerate(which)]
        return torch.cat(each, 0).float()

    def _sample(self, first: int, logits: Any, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        traits = traits_of([sequence.options for sequence in sequences], self._vocabulary_size)
        chosen, outputs = self._sampler.next(logits.to(self._sampling_device), first, traits)
        self._last[first : first + len(sequences)] = chosen.to(self._device)
        return to_sampled_tokens(outputs.tolist(), sequences, traits)


def to_sampled_tokens(
    outputs: list[list[float]], sequences: Sequence[TextSequence], traits: Traits
) -> list[SampledToken]:
    """Convert the sampler's output (rows, columns) to one token per sequence."""
    return [
        _to_sampled_token(row, traits.logprobs, sequence.options)
        for row, sequence in zip(outputs, sequences, strict=True)
    ]


def _to_sampled_token(values: list[float], listed: int | None, options: Mapping[str, Any]) -> SampledToken:
    if (wanted := options["logprobs"]) is None or listed is None:
        return SampledToken(int(values[0]), values[1])
    ids, logprobs = values[3 : 3 + listed], values[3 + listed :]
    top_logprobs = tuple(zip(map(int, ids[:wanted]), logprobs[:wanted], strict=True))
    return SampledToken(int(values[0]), values[1], values[2], top_logprobs)


class _Masks:
    """Attention masks: each token sees the earlier tokens of its row, in some models only those of a sliding window."""

    def __init__(self, torch: Any, config: Any, name: str) -> None:
        self._torch = torch
        self._adds = config._attn_implementation == "eager"  # there masks are added, else they are true and false
        self._number = getattr(config, "dtype", None) or torch.float32
        kinds = set(getattr(config, "layer_types", None) or ())
        if odd := sorted(kinds - {"full_attention", "sliding_attention"}):
            raise ModelIncompatible(f"{name} has layers of an unsupported kind: {', '.join(odd)}.", _OTHER)
        self._kinds = kinds if "sliding_attention" in kinds else set()
        self._span = getattr(config, "sliding_window", None) if self._kinds or not kinds else None

    def of(self, positions: Any, window: int) -> Any:
        """Return the mask (rows, 1, tokens, window) for `positions` (rows, tokens), or one mask per kind of layer."""
        back = positions[:, None, :, None] - self._torch.arange(window, device=positions.device)
        full = back >= 0
        near = full & (back < self._span) if self._span else full
        if not self._kinds:
            return self._to_mask(near)
        return {kind: self._to_mask(near if kind == "sliding_attention" else full) for kind in sorted(self._kinds)}

    def _to_mask(self, allowed: Any) -> Any:
        if not self._adds:
            return allowed
        torch = self._torch
        lowest = torch.finfo(self._number).min
        zeros = torch.zeros(allowed.shape, dtype=self._number, device=allowed.device)
        return zeros.masked_fill(~allowed, lowest)
