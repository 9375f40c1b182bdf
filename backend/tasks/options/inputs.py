"""Which tasks take inputs, and what they may be: files that were sent before, or for graphs also nested arrays."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from backend.common.errors import Validation

VALUE_LIMIT = 16_384  # in one request; more belong into a file, since every Job shows its request


@dataclass(frozen=True)
class Takes:
    """What a task takes. `names` are all its inputs, each needed; None where the model tells them."""

    names: tuple[str, ...] | None = None
    arrays: bool = False


INPUTS: dict[str, Takes] = {"stems": Takes(("audio",)), "onnx": Takes(arrays=True)}


def check_inputs(task: str, inputs: Mapping[str, Any] | None) -> None:
    """Raises Validation for what the task does not take, and for what is missing."""
    takes = INPUTS.get(task)
    if takes is None:
        if inputs:
            raise Validation(f"inputs: a {task} job takes no files.", "Leave inputs out.", fields=["inputs"])
        return
    given = inputs or {}
    if takes.names is not None and (wrong := set(given) ^ set(takes.names)):
        name = min(wrong)
        what = "is missing" if name in takes.names else "is not known"
        raise Validation(
            f"inputs.{name[:100]} {what}: a {task} job takes {', '.join(takes.names)}.",
            f'Send {{"{takes.names[0]}": ID}} with the id that PUT /api/files gave.',
            fields=[f"inputs.{name}"],
        )
    for name, value in given.items():
        if not isinstance(value, str) and not (takes.arrays and isinstance(value, list | int | float)):
            wanted = "the id of a file, or an array" if takes.arrays else "the id of a file"
            raise Validation(
                f"inputs.{name[:100]} should be {wanted}.",
                "Send the file with PUT /api/files/NAME and use the id of the answer.",
                fields=[f"inputs.{name}"],
            )
    if (count := sum(_count(name, value) for name, value in given.items())) > VALUE_LIMIT:
        raise Validation(
            f"inputs: {count} values are more than the {VALUE_LIMIT} that a request may carry.",
            "Send them as a .npy file with PUT /api/files/NAME and use its id.",
            fields=["inputs"],
        )


def check_sounds(title: str, known: Collection[str], inputs: Mapping[str, Any] | None) -> None:
    """The same for a model that listens to the files `known`, none of which it needs."""
    for name, value in (inputs or {}).items():
        if name not in known:
            raise Validation(
                f"inputs.{name[:100]}: {title} listens to {', '.join(known) or 'no files'}.",
                f"Send it as {' or '.join(known)}." if known else "Leave inputs out, or choose a model that takes it.",
                fields=[f"inputs.{name}"],
            )
        if not isinstance(value, str):
            raise Validation(
                f"inputs.{name} should be the id of a file.",
                "Send the file with PUT /api/files/NAME and use the id of the answer.",
                fields=[f"inputs.{name}"],
            )


def _count(name: str, value: Any) -> int:
    """Values in a nested array, counted without recursion, since a caller chooses how deep it is. Raises Validation."""
    pending, count = [value], 0
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
            continue
        count += 1
        if not isinstance(item, str | int | float) or (isinstance(item, float) and not math.isfinite(item)):
            raise Validation(
                f"inputs.{name[:100]} has {str(item)[:50]!r} in it, which is neither a number nor a text.",
                "Send numbers or texts; what JSON has no numbers for (NaN, infinite) goes into a .npy file.",
                fields=[f"inputs.{name}"],
            )
    return count
