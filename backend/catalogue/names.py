"""What a file's name tells before anyone looks into it: pickles, parts, pieces cut by hand."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from backend.errors import ModelBroken, TouchstoneError, Validation
from backend.gguf import how_to_join, is_split_by_hand

SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def check_name(name: str) -> None:
    """Refuses a file that would not be a model of a kind that is fetched. Raises Validation, ModelBroken."""
    refusal: TouchstoneError | None = None
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PICKLES:
        refusal = ModelBroken(
            f"{name[:100]} is a pickle file, which can carry programs and is never loaded.",
            "Name the model's GGUF file.",
        )
    elif is_split_by_hand(name):
        refusal = Validation(f"{name[:100]} is one piece of a model cut by hand.", how_to_join(name))
    elif suffix != ".gguf":
        refusal = Validation(
            f"{name[:100] or 'The source'} is not a .gguf file, and only such are fetched.",
            "Name the GGUF file of the model.",
        )
    elif SPLIT.fullmatch(name):
        refusal = Validation(
            f"{name[:100]} is one of several parts, and models in parts are not fetched.",
            "Fetch all parts another way and put them into one model folder.",
        )
    if refusal:
        raise refusal
