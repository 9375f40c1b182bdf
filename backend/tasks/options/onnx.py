"""The options of an ONNX graph: the action, and the form of the outputs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.common.config.strict_model import Name, StrictModel
from backend.common.seeds import SEEDS

RUNS_LIMIT = 10_000


class OnnxOptions(StrictModel):
    """A run of the graph, a comparison with the CPU, a benchmark, or an inspection."""

    action: Literal["run", "check", "bench", "inspect"] = Field(
        "run",
        description="What to do; check compares with the CPU, bench with a plain session; both can generate inputs",
    )
    outputs: Literal["npy", "json"] = Field(
        "npy", description="Format of the outputs: NumPy files or JSON; small JSON is also the job's text"
    )
    only: Annotated[list[Name], Field(min_length=1)] | None = Field(
        None, description="Names of the outputs to return; default: all"
    )
    each: bool = Field(False, description="Run once per entry of the inputs' first dimension, and stack the outputs")
    runs: int = Field(30, ge=1, le=RUNS_LIMIT, description="Number of runs that bench measures")
    dimensions: dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]] | None = Field(
        None, description="Sizes of dynamic dimensions by name, for generated inputs; default: chosen by the service"
    )
    seed: int | None = Field(None, ge=0, le=SEEDS - 1, description="Random seed of generated inputs; default: random")
