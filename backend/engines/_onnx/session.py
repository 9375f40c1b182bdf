"""Run any ONNX graph on one device, with evidence of where each node runs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from backend.common.errors import Validation
from backend.common.types import Placement
from backend.devices import onnx_place
from backend.engines import Emit, LoadRequest, RunRequest, RunResult, Session
from backend.engines._onnx import inspect
from backend.engines._onnx.cancellable_run import terminated_on_cancel
from backend.engines._onnx.errors import translate_error
from backend.engines._onnx.loaded_graph import LoadedGraph
from backend.engines._onnx.memory_limit import within_free_memory
from backend.engines._onnx.tensor_io import count_non_finite, to_inputs, write_output

SUFFIX = ".onnx"
LIBRARY_BYTES = 120_000_000  # ONNX Runtime and NumPy
SHOWN_VALUES = 4096  # up to so many values, JSON outputs are also part of the job's text
_PROGRESS_INTERVAL_S = 0.5
_NAME_LIMIT = 100


class _OutputFile(TypedDict):
    name: str
    file: str
    type: str
    shape: list[int]


class OutputFile(_OutputFile, total=False):
    """The file of an output, its NumPy type and shape. Optional: how many of its values are NaN or infinite."""

    not_finite: int


@dataclass
class GraphSession(LoadedGraph, Session):
    """A session that runs, checks or measures a loaded graph."""

    def find_placement(self) -> Placement | None:
        """Return where the nodes run now; None if none is left to run."""
        return self.place.placement([self.session]) if self.placement.parts else None

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Run, check, measure or inspect the graph, by the option `action`."""
        with within_free_memory(self.place.is_processor):
            return self._run_action(request, emit)

    def _run_action(self, request: RunRequest, emit: Emit) -> RunResult:
        action = request.options["action"]
        if action == "run":
            return self._compute(request, emit)
        report = {"check": inspect.check, "bench": inspect.bench, "inspect": inspect.inspect}[action]
        facts = report(self, request, emit)
        emit("token", {"text": json.dumps(facts, indent=1, ensure_ascii=False), "count": 0})
        return RunResult({}, "stop", chosen={"action": action})

    def _compute(self, request: RunRequest, emit: Emit) -> RunResult:
        names, every = self._wanted(request.options["only"]), request.options["each"]
        inputs = to_inputs(self.session.get_inputs(), request.inputs, 1 if every else 0)
        with terminated_on_cancel(self.place.onnxruntime, emit) as running:
            if every:
                outputs, runs = self._each(names, inputs, running, emit)
            else:
                outputs, runs = self.run_once(names, inputs, running), 1
        if outputs is None:
            return RunResult({"runs": runs}, "cancelled")
        facts = self._hand_over(dict(zip(names, outputs, strict=True)), request, emit)
        return RunResult({"runs": runs}, "stop", chosen={"outputs": facts})

    def _each(self, names: list[str], inputs: Mapping[str, Any], running: Any, emit: Emit) -> tuple[Any, int]:
        """Run once per entry along the first axis of the inputs; return stacked outputs and the number of runs."""
        import numpy

        counts = {name: len(array) for name, array in inputs.items()}
        total = next(iter(counts.values()), 0)
        if not total or len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise Validation(
                f"options.each: the inputs have {listed or 'no'} entries.",
                "Send the same number of entries for each input, at least one.",
            )
        rows, reported_at = [], 0.0
        for number in range(total):
            outputs = self.run_once(names, {name: array[number] for name, array in inputs.items()}, running)
            if outputs is None:
                return None, number
            rows.append(outputs)
            if time.perf_counter() - reported_at > _PROGRESS_INTERVAL_S or number + 1 == total:
                reported_at = time.perf_counter()
                emit("progress", {"phase": "run", "done": number + 1, "total": total, "unit": "runs"})
        try:
            return [numpy.stack([row[place] for row in rows]) for place in range(len(names))], total
        except ValueError:
            raise Validation(
                "options.each: the outputs of the entries differ in shape and cannot be stacked.",
                "Run each entry as a separate job.",
            ) from None

    def _wanted(self, asked: list[str] | None) -> list[str]:
        outputs = [slot.name for slot in self.session.get_outputs()]
        if asked is None:
            return outputs
        if unknown := next((name for name in asked if name not in outputs), None):
            raise Validation(
                f"options.only: the graph has no output {unknown[:100]!r}.", f"Outputs: {', '.join(outputs)[:1000]}."
            )
        return asked

    def _hand_over(self, outputs: Mapping[str, Any], request: RunRequest, emit: Emit) -> list[OutputFile]:
        as_json, folder, used = request.options["outputs"] == "json", Path(request.folder), set[str]()
        facts: list[OutputFile] = []
        shown = {}
        for name, value in outputs.items():
            file, media_type, plain = write_output(folder, _file_name(name, used), value, as_json)
            emit("artifact", {"name": file, "media_type": media_type})
            shape = list(getattr(value, "shape", []))
            facts.append({"name": name, "file": file, "type": str(getattr(value, "dtype", "")), "shape": shape})
            if count := count_non_finite(value):
                facts[-1]["not_finite"] = count
            if plain is not None and getattr(value, "size", SHOWN_VALUES + 1) <= SHOWN_VALUES:
                shown[name] = plain
        if shown and len(shown) == len(outputs):
            emit("token", {"text": json.dumps(shown, ensure_ascii=False), "count": 0})
        return facts


def load_graph(request: LoadRequest) -> GraphSession:
    """Load a graph. Raises ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, DeviceNotReady."""
    import numpy
    import onnxruntime

    path = Path(request.model_path)
    place = onnx_place(request.device, request.detected_device, request.provider_options, request.compile_cache_dir)
    try:
        with within_free_memory(place.is_processor):
            session = place.session(path, request.threads, libraries=request.operator_libraries)
    except Exception as error:
        raise translate_error(error, path.name, loading=True) from error
    placement = place.placement([session])
    if not placement.parts and hasattr(session, "get_provider_graph_assignment_info"):
        placement = Placement(None, [], "ONNX Runtime computed the whole graph while loading: no node is left to run.")
    versions = {"onnxruntime": onnxruntime.__version__, "numpy": numpy.__version__}
    return GraphSession(
        place, session, path, placement, request.threads, versions, request.operator_libraries, path.name
    )


def _file_name(name: str, used: set[str]) -> str:
    """Return a file name for an output, unique on file systems that ignore case."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:_NAME_LIMIT] or "output"
    chosen, number = plain, 2
    while chosen.lower() in used:
        chosen, number = f"{plain}-{number}", number + 1
    used.add(chosen.lower())
    return chosen
