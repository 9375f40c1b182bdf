"""Validation of token ids: those beyond the model's vocabulary are rejected, not ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.common.errors import Validation


def check_biases(biases: Mapping[str, float] | None, vocabulary_size: int) -> None:
    """Raises Validation for an id beyond the vocabulary."""
    if unknown := [token for token in biases or {} if int(token) >= vocabulary_size]:
        raise Validation(
            f"logit_bias: the model has the tokens 0 to {vocabulary_size - 1}, and no {unknown[0]}.",
            "Use ids of this model's vocabulary.",
            fields=["options.logit_bias"],
        )


def check_tokens(tokens: Sequence[int], vocabulary_size: int) -> None:
    """Raises Validation for a token of a prompt beyond the vocabulary."""
    if unknown := [token for token in tokens if token >= vocabulary_size]:
        raise Validation(
            f"prompt_tokens: the model has the tokens 0 to {vocabulary_size - 1}, and no {unknown[0]}.",
            "Use ids of this model's vocabulary.",
            fields=["options.prompt_tokens"],
        )
