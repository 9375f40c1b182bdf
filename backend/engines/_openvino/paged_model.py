"""An OpenVINO graph with a paged KV cache: one pass of the model for all sequences of a step.

OpenVINO's graph transformation `SDPAToPagedAttention`, which its GenAI library uses for batching, replaces state and
mask by a KV cache of blocks and a block table. Every row owns a fixed set of blocks, so moving a sequence swaps two
lists of block numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.engines._openvino.stateful_model import OpenvinoBatchModel

_LASTS = "last_tokens"  # an input that `_keep_last_logits` adds: positions whose logits are returned
_KNOWN = {"input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins"}
_KNOWN |= {"max_context_len", _LASTS}
_KEYS, _VALUES = "key_cache.", "value_cache."
_AFTER_HEAD = ("Convert", "Add", "Multiply", "Divide", "Tanh")  # operations allowed between LM head and logits


def compile_paged_model(
    core: Any, graph: Path, device: str, options: Mapping[str, Any], rows: int, context_tokens: int
) -> PagedBatchModel | None:
    """Return the graph compiled with a paged KV cache, or None if its attention cannot be transformed."""
    model = core.read_model(str(graph))
    if not any(node.get_type_name() == "ScaledDotProductAttention" for node in model.get_ops()):
        return None
    from openvino._offline_transformations import paged_attention_transformation

    try:
        paged_attention_transformation(model)
    except RuntimeError:  # the transformation does not support this form of state
        return None
    _keep_last_logits(model)
    names = {port.get_any_name() for port in model.inputs}
    if {name for name in names if not name.startswith((_KEYS, _VALUES))} != _KNOWN:
        return None
    compiled = core.compile_model(model, device, dict(options))
    caches = [port for port in compiled.inputs if port.get_any_name().startswith((_KEYS, _VALUES))]
    if any(size.is_dynamic for port in caches for size in list(port.get_partial_shape())[1:]):
        return None
    return PagedBatchModel(compiled, caches, rows, context_tokens, graph.parent.name)


def _keep_last_logits(model: Any) -> None:
    """Restrict the LM head, the most expensive product of a small model, to the positions in `_LASTS`."""
    import numpy
    from openvino import opset13

    product = model.get_results()[0].input_value(0).get_node()
    while product.get_type_name() in _AFTER_HEAD:
        product = product.input_value(0).get_node()
    if product.get_type_name() != "MatMul":
        return
    wanted = opset13.parameter([-1], numpy.int64, name=_LASTS)
    wanted.output(0).set_names({_LASTS})
    states = opset13.gather(product.input_value(0), wanted, opset13.constant(numpy.int64(0)))
    product.input(0).replace_source_output(states.output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


class PagedBatchModel(OpenvinoBatchModel):
    """A compiled model with a paged KV cache."""

    prefill_batch_tokens = 256

    def __init__(self, compiled: Any, caches: Sequence[Any], rows: int, context_tokens: int, name: str) -> None:
        super().__init__(compiled, name)
        import openvino

        self._request = compiled.create_infer_request()
        shapes = {port.get_any_name(): list(port.get_partial_shape()) for port in caches}
        self._block = next(shape for cache, shape in shapes.items() if cache.startswith(_VALUES))[2].get_length()
        each = -(-context_tokens // self._block)
        self._blocks = [list(range(row * each, (row + 1) * each)) for row in range(rows)]
        for port in caches:
            sizes = [rows * each, *(size.get_length() for size in shapes[port.get_any_name()][1:])]
            tensor = openvino.Tensor(port.get_element_type(), openvino.Shape(sizes))
            self._request.set_tensor(port.get_any_name(), tensor)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Swap the blocks of the two rows."""
        blocks = self._blocks
        blocks[source], blocks[target] = blocks[target], blocks[source]

    def _clear(self, row: int) -> None:
        """Do nothing: attention never reads beyond a sequence's length."""

    def _run(self, rows: Sequence[int], ids: Sequence[list[int]], lengths: Sequence[int]) -> Any:
        np = self._np
        counts = [len(tokens) for tokens in ids]
        totals = [length + count for length, count in zip(lengths, counts, strict=True)]
        blocks = [self._blocks[row][: -(-total // self._block)] for row, total in zip(rows, totals, strict=True)]
        begins = np.cumsum([0, *counts])
        feeds = {
            "input_ids": np.concatenate(ids).astype(np.int64),
            "position_ids": np.concatenate([np.arange(*ends) for ends in zip(lengths, totals, strict=True)]),
            "past_lens": np.array(lengths, np.int32),
            "subsequence_begins": begins.astype(np.int32),
            "block_indices": np.concatenate(blocks).astype(np.int32),
            "block_indices_begins": np.cumsum([0, *map(len, blocks)]).astype(np.int32),
            "max_context_len": np.array(max(totals), np.int32),
            _LASTS: begins[1:] - 1,
        }
        self._request.infer(feeds, share_outputs=True)
        return self._request.get_output_tensor(0).data.reshape(len(counts), -1).astype(np.float32)
