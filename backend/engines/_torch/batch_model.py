"""A model of transformers as rows of texts: one forward pass a step, with a cache of fixed size and sampling beside it.

What a step reads and writes lies on the device and keeps its place: tokens, lengths, cache, chances. The host decides
only which rows take part, how far attention looks (in windows of fixed sizes) and what sampling has to do; it gets ids
back. So a step of the same rows, window and traits can be recorded once and played again: `_torch_graphs.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backend.common.errors import ModelIncompatible
from backend.engines._text.batch_decoder import Drawn, Text
from backend.engines._text.kv_cache import Layer, Place
from backend.engines._torch.gpu_sampler import TorchSampler, Traits, traits_of

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

_TRIAL = 7  # tokens of the text by which a model is tried
_APART = 0.05  # of the largest logit: how far rows of a cache may be off a plain pass; bfloat16 is off by some 0.02
_OTHER = "Choose another engine or model."


class TorchRows:
    """A model with a cache for so many texts of so many tokens. Called from one thread at a time."""

    def __init__(
        self, place: TorchPlace, model: Any, rows: int, context_tokens: int, vocabulary_size: int, name: str
    ) -> None:
        """Raises ModelIncompatible for a model whose kind of attention is not known here."""
        import transformers

        torch = place.torch
        self._torch, self._device, self._model, self._name = torch, place.device, model, name
        self._plain = place.ground.plain
        self.chunk_tokens = 64 if place.ground.type == "cpu" else 512
        self.together_tokens = 256 if place.ground.type == "cpu" else 2048
        self._grain = 64 if place.ground.type == "cpu" else 256
        self._context = context_tokens
        self._vocabulary_size = vocabulary_size
        config = model.config.get_text_config()
        self._mask = _Masks(torch, config, name)
        self._layers = [Layer(rows, context_tokens) for _ in range(config.num_hidden_layers)]
        self._cache = transformers.Cache(layers=self._layers)
        known = inspect.signature(model.forward).parameters
        self._keeps = "logits_to_keep" in known
        self._wanted: dict[str, Any] = {"use_cache": True}
        self._wanted["cache" if "cache" in known else "past_key_values"] = self._cache  # its name up to 5.23
        self._last = torch.zeros((rows, 1), dtype=torch.int64, device=place.device)
        self._lengths = torch.zeros((rows, 1), dtype=torch.int64, device=place.device)
        self._numbers = torch.arange(rows, device=place.device)[:, None]
        self._beside = torch.device("cpu") if self._plain else place.device
        self._sampler = TorchSampler(torch, self._beside, rows, context_tokens, vocabulary_size)

    def begin(self, row: int, text: Text) -> None:
        """Gives a row to a text."""
        self._lengths[row] = 0
        self._sampler.begin(row, text.options, text.seed, text.prompt, text.limit)

    def read(self, row: int, text: Text, ids: list[int], last: bool) -> Drawn | None:
        """A chunk of a prompt."""
        torch = self._torch
        with torch.no_grad():
            self._lengths[row] = text.length
            tokens = torch.tensor([ids], dtype=torch.int64, device=self._device)
            logits = self._forward(tokens, self._place(row, tokens, [text.length]))
            self._lengths[row] = text.length + len(ids)
            return self._drawn(row, logits, [text])[0] if last else None

    def read_together(self, first: int, texts: Sequence[Text]) -> list[Drawn]:
        """Whole prompts, filled up at their ends: what stands there is seen by nobody, and written over later."""
        torch, counts = self._torch, [len(text.prompt) for text in texts]
        padded = [text.prompt + [0] * (max(counts) - len(text.prompt)) for text in texts]
        with torch.no_grad():
            tokens = torch.tensor(padded, dtype=torch.int64, device=self._device)
            logits = self._forward(tokens, self._place(first, tokens, [0] * len(texts)), counts)
            long = torch.tensor([[one] for one in counts], dtype=torch.int64, device=self._device)
            self._lengths[first : first + len(texts)] += long
            return self._drawn(first, logits, texts)

    def write(self, texts: Sequence[Text]) -> list[Drawn]:
        """The next token of each."""
        lengths = [text.length for text in texts]
        traits = traits_of([text.options for text in texts], self._vocabulary_size)
        with self._torch.no_grad():
            told = self._step(len(texts), self._place(0, self._last[: len(texts)], lengths), traits)
            return drawn(told.tolist(), texts, traits)

    def move(self, source: int, target: int, length: int) -> None:
        """A text moves to another row."""
        with self._torch.no_grad():
            for layer in self._layers:
                layer.move(source, target, length)
            for column in (self._last, self._lengths):
                column[target].copy_(column[source])
            self._sampler.move(source, target)

    def try_out(self, ids: list[int]) -> None:
        """Compares rows of a cache with a plain pass over the same text. Raises ModelIncompatible where they differ."""
        torch = self._torch
        with torch.no_grad():
            tokens = torch.tensor([(ids * _TRIAL)[:_TRIAL]], dtype=torch.int64, device=self._device)
            try:
                plain = self._model(input_ids=tokens, use_cache=False).logits[0, -1].float()
                rows = len(self._numbers)
                begin = tokens[:, : _TRIAL - 2]
                self._lengths.fill_(0)
                self._forward(begin, self._place(rows - 1, begin, [0]))
                for read in (_TRIAL - 2, _TRIAL - 1):
                    self._lengths.fill_(read)
                    step = tokens[:, read : read + 1].expand(rows, 1).contiguous()
                    logits = self._forward(step, self._place(0, step, [read] * rows))
            except (TypeError, AttributeError, ValueError, IndexError, NotImplementedError) as error:
                raise ModelIncompatible(
                    f"{self._name} is of a kind ({self._model.config.model_type}) that cannot be driven token by token "
                    f"here: {error}"[:600],
                    _OTHER,
                ) from error
            apart = float((logits[-1] - plain).abs().max()) / max(float(plain.abs().max()), 1e-6)
        if not apart <= _APART:
            raise ModelIncompatible(
                f"{self._name} ({self._model.config.model_type}) says something else token by token than at once "
                f"(logits differ by {apart:.0%} of the largest), so it is not driven here.",
                _OTHER,
            )

    def _place(self, first: int, ids: Any, lengths: list[int]) -> Place:
        """Where `ids` (rows, tokens) come: rows `first` and on, behind what they hold, `lengths` as the host knows."""
        rows, positions = slice(first, first + ids.shape[0]), self._lengths[first : first + ids.shape[0]]
        if ids.shape[1] > 1:
            positions = positions + self._torch.arange(ids.shape[1], device=self._device)
        window = self._window(max(lengths) + ids.shape[1])
        return Place(first, len(lengths), window, self._numbers[rows], positions, lengths if self._plain else None)

    def _window(self, tokens: int) -> int:
        """How far attention looks where it has to see so many."""
        return min(self._context, -(-tokens // self._grain) * self._grain)

    def _step(self, count: int, place: Place, traits: Traits, writing: Any = None) -> Any:
        """The next token of rows 0 to `count`, and what is told of it; nothing in it needs the host."""
        logits = self._forward(self._last[:count], place)
        self._lengths[:count] += 1 if writing is None else writing
        chosen, told = self._sampler.next(logits.to(self._beside), 0, traits, writing)
        self._last[:count] = chosen.to(self._device)
        return told

    def _forward(self, ids: Any, place: Place, counts: list[int] | None = None, last: Any = None) -> Any:
        """One pass; logits (rows, vocabulary) of each row's last token, as float32.

        `counts`: of each row only so many tokens are meant. `last` (1,): which token is the last of all rows, where
        only the device knows.
        """
        torch = self._torch
        for layer in self._layers:
            layer.place = place
        lasts = sorted({one - 1 for one in counts or [ids.shape[1]]})  # of these tokens the logits are wanted
        wanted = torch.tensor(lasts, dtype=torch.int64, device=self._device) if counts else 1 if last is None else last
        out = self._model(
            input_ids=ids,
            attention_mask=self._mask.of(place.positions, place.window),
            position_ids=place.positions,
            **self._wanted,
            **({"logits_to_keep": wanted} if self._keeps else {}),
        )
        logits = out.logits
        if last is not None and not self._keeps:
            logits = logits.index_select(1, last)
        if counts is None:
            return logits[:, -1, : self._vocabulary_size].float()
        which = [lasts.index(one - 1) if self._keeps else one - 1 for one in counts]
        each = [logits[row : row + 1, at, : self._vocabulary_size] for row, at in enumerate(which)]
        return torch.cat(each, 0).float()

    def _drawn(self, first: int, logits: Any, texts: Sequence[Text]) -> list[Drawn]:
        traits = traits_of([text.options for text in texts], self._vocabulary_size)
        chosen, told = self._sampler.next(logits.to(self._beside), first, traits)
        self._last[first : first + len(texts)] = chosen.to(self._device)
        return drawn(told.tolist(), texts, traits)


def drawn(told: list[list[float]], texts: Sequence[Text], traits: Traits) -> list[Drawn]:
    """What the device told of the tokens of these texts."""
    return [_drawn(row, traits.logprobs, text.options) for row, text in zip(told, texts, strict=True)]


def _drawn(told: list[float], listed: int | None, options: Mapping[str, Any]) -> Drawn:
    if (wanted := options["logprobs"]) is None or listed is None:
        return Drawn(int(told[0]), told[1])
    ids, chances = told[3 : 3 + listed], told[3 + listed :]
    likeliest = tuple(zip(map(int, ids[:wanted]), chances[:wanted], strict=True))
    return Drawn(int(told[0]), told[1], told[2], likeliest)


class _Masks:
    """What each token may look at: what stands before it in its row, in some models only so far back."""

    def __init__(self, torch: Any, config: Any, name: str) -> None:
        self._torch = torch
        self._adds = config._attn_implementation == "eager"  # there masks are added, else they are true and false
        self._number = getattr(config, "dtype", None) or torch.float32
        kinds = set(getattr(config, "layer_types", None) or ())
        if odd := sorted(kinds - {"full_attention", "sliding_attention"}):
            raise ModelIncompatible(f"{name} has layers of a kind that is not known here: {', '.join(odd)}.", _OTHER)
        self._kinds = kinds if "sliding_attention" in kinds else set()
        self._span = getattr(config, "sliding_window", None) if self._kinds or not kinds else None

    def of(self, positions: Any, window: int) -> Any:
        """For tokens at `positions` (rows, tokens): (rows, 1, tokens, window), or one of them a kind of layer."""
        back = positions[:, None, :, None] - self._torch.arange(window, device=positions.device)
        full = back >= 0
        near = full & (back < self._span) if self._span else full
        if not self._kinds:
            return self._as_wanted(near)
        return {kind: self._as_wanted(near if kind == "sliding_attention" else full) for kind in sorted(self._kinds)}

    def _as_wanted(self, allowed: Any) -> Any:
        if not self._adds:
            return allowed
        torch = self._torch
        lowest = torch.finfo(self._number).min
        zeros = torch.zeros(allowed.shape, dtype=self._number, device=allowed.device)
        return zeros.masked_fill(~allowed, lowest)
