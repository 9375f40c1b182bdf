"""The graph of a GenAI folder as rows of texts, with sampling on the processor.

GenAI 0.18 itself cannot on processors: its engine begins a batch together and ends it together, and hides the session
whose record tells where the nodes run. So its graph is driven here. The attention of these graphs takes a length for
each row (GroupQueryAttention's `seqlens_k`, made from the mask), with the cache written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.common.errors import ModelIncompatible
from backend.engines._onnx.genai_config import GenaiFolder
from backend.engines._text.batch_decoder import Drawn, Text
from backend.engines._text.cpu_sampling import HostSampling

PROMPT_CHUNK_TOKENS = 64
TOGETHER_TOKENS = 256
_LOGITS_BYTES = 64 * 1024**2  # of prompts read together: such a graph gives the logits of every token


class GenaiRows:
    """One session and what its texts are sampled with."""

    chunk_tokens = PROMPT_CHUNK_TOKENS

    def __init__(self, session: Any, folder: GenaiFolder, context_tokens: int, rows: int, in_place: bool) -> None:
        """`in_place`: the attention writes into the cache that it reads, as ONNX Runtime's own does on processors.

        Raises ModelIncompatible for a graph with inputs that are not known here.
        """
        import numpy

        self._np = numpy
        self._graph = _Graph(session, folder, context_tokens, rows, in_place)
        self.together_tokens = self._graph.together_tokens
        self._sampling = HostSampling()

    def begin(self, row: int, text: Text) -> None:
        """Makes its sampler; the row needs nothing."""
        self._sampling.begin(text)

    def read(self, row: int, text: Text, ids: list[int], last: bool) -> Drawn | None:
        """A chunk of a prompt."""
        logits = self._graph.run(row, self._np.array([ids], self._np.int64), [text.length])
        return self._sampling.draw(text, logits[0]) if last else None

    def read_together(self, first: int, texts: Sequence[Text]) -> list[Drawn]:
        """Whole prompts, filled up at their ends to the longest.

        Where the graph gives the logits of the longest one's end alone, the last tokens are a step of their own.
        """
        prompts, counts = [text.prompt for text in texts], [len(text.prompt) for text in texts]
        if self._graph.tells_each or min(counts) == max(counts):
            logits = self._graph.run(first, self._filled(prompts), [0] * len(texts), counts)
        else:
            # A row of length 0 is not allowed: the first token of such a prompt is put there twice, in the same place.
            self._graph.run(first, self._filled(prompts)[:, :-1], [0] * len(texts), [max(one - 1, 1) for one in counts])
            lasts = self._filled([prompt[-1:] for prompt in prompts])
            logits = self._graph.run(first, lasts, [one - 1 for one in counts])
        return [self._sampling.draw(text, row) for text, row in zip(texts, logits, strict=True)]

    def _filled(self, prompts: Sequence[list[int]]) -> Any:
        ids = self._np.zeros((len(prompts), max(map(len, prompts))), self._np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        return ids

    def write(self, texts: Sequence[Text]) -> list[Drawn]:
        """The next token of each."""
        ids = self._np.array([[text.last] for text in texts], self._np.int64)
        logits = self._graph.run(0, ids, [text.length for text in texts])
        return [self._sampling.draw(text, row) for text, row in zip(texts, logits, strict=True)]

    def move(self, source: int, target: int, length: int) -> None:
        """Copies what a row holds to another row."""
        self._graph.move(source, target, length)


class _Graph:
    """The session with its cache: one array a layer for keys and for values, a row for each text."""

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
            told = ", ".join(sorted(unknown)[:3]) or "no inputs for its cache"
            raise ModelIncompatible(
                f"{folder.path.name} cannot be driven: its graph has {told}.", "Choose another engine or model."
            )
        kinds = {"tensor(float)": numpy.float32, "tensor(float16)": numpy.float16}
        kind = kinds.get(types[pasts[0]])
        logits = next(item for item in session.get_outputs() if item.name == self._names["logits"])
        self._logits_kind = kinds.get(logits.type)
        if kind is None or self._logits_kind is None or not isinstance(logits.shape[2], int):
            raise ModelIncompatible(
                f"{folder.path.name} keeps its cache as {types[pasts[0]]} and its logits as {logits.type} "
                f"{logits.shape}.",
                "Choose another engine or model.",
            )
        self._vocabulary = logits.shape[2]
        self.tells_each = logits.shape[1] != 1  # else it gives the logits of the last token alone
        # The attention takes several tokens of rows of different lengths only where it begins with all of them.
        token_bytes = self._vocabulary * numpy.dtype(self._logits_kind).itemsize
        limit = min(TOGETHER_TOKENS, _LOGITS_BYTES // token_bytes) if self.tells_each else TOGETHER_TOKENS
        self.together_tokens = limit if in_place else 0
        self._logits = numpy.empty((rows, 1, self._vocabulary), self._logits_kind)
        shape = (rows, int(decoder["num_key_value_heads"]), context_tokens, int(decoder["head_size"]))
        # Pages of zeros take no memory before they are written.
        self._cache = [numpy.zeros(shape, kind) for _ in pasts]
        self._pairs = list(zip(pasts, presents, self._cache, strict=True))
        self._kind = kind
        self._bound: tuple[tuple[int, int], Any] | None = None
        self._kept: list[Any] = []

    def run(self, first: int, ids: Any, lengths: list[int], counts: list[int] | None = None) -> Any:
        """One pass over rows `first` and on; returns the logits of each row's last token, as float32, until the next.

        `ids` (rows, tokens) follow what each row holds already, `lengths` of it. `counts`: of each row only so many.
        """
        np, (rows, tokens) = self._np, ids.shape
        counts = counts or [tokens] * rows
        if not self._in_place:
            apart = [self._run_apart(first + row, ids[row : row + 1], lengths[row]) for row in range(rows)]
            return np.concatenate(apart)
        binding = self._binding(first, rows)
        self._kept = [np.ascontiguousarray(ids)]  # as long as the library reads it
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
        if tokens > 1 and self.tells_each:
            logits = np.empty((rows, tokens, self._vocabulary), self._logits_kind)
        binding.bind_output(self._names["logits"], "cpu", 0, self._logits_kind, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(binding)
        if logits.shape[1] > 1:
            logits = logits[np.arange(rows), np.array(counts) - 1]
        return logits.reshape(rows, -1).astype(np.float32, copy=False)

    def _run_apart(self, row: int, ids: Any, length: int) -> Any:
        """One row whose cache goes in as long as it is, and comes out longer: what every provider can."""
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

    def move(self, source: int, target: int, length: int) -> None:
        """Copies what a row holds to another row."""
        for cache in self._cache:
            cache[target, :, :length] = cache[source, :, :length]

    def _binding(self, first: int, rows: int) -> Any:
        """The cache's rows as input and, in place, as output. Kept as long as the same rows are asked for."""
        if self._bound and self._bound[0] == (first, rows):
            return self._bound[1]
        binding = self._session.io_binding()
        for past, present, cache in self._pairs:
            view = cache[first : first + rows]
            binding.bind_input(past, "cpu", 0, self._kind, view.shape, view.ctypes.data)
            binding.bind_output(present, "cpu", 0, self._kind, view.shape, view.ctypes.data)
        self._bound = ((first, rows), binding)
        return binding
