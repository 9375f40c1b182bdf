"""What callers may ask of a benchmark: the body of `POST /api/bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from backend.common.config.strict_model import Name, StrictModel, to_validation_error

RUNS, RUNS_LIMIT, STREAMS, STREAMS_LIMIT = 5, 50, 4, 64
Names = Annotated[list[Name], Field(max_length=64)]


class BenchmarkRequest(StrictModel):
    """What to measure. Default: all ready devices with the default models and all their engines."""

    devices: Names = Field(
        default_factory=list, description="Ids or aliases; an emulated device is measured only if named"
    )
    models: Names = Field(default_factory=list)
    engines: Names = Field(default_factory=list)
    runs: int = Field(default=RUNS, ge=1, le=RUNS_LIMIT, description="Measured rounds, after one warm-up round")
    streams: int = Field(
        default=STREAMS, ge=1, le=STREAMS_LIMIT, description="Concurrent streams, where the engine supports batching"
    )


def parse_benchmark_request(body: Mapping[str, Any]) -> BenchmarkRequest:
    """Parse a request that did not come by HTTP. Raises Validation."""
    try:
        return BenchmarkRequest.model_validate(dict(body))
    except ValidationError as error:
        raise to_validation_error(error.errors(), BenchmarkRequest.model_fields) from error
