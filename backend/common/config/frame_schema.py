"""The schema of the frames that one child program sends, in the server: types are checked at the border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaValidator
from typing_extensions import NotRequired, TypedDict, is_typeddict

from backend.common.clean_text import INTEGER_LIMIT, clean_name
from backend.common.types import JsonObject

_new_typed_dict = cast(Callable[..., Any], TypedDict)
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


class FrameSchema:
    """Checks frames by their TypedDicts: no coercion, no NaN, no integer beyond 128 bits. Unknown keys are dropped.

    `parse` takes JSON and returns the frame, with a dataclass where its type is one. It is pydantic's own function,
    since each token of a job passes it. Raises ValueError.
    """

    def __init__(self, *kinds: type) -> None:
        """`kinds`: TypedDicts with a literal `op`."""
        ops = [op for kind in kinds for op in get_args(get_type_hints(kind)["op"])]
        self.ops = frozenset(ops)
        self._prefix = ops if len(kinds) == 1 else []
        converted = tuple(_convert(kind) for kind in kinds)
        union: Any = Annotated[Union[converted], Field(discriminator="op")] if len(kinds) > 1 else converted[0]  # noqa: UP007
        adapter: TypeAdapter[JsonObject] = TypeAdapter(union, config=_CONFIG if len(kinds) > 1 else None)
        schema = _bound(adapter.core_schema)
        self.parse: Callable[[bytes], JsonObject] = SchemaValidator(schema, cast(CoreConfig, _CONFIG)).validate_json

    def explain(self, error: ValueError) -> str:
        """Return why a frame is invalid, as a clause."""
        if not isinstance(error, ValidationError):
            return str(error)
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        op, *place = [clean_name(part) for part in (*self._prefix, *first["loc"])] or [""]
        if first["type"] == "union_tag_not_found":
            return "it has no `op`"
        if not place or first["type"] == "json_invalid":
            return "it is not valid JSON" if first["type"] == "json_invalid" else "it is not an object with an `op`"
        if first["type"] == "missing":
            return f"`{'.'.join([op, *place[:-1]])}` has no `{place[-1]}`"
        message = first["msg"]
        return f"`{'.'.join([op, *place])}`: {message[0].lower()}{message[1:]}"


def _convert(hint: Any) -> Any:
    """Return a type with each TypedDict replaced by one of `typing_extensions`, which pydantic needs on Python 3.11."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        fields = {
            name: _convert(kind) if name in hint.__required_keys__ else NotRequired[_convert(kind)]
            for name, kind in hints.items()
        }
        converted: Any = _new_typed_dict(hint.__name__, fields)
        converted.__pydantic_config__ = _CONFIG
        return converted
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (list, dict, tuple):
        return origin[tuple(_convert(argument) for argument in arguments)]
    return hint


def _bound(schema: Any, name: str = "") -> Any:
    """Return pydantic's core schema with integers of 128 bits; sizes and positions are not negative."""
    if isinstance(schema, list):
        return [_bound(inner, name) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("name", name))
    bounded = {
        key: _bound(inner, key if isinstance(inner, dict) and key != "schema" else name)
        for key, inner in schema.items()
    }
    if bounded.get("type") == "int":
        lowest = 0 if name.endswith("bytes") or name in ("count", "position", "pid", "left_out") else -INTEGER_LIMIT
        bounded |= {"ge": lowest, "le": INTEGER_LIMIT - 1}
    return bounded
