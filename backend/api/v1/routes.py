"""The routers of OpenAI's API."""

from __future__ import annotations

from backend.api.v1 import chat, completions, embeddings, models

MODULES = (models, chat, completions, embeddings)
