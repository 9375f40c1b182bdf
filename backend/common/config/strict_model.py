"""The base model of request bodies: no unknown keys, no type coercion, validation errors in sentences."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from backend.common.errors import TouchstoneError, Validation

NAME_LIMIT = 200
SHOWN = 5  # reported errors per request
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LIMIT)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_surely_unicode(data: Any) -> bool:
    """Return whether every string in it is valid Unicode, by a fast check. False if that is uncertain."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        return False
    return True


class StrictModel(BaseModel):
    """A pydantic model without unknown keys and type coercion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _unicode(cls, data: Any) -> Any:
        """Reject a lone surrogate in a key or a value: it would break the worker, the history and every response."""
        data = cls._shortened(data)
        if _is_surely_unicode(data):
            return data
        pending: list[tuple[tuple[str, ...], Any]] = [((), data)]
        while pending:
            place, item = pending.pop()
            if isinstance(item, dict):
                pending += [((*place, ascii(key)[1:-1]), key) for key in item]
                pending += [((*place, str(key)), value) for key, value in item.items()]
            elif isinstance(item, list):
                pending += [((*place, str(index)), value) for index, value in enumerate(item)]
            elif isinstance(item, str) and not _is_unicode(item):
                raise PydanticCustomError("string_unicode", "not Unicode", {"place": ".".join(place)})
        return data

    @classmethod
    def _shortened(cls, data: Any) -> Any:
        """Return the data with only the first few unknown keys, because checking 100,000 would block the server."""
        if not isinstance(data, dict) or len(data) <= len(cls.model_fields) + SHOWN:
            return data
        known = {name: data[name] for name in cls.known_names() if name in data}
        return known | dict(islice(((key, data[key]) for key in data if key not in known), SHOWN))

    @classmethod
    def known_names(cls) -> list[str]:
        """Return the names of all fields, as callers write them."""
        return [facts.alias or name for name, facts in cls.model_fields.items()]


def to_validation_error(errors: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> TouchstoneError:
    """Return one Validation for pydantic's list of errors, with the closest valid key for an unknown one."""
    sentences, remedies = [], []
    for error in errors[:SHOWN]:
        where = _place(error) or "the request"
        if error["type"] == "extra_forbidden":
            key = str(error["loc"][-1])
            here = [facts.alias or name for name, facts in _known_at(known, error["loc"][:-1]).items()]
            near = difflib.get_close_matches(key, here, n=1, cutoff=0.5)
            sentences.append(f"{where[:NAME_LIMIT]!r} is not known")
            remedies.append(f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(here)}.")
        elif error["type"] == "string_unicode":
            sentences.append(f"{where} is not valid Unicode (it contains a lone surrogate)")
            remedies.append("Send valid UTF-8 text.")
        elif error["type"] in ("model_attributes_type", "model_type"):
            sentences.append(f"{where} is not a JSON object")
        elif error["type"] == "too_short":
            sentences.append(f"{where} has {error['ctx']['actual_length']} entries")
            remedies.append(f"Send at least {error['ctx']['min_length']}.")
        elif error["type"] == "too_long":
            sentences.append(f"{where} has more than {error['ctx']['max_length']} entries")
            remedies.append("Send fewer.")
        else:
            message = str(error["msg"]).removeprefix("Value error, ")
            sentences.append(message if where == "the request" else f"{where}: {message[0].lower()}{message[1:]}")
    fields = [place for error in errors[:SHOWN] if (place := _place(error))]
    remedy = " ".join(dict.fromkeys(remedies)) or "Correct the request; the API is documented at /docs."
    return Validation("; ".join(sentences) + ".", remedy, fields=fields)


def _known_at(known: Mapping[str, Any], place: Sequence[str | int]) -> Mapping[str, Any]:
    """Return the fields of the object at `place`, by walking the annotations."""
    for part in place:
        pending = [known[str(part)].annotation] if str(part) in known else []
        while pending:
            hint = pending.pop()
            pending += get_args(hint)
            if isinstance(hint, type) and issubclass(hint, StrictModel):
                known = hint.model_fields
    return known


def _place(error: Mapping[str, Any]) -> str:
    inner = error.get("ctx", {}).get("place", "")
    return ".".join(str(part) for part in (*error["loc"], inner) if part not in ("body", ""))
