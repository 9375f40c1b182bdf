"""An OpenVINO graph whose attention reads a cache of blocks: all texts of a step in one pass of the model.

OpenVINO's own rewriting of a graph (`SDPAToPagedAttention`; its GenAI library batches by it) takes state and mask out
and puts in a cache, with lists of which blocks each text has there. Here every row owns its blocks from the start, so a
text that moves takes its list along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.engines._openvino.stateful_model import OpenvinoRows

_LASTS = "last_tokens"  # our own input: of these tokens the logits are wanted
_KNOWN = {"input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins"}
_KNOWN |= {"max_context_len", _LASTS}
_KEYS, _VALUES = "key_cache.", "value_cache."
_BEHIND = ("Convert", "Add", "Multiply", "Divide", "Tanh")  # may stand between the last product and the logits


def paged_rows(
    core: Any, graph: Path, device: str, options: Mapping[str, Any], rows: int, context_tokens: int
) -> PagedRows | None:
    """The graph compiled for rows of texts; None where its attention is none that can be rewritten."""
    model = core.read_model(str(graph))
    if not any(one.get_type_name() == "ScaledDotProductAttention" for one in model.get_ops()):
        return None
    from openvino._offline_transformations import paged_attention_transformation

    try:
        paged_attention_transformation(model)
    except RuntimeError:  # its way of keeping a state is none that the rewriting knows
        return None
    _only_lasts(model)
    names = {one.get_any_name() for one in model.inputs}
    if {name for name in names if not name.startswith((_KEYS, _VALUES))} != _KNOWN:
        return None
    compiled = core.compile_model(model, device, dict(options))
    caches = [one for one in compiled.inputs if one.get_any_name().startswith((_KEYS, _VALUES))]
    if any(size.is_dynamic for one in caches for size in list(one.get_partial_shape())[1:]):
        return None
    return PagedRows(compiled, caches, rows, context_tokens, graph.parent.name)


def _only_lasts(model: Any) -> None:
    """Leaves the last product, the dearest of a small model, to the tokens that stand in `_LASTS`."""
    import numpy
    from openvino import opset13

    product = model.get_results()[0].input_value(0).get_node()
    while product.get_type_name() in _BEHIND:
        product = product.input_value(0).get_node()
    if product.get_type_name() != "MatMul":
        return
    wanted = opset13.parameter([-1], numpy.int64, name=_LASTS)
    wanted.output(0).set_names({_LASTS})
    states = opset13.gather(product.input_value(0), wanted, opset13.constant(numpy.int64(0)))
    product.input(0).replace_source_output(states.output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


class PagedRows(OpenvinoRows):
    """A compiled model with a cache of blocks."""

    together_tokens = 256

    def __init__(self, compiled: Any, caches: Sequence[Any], rows: int, context_tokens: int, name: str) -> None:
        super().__init__(compiled, name)
        import openvino

        self._request = compiled.create_infer_request()
        shapes = {one.get_any_name(): list(one.get_partial_shape()) for one in caches}
        self._block = next(shape for cache, shape in shapes.items() if cache.startswith(_VALUES))[2].get_length()
        each = -(-context_tokens // self._block)
        self._blocks = [list(range(row * each, (row + 1) * each)) for row in range(rows)]
        for one in caches:
            sizes = [rows * each, *(size.get_length() for size in shapes[one.get_any_name()][1:])]
            tensor = openvino.Tensor(one.get_element_type(), openvino.Shape(sizes))
            self._request.set_tensor(one.get_any_name(), tensor)

    def move(self, source: int, target: int, length: int) -> None:
        """A text takes its blocks along."""
        blocks = self._blocks
        blocks[source], blocks[target] = blocks[target], blocks[source]

    def _clear(self, row: int) -> None:
        """Nothing: what is beyond a text's length is read by nobody."""

    def _run(self, rows: Sequence[int], ids: Sequence[list[int]], lengths: Sequence[int]) -> Any:
        np = self._np
        counts = [len(one) for one in ids]
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
