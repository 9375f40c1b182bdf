"""The response format of generated text: free text, JSON, or JSON that matches a schema. Fields as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from backend.common.config.strict_model import StrictModel
from backend.common.types import JsonObject

PARTS_LIMIT = 20_000  # JSON values in a schema, nested ones included
ITEMS_LIMIT = 100_000  # sum of minItems and maxItems in a schema; its grammar takes two seconds and 0.3 GB


def _check_size(schema: JsonObject) -> JsonObject:
    """Return the schema unless its grammar would be too large. Raises ValueError.

    The grammar repeats its rule for each item of an array, so a schema with a billion items would use all memory.
    """
    items, parts, pending = 0.0, 0, [schema]
    while pending:
        inner: Any = pending.pop()
        parts += 1
        if parts > PARTS_LIMIT:
            raise ValueError(f"has more than {PARTS_LIMIT} parts, which would take minutes to parse")
        if isinstance(inner, dict):
            counts = [inner.get(name) for name in ("minItems", "maxItems")]
            items += sum(
                min(count, ITEMS_LIMIT + 1) for count in counts if isinstance(count, int | float) and count > 0
            )
            pending += inner.values()
        elif isinstance(inner, list):
            pending += inner
    if items > ITEMS_LIMIT:
        raise ValueError(f"minItems and maxItems add up to more than {ITEMS_LIMIT}, which cannot be enforced")
    return schema


Schema = Annotated[JsonObject, AfterValidator(_check_size)]


class JsonSchema(StrictModel):
    """A JSON Schema with a name."""

    model_config = ConfigDict(validate_by_name=False, serialize_by_alias=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] = "answer"
    description: str | None = None
    schema_: Schema = Field(
        {"type": "object"}, alias="schema", description="JSON Schema (2020-12); default: any object"
    )
    strict: bool | None = Field(None, description="Accepted and ignored: the schema is always enforced")


class ResponseFormat(StrictModel):
    """The format of the response. `json_object`, and `json_schema` without a schema, allow any JSON object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is required for the type json_schema, and not allowed for other types")
        return self

    @staticmethod
    def none_if_plain(value: Any) -> Any:
        """Return None for the default format, `{"type": "text"}`."""
        return None if value == {"type": "text"} else value
