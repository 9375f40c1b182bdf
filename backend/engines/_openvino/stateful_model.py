"""OpenVINO graphs as a `BatchModel`: the base class, and the implementation by stateful inference requests.

`StatefulBatchModel` has one inference request per row, each with its own state. The requests of one step run
concurrently as far as the device allows. Moving a row swaps two requests. `paged_model.py` has the implementation with
a paged KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.common.errors import ModelIncompatible
from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.engines._text.cpu_sampling import HostSampling

_KNOWN = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_CHECK_TOKENS = 7  # length of the prompt in `verify_incremental`
_MAX_DIFFERENCE = 0.05  # relative to the largest logit; OpenVINO may compute in bfloat16 with an 8-bit KV cache


class OpenvinoBatchModel:
    """A compiled model with one row per sequence. Subclasses define where the KV cache of a row is."""

    prefill_chunk_tokens = 64
    prefill_batch_tokens = 0

    def __init__(self, compiled: Any, name: str) -> None:
        import numpy

        self.compiled = compiled
        self._np, self._name = numpy, name
        self._inputs = {port.get_any_name() for port in compiled.inputs}
        self._sampling = HostSampling()

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        """Clear the row and create the sequence's sampler."""
        self._clear(row)
        self._sampling.add(sequence)

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        """Prefill a chunk of a prompt; return a token after the last chunk."""
        logits = self._run([row], [ids], [sequence.length])[0]
        return self._sampling.sample(sequence, logits) if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Prefill several complete prompts, each in its own row."""
        rows = range(first, first + len(sequences))
        logits = self._run(rows, [sequence.prompt for sequence in sequences], [0] * len(sequences))
        return [self._sampling.sample(sequence, row) for sequence, row in zip(sequences, logits, strict=True)]

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Run one decode step; return the next token of each sequence."""
        logits = self._run(
            range(len(sequences)),
            [[sequence.last_token] for sequence in sequences],
            [sequence.length for sequence in sequences],
        )
        return [self._sampling.sample(sequence, row) for sequence, row in zip(sequences, logits, strict=True)]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move a sequence to another row."""
        raise NotImplementedError

    def force_token(self, row: int, token: int) -> None:
        """Do nothing: a step reads the sequence's last token."""

    def verify_incremental(self, ids: list[int]) -> None:
        """Compare incremental decoding with a full forward pass. Raises ModelIncompatible if the logits differ."""
        ids = (ids * _CHECK_TOKENS)[:_CHECK_TOKENS]
        self._clear(0)
        full = self._run([0], [ids], [0])[0]
        self._clear(0)
        self._run([0], [ids[:-2]], [0])
        for position in (_CHECK_TOKENS - 2, _CHECK_TOKENS - 1):
            logits = self._run([0], [[ids[position]]], [position])[0]
        difference = float(self._np.abs(logits - full).max()) / max(float(self._np.abs(full).max()), 1e-6)
        if not difference <= _MAX_DIFFERENCE:
            raise ModelIncompatible(
                f"Incremental decoding of {self._name} does not match a full forward pass (logits differ by "
                f"{difference:.0%}).",
                "Export it again, or choose another engine or model.",
            )

    def _clear(self, row: int) -> None:
        """Clear the KV cache of a row."""
        raise NotImplementedError

    def _run(self, rows: Sequence[int], ids: Sequence[list[int]], lengths: Sequence[int]) -> Any:
        """Append `ids` to the `lengths` tokens of the rows; return the logits of each row's last token as float32."""
        raise NotImplementedError


class StatefulBatchModel(OpenvinoBatchModel):
    """A compiled model with one stateful inference request per row."""

    def __init__(self, compiled: Any, rows: int, name: str) -> None:
        """Raises ModelIncompatible for a graph with unknown inputs or without a state."""
        super().__init__(compiled, name)
        unknown = sorted(self._inputs - _KNOWN)
        if unknown or "input_ids" not in self._inputs:
            raise ModelIncompatible(
                f"{name} is not supported: its graph has {', '.join(unknown) or 'no input_ids'}.",
                "Export it for sequence generation, with a state.",
            )
        self._requests = [compiled.create_infer_request() for _ in range(rows)]
        if not self._requests[0].query_state():
            raise ModelIncompatible(f"{name} keeps no state between tokens.", "Export it again with a state.")

    def move_row(self, source: int, target: int, length: int) -> None:
        """Swap the inference requests of the two rows."""
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
