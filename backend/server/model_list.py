"""The answer of `GET /api/models`. Many models share few large option schemas, each of which is serialized once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from typing import Any

from fastapi.responses import Response

from backend.common.clean_text import json_safe
from backend.common.types import JsonObject, Model

log = logging.getLogger(__name__)
_SCHEMAS = ("options_schema", "options_schemas")


def model_list_response(models: Iterable[Model], **more: JsonObject | None) -> Response:
    """Return `{models, …}` with further members."""
    rest = b"".join(b",%b:%b" % (_json(name), _json(value)) for name, value in more.items())
    return Response(b'{"models":[%b]%b}' % (b",".join(_model_texts(models)), rest), media_type="application/json")


def _model_texts(models: Iterable[Model]) -> list[bytes]:
    known: dict[int, bytes] = {}  # by identity, for the time of this call

    def schema_json(schema: JsonObject) -> bytes:
        if id(schema) not in known:
            known[id(schema)] = _json(schema)
        return known[id(schema)]

    texts = []
    for model in models:
        facts = _json({name: value for name, value in vars(model).items() if name not in _SCHEMAS})
        by_task = b",".join(b"%b:%b" % (_json(task), schema_json(each)) for task, each in model.options_schemas.items())
        own = schema_json(model.options_schema)
        texts.append(b'%b,"options_schema":%b,"options_schemas":{%b}}' % (facts[:-1], own, by_task))
    return texts


def _json(value: Any) -> bytes:
    """Return JSON in UTF-8."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()
    except ValueError as error:  # UnicodeEncodeError is one
        log.warning("a response was made safe for JSON", extra={"detail": ascii(error)[:300]})
        return json.dumps(json_safe(value), separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> JsonObject:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
