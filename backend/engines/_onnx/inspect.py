"""Inspect a loaded graph: where nodes run, how its speed compares with a bare session, how it agrees with the CPU.

A copy of the graph with more outputs is made without any library: in Protobuf's wire format, a message appended to
another of its type is merged into it, so appended outputs become outputs of the graph.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from backend.common.errors import JobCancelled, ModelIncompatible
from backend.common.formats.onnx.graph import node_outputs, read_graph, with_outputs
from backend.common.types import JsonObject
from backend.devices import onnx_place
from backend.engines import Emit, RunRequest
from backend.engines._onnx.cancellable_run import terminated_on_cancel
from backend.engines._onnx.errors import translate_error
from backend.engines._onnx.loaded_graph import LoadedGraph
from backend.engines._onnx.tensor_io import Arrays, describe, random_inputs, to_inputs

# The allowed difference by type, relative to the largest value of the tensor; integers must be equal.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2}
GROUP = 32  # nodes whose outputs are compared in one run
_WARM = 3


class OutputComparison(TypedDict):
    """Whether an output agrees with the CPU's.

    `difference`: the largest one, relative to the largest value; None for NaN, and for outputs that are not numbers of
    the same shape, which have no tolerance either.
    """

    name: str
    agrees: bool
    difference: float | None
    tolerance: float | None


class NodeComparison(OutputComparison):
    """The first output of a node that does not agree."""

    node: str
    operator: str


def inspect(graph: LoadedGraph, request: RunRequest, emit: Emit) -> JsonObject:
    """Return the facts of the file, and which nodes run on the device."""
    facts = read_graph(graph.path)
    here, elsewhere = 0, Counter[str]()
    for part in _parts(graph.session):
        for node in part.get_nodes():
            if graph.place.where(part.ep_name) == graph.place.device:
                here += 1
            else:
                elsewhere[f"{node.domain + '::' if node.domain else ''}{node.op_type}"] += 1
    why = f"{graph.place.provider} has no kernel for these operators with their types and shapes" if elsewhere else None
    return {
        **facts.as_data(),
        "device": graph.place.device,
        "provider": graph.place.provider,
        "nodes_after_optimisation": here + sum(elsewhere.values()),
        "nodes_on_device": here,
        "elsewhere": dict(elsewhere.most_common()),
        "why_elsewhere": why,
        "evidence": graph.placement.evidence,
    }


def bench(graph: LoadedGraph, request: RunRequest, emit: Emit) -> JsonObject:
    """Run alternately with a bare session of the same provider and threads; return times per run and the overhead."""
    inputs, names = _inputs(graph, request), [slot.name for slot in graph.session.get_outputs()]
    bare = graph.place.bare_session(graph.path, graph.threads, graph.libraries)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    runs = request.options["runs"]
    with terminated_on_cancel(graph.place.onnxruntime, emit) as running:
        turns: dict[str, Callable[[], Any]] = {
            "ours": lambda: graph.run_once(names, inputs, running),
            "bare": lambda: bare.run(names, inputs),
        }
        for number in range(-_WARM, runs):
            for who, run in turns.items():
                began = time.perf_counter()
                run()
                if number >= 0:
                    times[who].append(time.perf_counter() - began)
            if emit("progress", {"phase": "bench", "done": max(0, number + 1), "total": runs, "unit": "runs"}):
                raise JobCancelled("The job was cancelled.", "Run it again if you want its result.")
    medians = {who: statistics.median(each) for who, each in times.items()}
    return {
        "device": graph.place.device,
        "runs": runs,
        "threads": graph.threads,
        "inputs": {name: [str(array.dtype), list(array.shape)] for name, array in inputs.items()},
        "run_ms": _spread(times["ours"]),
        "bare_ms": _spread(times["bare"]),
        "overhead": medians["ours"] / medians["bare"] - 1,
    }


def check(graph: LoadedGraph, request: RunRequest, emit: Emit) -> JsonObject:
    """Compare the outputs with those of the CPU; name the first node, in the file's order, that differs."""
    inputs = _inputs(graph, request)
    processor = onnx_place("cpu")
    names = [slot.name for slot in graph.session.get_outputs()]
    reference = processor.session(graph.path, graph.threads, libraries=graph.libraries)
    outputs = _compared(names, graph.run_once(names, inputs), reference.run(names, inputs))
    agreed = all(each["agrees"] for each in outputs)
    first = None if agreed else _first_difference(graph, processor, inputs, emit)
    return {
        "device": graph.place.device,
        "agrees": agreed,
        "outputs": outputs,
        "first_difference": first,
        "tolerances": TOLERANCES,
        "inputs": {slot.name: describe(slot) for slot in graph.session.get_inputs()},
        "made_up": not request.inputs,
        "evidence": graph.placement.evidence,
    }


def _first_difference(
    graph: LoadedGraph, processor: Any, inputs: Mapping[str, Any], emit: Emit
) -> NodeComparison | None:
    """Find the first node that differs, by sessions that also return the results of a group of nodes."""
    nodes = node_outputs(graph.path)
    for begin in range(0, len(nodes), GROUP):
        if emit("progress", {"phase": "search", "done": begin, "total": len(nodes), "unit": "nodes"}):
            raise JobCancelled("The job was cancelled.", "Run it again if you want its result.")
        group = nodes[begin : begin + GROUP]
        names = [output for node in group for output in node.outputs]
        model = with_outputs(graph.path, names)
        try:
            ours, theirs = (
                place.session(model, graph.threads, libraries=graph.libraries, folder=graph.path.parent).run(
                    names, inputs
                )
                for place in (graph.place, processor)
            )
        except Exception as error:
            raise translate_error(error, graph.path.name, loading=True) from error
        compared = {each["name"]: each for each in _compared(names, ours, theirs)}
        for node in group:
            wrong = [compared[name] for name in node.outputs if not compared[name]["agrees"]]
            if wrong:
                return {"node": node.name, "operator": node.operator, **wrong[0]}
    return None


def _compared(names: list[str], ours: list[Any], theirs: list[Any]) -> list[OutputComparison]:
    import numpy

    compared: list[OutputComparison] = []
    for name, here, there in zip(names, ours, theirs, strict=True):
        if not isinstance(here, numpy.ndarray) or here.dtype.kind not in "biufc" or here.shape != there.shape:
            agrees = _equal(here, there)
            compared.append({"name": name, "agrees": agrees, "difference": None, "tolerance": None})
            continue
        tolerance = TOLERANCES.get(str(here.dtype), 0.0)
        same = (here == there) | (numpy.isnan(here) & numpy.isnan(there)) if here.dtype.kind in "fc" else here == there
        wide = "complex128" if here.dtype.kind == "c" else "float64"
        finite = there[numpy.isfinite(there)] if here.dtype.kind in "fc" else there
        scale = float(numpy.abs(finite.astype(wide)).max(initial=0.0)) or 1.0
        with numpy.errstate(invalid="ignore"):
            apart = numpy.where(same, 0.0, numpy.abs(here.astype(wide) - there.astype(wide)) / scale)
        worst = float(apart.max(initial=0.0))
        agrees = bool(worst <= tolerance)  # NaN compares as false
        compared.append(
            {"name": name, "agrees": agrees, "difference": worst if worst == worst else None, "tolerance": tolerance}
        )
    return compared


def _equal(here: Any, there: Any) -> bool:
    import numpy

    if isinstance(here, numpy.ndarray):
        return bool(numpy.array_equal(here, there))
    if isinstance(here, list | tuple):
        return len(here) == len(there) and all(map(_equal, here, there))
    return bool(here == there)


def _inputs(graph: LoadedGraph, request: RunRequest) -> Arrays:
    slots = graph.session.get_inputs()
    if request.inputs:
        return to_inputs(slots, request.inputs)
    return random_inputs(slots, request.seed, request.options["dimensions"] or {})


def _parts(session: Any) -> list[Any]:
    if not hasattr(session, "get_provider_graph_assignment_info"):
        raise ModelIncompatible(
            "This version of ONNX Runtime does not record which provider runs which node.",
            "Update the runtime to 1.24 or later.",
        )
    return list(session.get_provider_graph_assignment_info())


def _spread(seconds: list[float]) -> dict[str, float]:
    """Return median, lowest and highest time in milliseconds."""
    figures = {"median": statistics.median(seconds), "low": min(seconds), "high": max(seconds)}
    return {name: round(value * 1000, 4) for name, value in figures.items()}
