"""/docs: the API's description as one page, rendered here: the usual viewers load their scripts from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def read_docs(request: Request) -> HTMLResponse:
    """All routes with their parameters, bodies and answers."""
    return HTMLResponse(_template().render(api=request.app.openapi(), name=_name))


@cache
def _template() -> Any:
    import jinja2  # takes as long to import as the rest of a request, and few look here

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True).get_template(
        "docs.html"
    )


def _name(schema: dict[str, Any]) -> str:
    """A schema in a few words: its type, or the name of the shape it points to."""
    if reference := schema.get("$ref"):
        return str(reference).rsplit("/", 1)[-1]
    if choices := schema.get("anyOf"):
        return " or ".join(_name(choice) for choice in choices)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_name(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
