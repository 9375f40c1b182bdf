"""The routers of the OpenAI-compatible API."""

from __future__ import annotations

from backend.server.v1 import chat, completions, embeddings, models
from backend.server.v1.responses import routes as responses

MODULES = (models, chat, completions, embeddings, responses)
