"""The options of embeddings: none, since a vector follows from the text and the model alone."""

from __future__ import annotations

from backend.common.config.strict_model import StrictModel


class EmbeddingsOptions(StrictModel):
    """Embeddings take no options."""
