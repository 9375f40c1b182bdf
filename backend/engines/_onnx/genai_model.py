"""The graph of an ONNX Runtime GenAI folder as a `BatchModel`, with sampling on the CPU.

GenAI 0.18 has no continuous batching on CPUs: its engine starts and ends a batch as one, and hides the session, whose
profile records where nodes run. So this module runs the graph. The attention of these graphs takes one length per row
(`seqlens_k` of GroupQueryAttention, computed from the mask) and writes the KV cache in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.common.errors import ModelIncompatible
from backend.engines._onnx.genai_config import GenaiFolder
from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.engines._text.cpu_sampling import HostSampling

PREFILL_CHUNK_TOKENS = 64
PREFILL_BATCH_TOKENS = 256
_LOGITS_BYTES = 64 * 1024**2  # limit for a prefill batch, where the graph returns the logits of every token


class GenaiBatchModel:
    """An ONNX Runtime session, its KV cache and the samplers of its sequences."""

    prefill_chunk_tokens = PREFILL_CHUNK_TOKENS

    def __init__(self, session: Any, folder: GenaiFolder, context_tokens: int, rows: int, in_place: bool) -> None:
        """`in_place`: attention writes into the KV cache that it reads, as ONNX Runtime's CPU kernel does.

        Raises ModelIncompatible for a graph with unknown inputs.
        """
        import numpy

        self._np = numpy
        self._graph = _Graph(session, folder, context_tokens, rows, in_place)
        self.prefill_batch_tokens = self._graph.together_tokens
        self._sampling = HostSampling()

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        """Create the sequence's sampler. The row needs no preparation."""
        self._sampling.add(sequence)

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        """Prefill a chunk of a prompt; return a token after the last chunk."""
        logits = self._graph.run(row, self._np.array([ids], self._np.int64), [sequence.length])
        return self._sampling.sample(sequence, logits[0]) if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Prefill several prompts, padded at the end to the longest.

        If the graph returns logits for the last position alone, the last tokens are computed in a second pass.
        """
        prompts, counts = [sequence.prompt for sequence in sequences], [len(sequence.prompt) for sequence in sequences]
        if self._graph.has_all_logits or min(counts) == max(counts):
            logits = self._graph.run(first, self._pad(prompts), [0] * len(sequences), counts)
        else:
            # Rows of length 0 are not allowed: a prompt of one token is computed twice, at the same position.
            self._graph.run(
                first, self._pad(prompts)[:, :-1], [0] * len(sequences), [max(count - 1, 1) for count in counts]
            )
            lasts = self._pad([prompt[-1:] for prompt in prompts])
            logits = self._graph.run(first, lasts, [count - 1 for count in counts])
        return [self._sampling.sample(sequence, row) for sequence, row in zip(sequences, logits, strict=True)]

    def _pad(self, prompts: Sequence[list[int]]) -> Any:
        ids = self._np.zeros((len(prompts), max(map(len, prompts))), self._np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        return ids

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Run one decode step; return the next token of each sequence."""
        ids = self._np.array([[sequence.last_token] for sequence in sequences], self._np.int64)
        logits = self._graph.run(0, ids, [sequence.length for sequence in sequences])
        return [self._sampling.sample(sequence, row) for sequence, row in zip(sequences, logits, strict=True)]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the cached tokens of a row to another row."""
        self._graph.move_row(source, target, length)

    def force_token(self, row: int, token: int) -> None:
        """Do nothing: a step reads the sequence's last token."""


class _Graph:
    """The session with its KV cache: per layer one array for keys and one for values, with one row per sequence."""

    def __init__(self, session: Any, folder: GenaiFolder, context_tokens: int, rows: int, in_place: bool) -> None:
        import numpy

        self._np, self._session, self._in_place = numpy, session, in_place
        decoder = folder.decoder
        inputs, outputs = decoder["inputs"], decoder["outputs"]
        self._names = {"ids": inputs["input_ids"], "logits": outputs["logits"]}
        for name in ("attention_mask", "position_ids"):
            if inputs.get(name):
                self._names[name] = inputs[name]
        layers = range(int(decoder["num_hidden_layers"]))
        pasts, presents = [], []
        for side in ("key", "value"):
            pasts += [inputs[f"past_{side}_names"] % layer for layer in layers]
            presents += [outputs[f"present_{side}_names"] % layer for layer in layers]
        types = {item.name: item.type for item in session.get_inputs()}
        unknown = set(types) - set(pasts) - set(self._names.values())
        if unknown or not set(pasts) <= set(types):
            listed = ", ".join(sorted(unknown)[:3]) or "no inputs for its cache"
            raise ModelIncompatible(
                f"{folder.path.name} is not supported: its graph has {listed}.", "Choose another engine or model."
            )
        kinds = {"tensor(float)": numpy.float32, "tensor(float16)": numpy.float16}
        kind = kinds.get(types[pasts[0]])
        logits = next(item for item in session.get_outputs() if item.name == self._names["logits"])
        self._logits_kind = kinds.get(logits.type)
        if kind is None or self._logits_kind is None or not isinstance(logits.shape[2], int):
            raise ModelIncompatible(
                f"{folder.path.name} has an unsupported data type: its KV cache is {types[pasts[0]]} and its logits "
                f"are {logits.type} {logits.shape}.",
                "Choose another engine or model.",
            )
        self._vocabulary = logits.shape[2]
        self.has_all_logits = logits.shape[1] != 1  # otherwise it returns the logits of the last token alone
        # Attention accepts several tokens in rows of different lengths only if all rows start empty.
        token_bytes = self._vocabulary * numpy.dtype(self._logits_kind).itemsize
        limit = min(PREFILL_BATCH_TOKENS, _LOGITS_BYTES // token_bytes) if self.has_all_logits else PREFILL_BATCH_TOKENS
        self.together_tokens = limit if in_place else 0
        self._logits = numpy.empty((rows, 1, self._vocabulary), self._logits_kind)
        shape = (rows, int(decoder["num_key_value_heads"]), context_tokens, int(decoder["head_size"]))
        # Zero pages take no memory until they are written.
        self._cache = [numpy.zeros(shape, kind) for _ in pasts]
        self._pairs = list(zip(pasts, presents, self._cache, strict=True))
        self._kind = kind
        self._bound: tuple[tuple[int, int], Any] | None = None
        self._kept: list[Any] = []

    def run(self, first: int, ids: Any, lengths: list[int], counts: list[int] | None = None) -> Any:
        """Run one pass over rows `first` and up; return the logits (rows, vocabulary) of each row's last token.

        `ids` (rows, tokens) are appended to the `lengths` tokens that each row holds. `counts`: optional, the number
        of valid tokens in each row of `ids`. The returned float32 array is valid until the next pass.
        """
        np, (rows, tokens) = self._np, ids.shape
        counts = counts or [tokens] * rows
        if not self._in_place:
            apart = [self._run_apart(first + row, ids[row : row + 1], lengths[row]) for row in range(rows)]
            return np.concatenate(apart)
        binding = self._binding(first, rows)
        self._kept = [np.ascontiguousarray(ids)]  # referenced while the library reads it
        binding.bind_cpu_input(self._names["ids"], self._kept[-1])
        longest = max(lengths) + tokens
        if "attention_mask" in self._names:
            mask = np.arange(longest) < (np.array(lengths) + counts)[:, None]
            self._kept.append(mask.astype(np.int64))
            binding.bind_cpu_input(self._names["attention_mask"], self._kept[-1])
        if "position_ids" in self._names:
            positions = np.array(lengths, np.int64)[:, None] + np.arange(tokens, dtype=np.int64)
            self._kept.append(positions)
            binding.bind_cpu_input(self._names["position_ids"], positions)
        logits = self._logits[:rows]
        if tokens > 1 and self.has_all_logits:
            logits = np.empty((rows, tokens, self._vocabulary), self._logits_kind)
        binding.bind_output(self._names["logits"], "cpu", 0, self._logits_kind, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(binding)
        if logits.shape[1] > 1:
            logits = logits[np.arange(rows), np.array(counts) - 1]
        return logits.reshape(rows, -1).astype(np.float32, copy=False)

    def _run_apart(self, row: int, ids: Any, length: int) -> Any:
        """Run one row, with a KV cache of exact length as input and a longer one as output; every provider can."""
        np, tokens = self._np, ids.shape[1]
        feeds = {self._names["ids"]: ids}
        if "attention_mask" in self._names:
            feeds[self._names["attention_mask"]] = np.ones((1, length + tokens), np.int64)
        if "position_ids" in self._names:
            feeds[self._names["position_ids"]] = np.arange(length, length + tokens, dtype=np.int64)[None]
        for past, _, cache in self._pairs:
            feeds[past] = np.ascontiguousarray(cache[row : row + 1, :, :length])
        presents = [present for _, present, _ in self._pairs]
        logits, *longer = self._session.run([self._names["logits"], *presents], feeds)
        for (_, _, cache), present in zip(self._pairs, longer, strict=True):
            cache[row, :, length : length + tokens] = present[0, :, length : length + tokens]
        return logits[:, -1].astype(np.float32)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row to another row."""
        for cache in self._cache:
            cache[target, :, :length] = cache[source, :, :length]

    def _binding(self, first: int, rows: int) -> Any:
        """Return a binding with the rows of the KV cache as input and as output; reused for the same rows."""
        if self._bound and self._bound[0] == (first, rows):
            return self._bound[1]
        binding = self._session.io_binding()
        for past, present, cache in self._pairs:
            view = cache[first : first + rows]
            binding.bind_input(past, "cpu", 0, self._kind, view.shape, view.ctypes.data)
            binding.bind_output(present, "cpu", 0, self._kind, view.shape, view.ctypes.data)
        self._bound = ((first, rows), binding)
        return binding
