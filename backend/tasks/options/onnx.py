"""The options of a graph: what is done with it, and what its outputs shall be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.common.config.strict_model import Name, StrictModel
from backend.common.seeds import SEEDS

RUNS_LIMIT = 10_000


class OnnxOptions(StrictModel):
    """One run, or a look at the graph on the device."""

    action: Literal["run", "check", "bench", "inspect"] = Field(
        "run",
        description="check compares with the CPU, bench with a bare session; both make inputs up if none are sent",
    )
    outputs: Literal["npy", "json"] = Field(
        "npy", description="Files of NumPy, or JSON; small JSON is the text as well"
    )
    only: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="The outputs wanted, by name")
    each: bool = Field(False, description="Run once for each entry along the inputs' first side, and stack the outputs")
    runs: int = Field(30, ge=1, le=RUNS_LIMIT, description="For bench")
    dimensions: dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]] | None = Field(
        None, description="For inputs that are made up: sizes of open sides, by name"
    )
    seed: int | None = Field(None, ge=0, le=SEEDS - 1, description="For inputs that are made up")
