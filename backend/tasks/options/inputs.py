"""Validation of a job's inputs: ids of uploaded files, and for ONNX graphs also nested arrays."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from backend.common.errors import Validation

VALUE_LIMIT = 16_384  # array values per request; every Job object repeats its request, so larger arrays go into files


@dataclass(frozen=True)
class InputSpec:
    """The inputs of a task. `names` are all required; None if they depend on the model. `arrays` allows JSON arrays."""

    names: tuple[str, ...] | None = None
    arrays: bool = False


INPUTS: dict[str, InputSpec] = {"stems": InputSpec(("audio",)), "onnx": InputSpec(arrays=True)}


def check_inputs(task: str, inputs: Mapping[str, Any] | None) -> None:
    """Check the inputs of a job. Raises Validation for an unknown, missing or malformed input."""
    spec = INPUTS.get(task)
    if spec is None:
        if inputs:
            raise Validation(f"inputs: a {task} job takes no files.", "Omit inputs.", fields=["inputs"])
        return
    given = inputs or {}
    if spec.names is not None and (wrong := set(given) ^ set(spec.names)):
        name = min(wrong)
        problem = "is missing" if name in spec.names else "is unknown"
        raise Validation(
            f"inputs.{name[:100]} {problem}: a {task} job takes {', '.join(spec.names)}.",
            f'Send {{"{spec.names[0]}": ID}} with the id that PUT /api/files/NAME returns.',
            fields=[f"inputs.{name}"],
        )
    for name, value in given.items():
        if not isinstance(value, str) and not (spec.arrays and isinstance(value, list | int | float)):
            expected = "the id of a file, or an array" if spec.arrays else "the id of a file"
            raise _not_a_file(name, expected)
    if (count := sum(_count_values(name, value) for name, value in given.items())) > VALUE_LIMIT:
        raise Validation(
            f"inputs: the request has {count} array values; the limit is {VALUE_LIMIT}.",
            "Upload them as a .npy file with PUT /api/files/NAME and send its id.",
            fields=["inputs"],
        )


def check_audio_inputs(title: str, supported: Collection[str], inputs: Mapping[str, Any] | None) -> None:
    """Check the audio files sent to a song model; all of them are optional. Raises Validation.

    `title` is the model's name for messages, `supported` are the inputs that it takes.
    """
    for name, value in (inputs or {}).items():
        if name not in supported:
            raise Validation(
                f"inputs.{name[:100]}: {title} takes {', '.join(supported) or 'no files'} as input.",
                f"Send it as {' or '.join(supported)}."
                if supported
                else "Omit inputs, or choose a model that takes this input.",
                fields=[f"inputs.{name}"],
            )
        if not isinstance(value, str):
            raise _not_a_file(name, "the id of a file")


def _not_a_file(name: str, expected: str) -> Validation:
    return Validation(
        f"inputs.{name[:100]} should be {expected}.",
        "Upload the file with PUT /api/files/NAME and send the id that it returns.",
        fields=[f"inputs.{name}"],
    )


def _count_values(name: str, value: Any) -> int:
    """Return the number of values in a nested array. Raises Validation for a value that is not a number or a text.

    Not recursive, since the client chooses the depth.
    """
    pending, count = [value], 0
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
            continue
        count += 1
        if not isinstance(item, str | int | float) or (isinstance(item, float) and not math.isfinite(item)):
            raise Validation(
                f"inputs.{name[:100]} contains {str(item)[:50]!r}, which is neither a number nor a text.",
                "Send numbers or texts; put NaN and infinity, which JSON does not have, into a .npy file.",
                fields=[f"inputs.{name}"],
            )
    return count
