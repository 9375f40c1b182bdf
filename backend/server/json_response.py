"""JSON responses that are always valid: a lone surrogate or NaN in one text must not make a whole list a 500."""

from __future__ import annotations

import logging
from typing import Any

from fastapi.responses import JSONResponse

from backend.common.clean_text import json_safe

log = logging.getLogger(__name__)


class JsonResponse(JSONResponse):
    """A JSON response whose content may have any text and number."""

    def render(self, content: Any) -> bytes:
        """Return JSON in UTF-8."""
        try:
            return super().render(content)
        except (ValueError, TypeError) as error:  # UnicodeEncodeError is a ValueError
            log.warning("a response was made safe for JSON", extra={"detail": ascii(error)[:300]})
            return super().render(json_safe(content))
