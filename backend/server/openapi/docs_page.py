"""/docs: the API description as one page. It is rendered here because the usual viewers load scripts from a CDN."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from backend.common.types import JsonObject

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def read_docs(request: Request) -> HTMLResponse:
    """Return all routes with their parameters, bodies and responses as HTML."""
    return HTMLResponse(_template().render(api=request.app.openapi(), name=_name))


@cache
def _template() -> Any:
    import jinja2  # slow to import, and rarely needed

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True).get_template(
        "docs.html"
    )


def _name(schema: JsonObject) -> str:
    """Return a short name of a schema: its type, or the name of the schema that it refers to."""
    if reference := schema.get("$ref"):
        return str(reference).rsplit("/", 1)[-1]
    if choices := schema.get("anyOf"):
        return " or ".join(_name(choice) for choice in choices)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_name(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
