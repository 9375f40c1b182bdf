"""JSON responses that are always valid: a lone surrogate or NaN in one text must not make a whole list a 500."""

from __future__ import annotations

import json
import logging
from typing import Any, cast

from fastapi.responses import JSONResponse

from backend.common.clean_text import json_safe
from backend.common.types import JsonObject

log = logging.getLogger(__name__)


def sendable(content: JsonObject) -> JsonObject:
    """Return the content of a response as it is, or made safe if JSON in UTF-8 cannot hold it.

    FastAPI serializes what a route returns before any response class sees it, and fails on a lone surrogate.
    """
    try:
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError) as error:  # UnicodeEncodeError is a ValueError
        log.warning("a response was made safe for JSON", extra={"detail": ascii(error)[:300]})
        return cast(JsonObject, json_safe(content))
    return content


class JsonResponse(JSONResponse):
    """A JSON response whose content may have any text and number."""

    def render(self, content: Any) -> bytes:
        """Return JSON in UTF-8."""
        try:
            return super().render(content)
        except (ValueError, TypeError) as error:  # UnicodeEncodeError is a ValueError
            log.warning("a response was made safe for JSON", extra={"detail": ascii(error)[:300]})
            return super().render(json_safe(content))
