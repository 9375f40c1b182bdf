"""The routers of OpenAI's API."""

from __future__ import annotations

from backend.server.v1 import chat, completions, embeddings, models

MODULES = (models, chat, completions, embeddings)
