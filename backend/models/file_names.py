"""What a file's name reveals before the file is opened: pickle files, parts of models, manually split files."""

from __future__ import annotations

from pathlib import PurePosixPath

from backend.common.errors import ModelBroken, Validation
from backend.common.formats.gguf import how_to_join, is_split_by_hand
from backend.common.formats.gguf.kinds import PICKLES, SPLIT
from backend.engines import model_formats

_MOST_PARTS = 500


def web_suffixes() -> list[str]:
    """Return the suffixes of the model files that may be downloaded from any web address."""
    return sorted({model_format.suffix for model_format in model_formats() if model_format.web_download})


def check_name(name: str) -> None:
    """Reject a name that is not a model file which may be downloaded. Raises Validation, ModelBroken."""
    part = SPLIT.fullmatch(name)
    _check_kind(name)
    if PurePosixPath(name).suffix.lower() not in web_suffixes():
        listed = " or ".join(web_suffixes())
        raise Validation(
            f"{name[:100] or 'The source'} is not a {listed} file; only such files are downloaded from web addresses.",
            f"Name a {listed} file. Model folders are downloaded from Hugging Face: hf:OWNER/REPO.",
        )
    if part and (int(part[2]) != 1 or not 1 <= int(part[3]) <= _MOST_PARTS):
        raise Validation(
            f"{name[:100]} is one of several parts.", "Name the first part; the others are downloaded with it."
        )


def check_member(name: str | None) -> None:
    """Reject a file of a repository that is not a model on its own. Raises Validation, ModelBroken."""
    if name is None:
        return
    _check_kind(name)
    if PurePosixPath(name).suffix.lower() == ".safetensors":
        raise Validation(
            f"{name[:100]} has only weights; the rest of the model is in other files of its folder.",
            "Name the repository, or the folder in it: hf:OWNER/REPO.",
        )
    part = SPLIT.fullmatch(name)
    if part and not 1 <= int(part[2]) <= int(part[3]) <= _MOST_PARTS:
        raise Validation(f"{name[:100]} is not a valid part of a model.", "Name the repository, or its first part.")


def _check_kind(name: str) -> None:
    if PurePosixPath(name).suffix.lower() in PICKLES:
        raise ModelBroken(
            f"{name[:100]} is a pickle file, which can carry programs and is never loaded.",
            "Name the model's GGUF file.",
        )
    if is_split_by_hand(name):
        raise Validation(f"{name[:100]} is one part of a manually split file.", how_to_join(name))
