"""OpenVINO graphs as rows of texts: what two ways of keeping texts have in common, and the one by states.

`StatefulRows` has a request of the library for each row, with its own state. Requests of one step run at the same time,
as far as the device has room. A row that moves is a request that changes its place. The other: `_openvino_paged.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.common.errors import ModelIncompatible
from backend.engines._text.batch_decoder import Drawn, Text
from backend.engines._text.cpu_sampling import HostSampling

_KNOWN = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_TRIAL = 7  # tokens by which a model is tried
_APART = 0.05  # of the largest logit: OpenVINO computes in bfloat16 and keeps the cache in 8 bits where it can


class OpenvinoRows:
    """A compiled model with a place for each text."""

    chunk_tokens = 64
    together_tokens = 0

    def __init__(self, compiled: Any, name: str) -> None:
        import numpy

        self.compiled = compiled
        self._np, self._name = numpy, name
        self._inputs = {one.get_any_name() for one in compiled.inputs}
        self._sampling = HostSampling()

    def begin(self, row: int, text: Text) -> None:
        """Gives a row to a text."""
        self._clear(row)
        self._sampling.begin(text)

    def read(self, row: int, text: Text, ids: list[int], last: bool) -> Drawn | None:
        """A chunk of a prompt."""
        logits = self._run([row], [ids], [text.length])[0]
        return self._sampling.draw(text, logits) if last else None

    def read_together(self, first: int, texts: Sequence[Text]) -> list[Drawn]:
        """Whole prompts, each in its own row."""
        rows = range(first, first + len(texts))
        logits = self._run(rows, [text.prompt for text in texts], [0] * len(texts))
        return [self._sampling.draw(text, row) for text, row in zip(texts, logits, strict=True)]

    def write(self, texts: Sequence[Text]) -> list[Drawn]:
        """The next token of each."""
        logits = self._run(range(len(texts)), [[text.last] for text in texts], [text.length for text in texts])
        return [self._sampling.draw(text, row) for text, row in zip(texts, logits, strict=True)]

    def move(self, source: int, target: int, length: int) -> None:
        """A text moves to another row."""
        raise NotImplementedError

    def try_out(self, ids: list[int]) -> None:
        """Compares token by token with all at once. Raises ModelIncompatible where they differ."""
        ids = (ids * _TRIAL)[:_TRIAL]
        self._clear(0)
        whole = self._run([0], [ids], [0])[0]
        self._clear(0)
        self._run([0], [ids[:-2]], [0])
        for place in (_TRIAL - 2, _TRIAL - 1):
            logits = self._run([0], [[ids[place]]], [place])[0]
        apart = float(self._np.abs(logits - whole).max()) / max(float(self._np.abs(whole).max()), 1e-6)
        if not apart <= _APART:
            raise ModelIncompatible(
                f"{self._name} says something else token by token than at once (logits differ by {apart:.0%} of the "
                "largest), so it is not driven here.",
                "Export it again, or choose another engine or model.",
            )

    def _clear(self, row: int) -> None:
        """Forgets what a row holds."""
        raise NotImplementedError

    def _run(self, rows: Sequence[int], ids: Sequence[list[int]], lengths: Sequence[int]) -> Any:
        """Puts `ids` behind what the rows hold, `lengths` of it; the logits of each row's last token, as float32."""
        raise NotImplementedError


class StatefulRows(OpenvinoRows):
    """A compiled model with a request for each text."""

    def __init__(self, compiled: Any, rows: int, name: str) -> None:
        """Raises ModelIncompatible for a graph with inputs that are not known here, or none that keeps a state."""
        super().__init__(compiled, name)
        unknown = sorted(self._inputs - _KNOWN)
        if unknown or "input_ids" not in self._inputs:
            raise ModelIncompatible(
                f"{name} cannot be driven: its graph has {', '.join(unknown) or 'no input_ids'}.",
                "Export it for text generation, with a state.",
            )
        self._requests = [compiled.create_infer_request() for _ in range(rows)]
        if not self._requests[0].query_state():
            raise ModelIncompatible(f"{name} keeps no state between tokens.", "Export it again with a state.")

    def move(self, source: int, target: int, length: int) -> None:
        """A text's request changes its place."""
        requests = self._requests
        requests[source], requests[target] = requests[target], requests[source]

    def _clear(self, row: int) -> None:
        self._requests[row].reset_state()

    def _run(self, rows: Sequence[int], ids: Sequence[list[int]], lengths: Sequence[int]) -> list[Any]:
        np = self._np
        requests = [self._requests[row] for row in rows]
        for request, tokens, length in zip(requests, ids, lengths, strict=True):
            total = length + len(tokens)
            feeds = {
                "input_ids": np.array([tokens], np.int64),
                "attention_mask": np.ones((1, total), np.int64),
                "position_ids": np.arange(length, total, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            request.start_async({name: feeds[name] for name in self._inputs}, share_inputs=False)
        for request in requests:
            request.wait()
        return [request.get_output_tensor(0).data[0, -1].astype(np.float32) for request in requests]
