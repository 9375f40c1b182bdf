"""The base of every body that callers send: no unknown keys, no guesses about types, and refusals in words."""

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
SHOWN = 5  # faults of one request that are told
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LIMIT)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(data: Any) -> bool:
    """Whether every text in it is Unicode, found quickly; False also where that is not certain."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        return False
    return True


class StrictModel(BaseModel):
    """No unknown keys, no guesses about types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _unicode(cls, data: Any) -> Any:
        """Half of a surrogate pair, in a key or a value, would break the worker, the history and every answer."""
        data = cls._shortened(data)
        if _is_whole(data):
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
        """Of unknown keys the first few, which are named: looking at 100,000 would hold everything else up."""
        if not isinstance(data, dict) or len(data) <= len(cls.model_fields) + SHOWN:
            return data
        known = {name: data[name] for name in cls.known_names() if name in data}
        return known | dict(islice(((key, data[key]) for key in data if key not in known), SHOWN))

    @classmethod
    def known_names(cls) -> list[str]:
        """The keys that it knows."""
        return [facts.alias or name for name, facts in cls.model_fields.items()]


def to_validation_error(errors: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> TouchstoneError:
    """One Validation for pydantic's list of errors, with the nearest right key for one that is not known."""
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
            sentences.append(f"{where} is not valid Unicode (half of a surrogate pair)")
            remedies.append("Send whole characters.")
        elif error["type"] == "model_attributes_type":
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
    remedy = " ".join(dict.fromkeys(remedies)) or "Correct the request; /docs describes it."
    return Validation("; ".join(sentences) + ".", remedy, fields=fields)


def _known_at(known: Mapping[str, Any], place: Sequence[str | int]) -> Mapping[str, Any]:
    """The fields of the object at `place`, found by walking the annotations."""
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
