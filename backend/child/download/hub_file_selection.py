"""Choose which files of a Hugging Face repository make a model that an engine reads, and report the choice.

A repository may have several formats. The order is: GGUF, which runs everywhere; the folder formats that engines
declare (`ModelFormat.folder_download`); safetensors; ONNX; other model files that engines read. Of several files in one
format the most usual is chosen, and the others are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from backend.child.download.errors import Refused
from backend.common.errors import ModelBroken
from backend.common.formats.gguf.kinds import PICKLES, SPLIT, part_names
from backend.common.formats.safetensors import is_variant
from backend.engines import FolderDownload, model_formats

# From the most usual to the rest: four bits first, then more bits, then fewer, then unquantized.
_PREFERENCE = (
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_XS", "IQ4_NL", "MXFP4", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K"),
    *("Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K", "BF16", "F16", "FP16"),
    *("F32", "FP32"),
)
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])(I?Q\d(?:_[A-Z0-9]{1,4})*|TQ\d_\d|MXFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])", re.I
)
_COMPANIONS = (".json", ".jinja", ".txt", ".model", ".tiktoken")  # files that belong to a folder's weights
_SHOWN = 12


@dataclass(frozen=True)
class Choice:
    """Files to download, by their names in the repository. `path` is the first file, or the folder ("": the root)."""

    kind: str
    files: tuple[str, ...]
    path: str
    said: str = ""
    folder: FolderDownload | None = field(default=None, compare=False)

    @property
    def lists_components(self) -> bool:
        """Whether `files` is only the index of a model, whose components `expand_pipeline` adds."""
        return self.folder is not None and self.folder.list_components is not None


def choose(files: Mapping[str, int | None], asked: str | None, variant: str | None, repo: str) -> Choice:
    """Choose the model of a repository. `files` maps names to sizes, None if unknown.

    Optional: `asked`, a file or folder in the repository; `variant`, a quantization such as Q8_0. Raises
    Refused.
    """
    names = sorted(files)
    if asked is not None and asked in files:
        return _file(asked, names, repo)
    if asked is not None:
        names = [name for name in names if name.startswith(asked + "/")]
        if not names:
            raise _no_model(f"{repo} has no file or folder {asked}", repo)
    ggufs = group_ggufs(names)
    if ggufs:
        return _gguf(ggufs, files, variant, repo)
    if variant:
        raise _no_model(f"{repo} has no GGUF files, and {variant} selects among those only", repo)
    return (
        _declared_folder(names, asked, repo)
        or _safetensors(names, asked)
        or _onnx(names, repo)
        or _other_file(names, repo)
        or _none(names, repo)
    )


def _file(asked: str, names: list[str], repo: str) -> Choice:
    suffix = PurePosixPath(asked).suffix.lower()
    if suffix == ".gguf":
        parts = next(parts for parts in group_ggufs(names, everything=True).values() if asked in parts)
        return Choice("gguf", _all_parts(parts, repo), parts[0])
    for model_format in model_formats():
        if model_format.suffix == suffix:
            return Choice(model_format.name, (asked,), asked)
    raise _no_model(f"{asked} of {repo} is not a model file", repo)


def group_ggufs(names: list[str], everything: bool = False) -> dict[str, list[str]]:
    """Return GGUF models by name, each with its parts. Projectors and importance matrices are not models."""
    models: dict[str, list[str]] = {}
    for name in names:
        stem = PurePosixPath(name).name.lower()
        if stem.endswith(".gguf") and (everything or not ("mmproj" in stem or "imatrix" in stem)):
            part = SPLIT.fullmatch(name)
            models.setdefault(f"{part[1]}.gguf" if part else name, []).append(name)
    return models


def _gguf(models: Mapping[str, list[str]], files: Mapping[str, int | None], variant: str | None, repo: str) -> Choice:
    kinds = {name: quantization_of(name) for name in models}
    candidates = [name for name in models if variant is None or kinds[name].lower() == variant.lower()]
    if not candidates:
        available = ", ".join(sorted({kind for kind in kinds.values() if kind}))
        raise _no_model(f"{repo} has no GGUF file in {variant}" + (f"; it has {available}" if available else ""), repo)
    chosen = min(candidates, key=lambda name: (_rank(kinds[name]), name.count("/"), len(name), name))
    parts = models[chosen]
    said = ""
    if len(models) > 1:
        others = [f"hf:{repo}:{kind}" for kind in dict.fromkeys(kinds.values()) if kind and kind != kinds[chosen]]
        sizes = [files[part] for part in parts]
        size = f" ({sum(size_bytes or 0 for size_bytes in sizes) / 1e6:.0f} MB)" if None not in sizes else ""
        said = f"Of the {len(models)} GGUF models in {repo}, {parts[0]}{size} was selected."
        said += f" Others: {_listed(others)}." if others else ""
    return Choice("gguf", _all_parts(parts, repo), parts[0], said)


def _all_parts(parts: list[str], repo: str) -> tuple[str, ...]:
    """Return all parts of a model in order. Raises Refused if one is missing."""
    expected = part_names(parts[0])
    if missing := [name for name in expected if name not in parts]:
        raise Refused(
            "model_broken",
            f"{repo} has {len(parts)} of the {len(expected)} parts of this model; {missing[0]} is missing.",
            "Choose another file of the repository, or ask its owner.",
        )
    return tuple(expected)


def quantization_of(name: str) -> str:
    """Return the quantisation in a file's name, or in its folder's."""
    part = SPLIT.fullmatch(name)
    matches = _QUANTIZATION.findall(PurePosixPath(f"{part[1]}.gguf" if part else name).with_suffix("").as_posix())
    return str(matches[-1]).upper() if matches else ""


def _rank(kind: str) -> int:
    return _PREFERENCE.index(kind) if kind in _PREFERENCE else len(_PREFERENCE)


def _declared_folder(names: list[str], asked: str | None, repo: str) -> Choice | None:
    """Return the folder of the first format that an engine declares and the repository has."""
    declared = [(each.folder_download, each.name) for each in model_formats() if each.folder_download]
    for folder, kind in sorted(declared, key=lambda pair: pair[0].priority):
        choice = _indexed(folder, kind, names, asked) if folder.list_components else _marked(folder, kind, names, repo)
        if choice:
            return choice
    return None


def _marked(rule: FolderDownload, kind: str, names: list[str], repo: str) -> Choice | None:
    folders = [PurePosixPath(name).parent.as_posix() for name in names if PurePosixPath(name).name == rule.marker]
    if not folders:
        return None
    chosen = min(folders, key=lambda each: (rule.preferred not in each.lower(), each.count("/"), len(each), each))
    said = ""
    if len(folders) > 1:
        others = [f"hf:{repo}/{folder}" for folder in folders if folder != chosen]
        said = f"Of the {len(folders)} folders for {rule.title}, {chosen} was selected. Others: {_listed(others)}."
    folder = "" if chosen == "." else chosen
    return Choice(kind, tuple(name for name in names if _in(name, folder)), folder, said, rule)


def _indexed(rule: FolderDownload, kind: str, names: list[str], asked: str | None) -> Choice | None:
    """Return the index only: its content determines the other files, see `expand_pipeline`."""
    index = f"{asked}/{rule.marker}" if asked else rule.marker
    return Choice(kind, (index,), asked or "", folder=rule) if index in names else None


def expand_pipeline(choice: Choice, index: Mapping[str, Any], names: Iterable[str], repo: str) -> Choice:
    """Return the choice with all files of a pipeline, by its index; each model once, as safetensors. Raises Refused."""
    assert choice.folder and choice.folder.list_components, "the choice is an index"
    try:
        parts = choice.folder.list_components(index, repo)
    except ModelBroken as broken:
        raise Refused(broken.code, broken.detail, broken.remedy) from None
    files = [*choice.files, *(name for name in names if _in(name, choice.path) and name.endswith(".md"))]
    for part in parts:
        folder = f"{choice.path}/{part}" if choice.path else part
        inside = [name for name in names if PurePosixPath(name).parent.as_posix() == folder]
        weights = [name for name in inside if name.endswith(".safetensors")]
        plain = [name for name in weights if not is_variant(PurePosixPath(name).name)] or weights
        if not plain and any(PurePosixPath(name).suffix.lower() in PICKLES for name in inside):
            raise Refused(
                "model_broken",
                f"{repo} has the weights of its {part} as pickle files only, which can run code and are never loaded.",
                "Look for the same model with safetensors.",
            )
        files += [*plain, *(name for name in inside if PurePosixPath(name).suffix in _COMPANIONS)]
    return replace(choice, files=tuple(dict.fromkeys(files)))


def _safetensors(names: list[str], asked: str | None) -> Choice | None:
    folder = asked or ""
    weights = [name for name in names if name.endswith(".safetensors") and _in(name, folder)]
    config = f"{folder}/config.json" if folder else "config.json"
    if not weights or config not in names:
        return None
    named = {name: PurePosixPath(name).name for name in weights}  # not the publisher's own format, nor a second copy
    usual = [name for name in weights if named[name].startswith("model") and not is_variant(named[name])]
    beside = [name for name in names if PurePosixPath(name).suffix in _COMPANIONS and _in(name, folder)]
    return Choice("safetensors", tuple([*(usual or weights), *beside]), folder)


def _onnx(names: list[str], repo: str) -> Choice | None:
    graphs = [name for name in names if name.lower().endswith(".onnx")]
    if not graphs:
        return None
    usual = [name for name in graphs if PurePosixPath(name).name == "model.onnx"]
    if len(graphs) > 1 and len(usual) != 1:
        raise _no_model(f"{repo} has several ONNX files: {_listed(graphs)}", repo, "Name one: hf:OWNER/NAME/FILE.onnx.")
    chosen = (usual or graphs)[0]
    others = [f"hf:{repo}/{name}" for name in graphs if name != chosen]
    said = f"Of the {len(graphs)} ONNX files, {chosen} was selected. Others: {_listed(others)}." if others else ""
    return Choice("onnx", (chosen,), chosen, said)


def _other_file(names: list[str], repo: str) -> Choice | None:
    """Return the only file with another suffix that an engine reads. Raises Refused for several."""
    for model_format in model_formats():
        if model_format.suffix:
            files = [name for name in names if name.lower().endswith(model_format.suffix)]
            if len(files) > 1:
                raise _no_model(f"{repo} has several {model_format.suffix} files: {_listed(files)}", repo)
            if files:
                return Choice(model_format.name, (files[0],), files[0])
    return None


def _none(names: list[str], repo: str) -> Choice:
    pickles = [name for name in names if PurePosixPath(name).suffix.lower() in PICKLES]
    if pickles:
        raise Refused(
            "model_broken",
            f"{repo} has its weights as pickle files ({_listed(pickles)}), which can run code and are never loaded.",
            "Look for the same model as GGUF, as an ONNX Runtime GenAI folder, or as safetensors.",
        )
    raise _no_model(f"{repo} has no GGUF, no safetensors with a config.json, and no ONNX", repo)


def _in(name: str, folder: str) -> bool:
    """Return whether a file is directly in a folder and may be downloaded."""
    path = PurePosixPath(name)
    own = "" if path.parent.as_posix() == "." else path.parent.as_posix()
    return own == folder and path.suffix.lower() not in PICKLES and not path.name.startswith(".")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _no_model(what: str, repo: str, remedy: str = "") -> Refused:
    return Refused(
        "validation_error", f"{what}.", remedy or f"See the list of files at https://huggingface.co/{repo}/tree/main."
    )
