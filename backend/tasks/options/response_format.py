"""The form that a text takes: free, JSON, or JSON that fits a schema. The shape is that of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from backend.common.config.strict_model import StrictModel

PARTS_LIMIT = 20_000  # of a schema: its values, and those within them
ITEMS_LIMIT = 100_000  # in all of a schema; that many cost the grammar two seconds and 0.3 GB


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """The grammar spells each item of an array out: a schema for a thousand million would take all memory."""
    items, parts, waiting = 0.0, 0, [schema]
    while waiting:
        inner: Any = waiting.pop()
        parts += 1
        if parts > PARTS_LIMIT:
            raise ValueError(f"has more than {PARTS_LIMIT} parts, which would take minutes to read")
        if isinstance(inner, dict):
            counts = [inner.get(name) for name in ("minItems", "maxItems")]
            items += sum(
                min(count, ITEMS_LIMIT + 1) for count in counts if isinstance(count, int | float) and count > 0
            )
            waiting += inner.values()
        elif isinstance(inner, list):
            waiting += inner
    if items > ITEMS_LIMIT:
        raise ValueError(f"minItems and maxItems are more than {ITEMS_LIMIT} together, which cannot be held to")
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_bounded)]


class JsonSchema(StrictModel):
    """A schema, and what it is called."""

    model_config = ConfigDict(validate_by_name=False, serialize_by_alias=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] = "answer"
    description: str | None = None
    schema_: Schema = Field({"type": "object"}, alias="schema", description="A JSON Schema (2020-12)")
    strict: bool | None = Field(None, description="Without effect: the text is always held to the schema")


class ResponseFormat(StrictModel):
    """`json_object` is any JSON object, and so is `json_schema` without a schema, which OpenAI's API need not have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, and to no other")
        return self

    @staticmethod
    def unless_plain(value: Any) -> Any:
        """None for the format that text has anyway."""
        return None if value == {"type": "text"} else value
