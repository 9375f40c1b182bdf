"""The options of embeddings: there are none, since only the text and the model determine a vector."""

from __future__ import annotations

from backend.common.config.strict_model import StrictModel


class EmbeddingsOptions(StrictModel):
    """An empty set of options: any option is rejected."""
