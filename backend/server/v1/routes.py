"""The routers of the OpenAI-compatible API."""

from __future__ import annotations

from backend.server.v1 import chat, completions, embeddings, models

MODULES = (models, chat, completions, embeddings)
