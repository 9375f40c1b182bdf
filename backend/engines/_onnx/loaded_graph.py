"""An ONNX graph that ONNX Runtime loaded on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.types import Placement
from backend.engines._onnx.errors import translate_error


@dataclass
class LoadedGraph:
    """A graph with its ONNX Runtime session, and the evidence of where its nodes run."""

    place: Any
    session: Any
    path: Path
    placement: Placement
    threads: int | None
    versions: dict[str, str]
    libraries: list[str]
    model_file: str | None

    def run_once(self, names: list[str], inputs: Mapping[str, Any], running: Any = None) -> Any:
        """Run the graph once; return the outputs in the order of `names`, None after a cancel.

        Raises TouchstoneError.
        """
        try:
            return self.session.run(names, inputs, running)
        except Exception as error:
            if running is not None and running.terminate:
                return None
            raise translate_error(error, self.path.name, loading=False) from error
