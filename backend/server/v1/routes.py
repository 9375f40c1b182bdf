"""The routers of the OpenAI-compatible API and of Anthropic's."""

from __future__ import annotations

from backend.server.v1 import chat, completions, embeddings, models
from backend.server.v1.anthropic import routes as anthropic
from backend.server.v1.responses import routes as responses

MODULES = (models, chat, completions, embeddings, responses, anthropic)
