"""What a file's name tells before anyone looks into it: pickles, parts, pieces cut by hand."""

from __future__ import annotations

from pathlib import PurePosixPath

from backend.common.errors import ModelBroken, Validation
from backend.common.formats.gguf import how_to_join, is_split_by_hand
from backend.common.formats.gguf.kinds import PICKLES, SPLIT

_MOST_PARTS = 500


def check_name(name: str) -> None:
    """Refuses a file that would not be a model of a kind that is fetched. Raises Validation, ModelBroken."""
    part = SPLIT.fullmatch(name)
    _check_kind(name)
    if PurePosixPath(name).suffix.lower() != ".gguf":
        raise Validation(
            f"{name[:100] or 'The source'} is not a .gguf file, and only such are fetched from web addresses.",
            "Name the GGUF file of the model; from Hugging Face folders are fetched too: hf:OWNER/REPO.",
        )
    if part and (int(part[2]) != 1 or not 1 <= int(part[3]) <= _MOST_PARTS):
        raise Validation(f"{name[:100]} is one of several parts.", "Name the first part; the others come with it.")


def check_member(name: str | None) -> None:
    """Refuses a file of a repository that is no model by itself. Raises Validation, ModelBroken."""
    if name is None:
        return
    _check_kind(name)
    if PurePosixPath(name).suffix.lower() == ".safetensors":
        raise Validation(
            f"{name[:100]} has weights alone; what they belong to stands in other files beside it.",
            "Name the repository, or the folder in it: hf:OWNER/REPO.",
        )
    part = SPLIT.fullmatch(name)
    if part and not 1 <= int(part[2]) <= int(part[3]) <= _MOST_PARTS:
        raise Validation(f"{name[:100]} cannot be a part of a model.", "Name the repository, or its first part.")


def _check_kind(name: str) -> None:
    if PurePosixPath(name).suffix.lower() in PICKLES:
        raise ModelBroken(
            f"{name[:100]} is a pickle file, which can carry programs and is never loaded.",
            "Name the model's GGUF file.",
        )
    if is_split_by_hand(name):
        raise Validation(f"{name[:100]} is one piece of a model cut by hand.", how_to_join(name))
