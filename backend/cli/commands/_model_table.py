"""The tables of the verb `models`: the models of this machine, and what a search found."""

from __future__ import annotations

from collections.abc import Sequence

from backend.common.byte_sizes import gb
from backend.common.commands import command
from backend.common.types import JsonObject

_FEW_FILES = 8  # of a repository with dozens; `--json` has all
_USUAL = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_0", "MXFP4", "IQ4_XS", "Q3_K_M", "F16", "BF16")


def table(listed: JsonObject, everything: bool) -> str:
    """Return one line a model, then what is wrong with models that cannot be used, and what can be downloaded.

    Models that are not on this machine are left out unless they are defaults, or with `everything`.
    """
    models, recommended = listed["models"], listed.get("recommended") or {}
    here = [model for model in models if everything or model["state"] != "downloadable" or model["default"]]
    rows = [("ID", "TASK", "STATE", "SIZE", "FITS", "ENGINES", "")]
    for model in here:
        facts = (model["id"], model["task"], model["state"], _size(model["bytes"]))
        fits = _fit(model.get("fits") or [])
        rows.append((*facts, fits, ", ".join(model["engines"]) or "-", _marks(model, recommended)))
    lines = _columns(rows)
    lines += [f"{model['id']}: {model['reason']} {model['remedy'] or ''}".rstrip() for model in filter(_is_wrong, here)]
    if others := len(models) - len(here):
        search = command("models search WORDS")
        lines.append(f"{others} more can be downloaded: `{command('models --all')}`. Others: `{search}`.")
    if recommended.get("offer"):
        how = f"`{command('models fetch ' + recommended['model'])}` ({_size(recommended['bytes'])})"
        lines.append(f"Recommended for this machine: {recommended['name']}. {recommended['reason']} {how}")
    return "\n".join(lines)


def search_page(results: Sequence[JsonObject]) -> str:
    """Return the repositories that a search found, each with its files, and how to download one."""
    if not results:
        return "No model was found. Use fewer words, or another task (--task embeddings, --task onnx)."
    lines = []
    for found in results:
        facts = [
            f"{_short(found['downloads'])} downloads",
            f"{_short(found['likes'])} likes",
            found["licence"] or "licence unknown",
            f"updated {found['updated_at'][:10]}" if found["updated_at"] else "",
        ]
        lines += ["", f"{found['author']}/{found['name']}: {', '.join(filter(None, facts))}"]
        if found["gated"]:
            lines.append(f"  Accept its licence at {found['page']} first, and set HF_TOKEN.")
        if found["reason"]:
            lines.append(f"  {found['reason']}")
        lines += [f"  {line}" for line in _file_lines(found["files"])]
    how = f"Download one with `{command('models add ' + _example(results))}`"
    return "\n".join([*lines[1:], "", how])


def _file_lines(files: Sequence[JsonObject]) -> list[str]:
    shown = files
    if len(files) > _FEW_FILES:
        usual = [file for kind in _USUAL for file in files if file["quantization"] == kind][:_FEW_FILES]
        shown = [file for file in files if file in usual] or files[:_FEW_FILES]
    rows = [("QUANTIZATION", "SIZE", "FITS", "SOURCE")]
    rows += [(file["quantization"] or "-", _size(file["bytes"]), _fit(file["fits"]), file["source"]) for file in shown]
    more = [f"and {len(files) - len(shown)} more files (--json lists all)"] if len(shown) < len(files) else []
    return [*_columns(rows), *more] if files else []


def _fit(fits: Sequence[JsonObject]) -> str:
    """Return the best fit: the device, where the model is not completely on it "partly", or "no"; "?" if unknown."""
    for kind, words in (("yes", "{}"), ("partly", "{} partly"), ("no", "no")):
        if devices := [fit["device"] for fit in fits if fit["fits"] == kind]:
            return words.format(devices[0])
    return "?"


def _example(results: Sequence[JsonObject]) -> str:
    """Return the source of the most usual file."""
    files = [file for found in results for file in found["files"]]
    usual = (file["source"] for kind in _USUAL for file in files if file["quantization"] == kind)
    return next(usual, files[0]["source"] if files else "hf:OWNER/REPO")


def _is_wrong(model: JsonObject) -> bool:
    """Return whether a user has to act: on a broken model, or on a default that is missing."""
    return bool(model["reason"]) and (model["state"] == "broken" or model["default"])


def _marks(model: JsonObject, recommended: JsonObject) -> str:
    details = model.get("details") or {}
    marks = [
        "default" if model["default"] else "",
        "test model" if details.get("test_model") else "",
        "recommended" if model["id"] == recommended.get("model") else "",
    ]
    return ", ".join(filter(None, marks))


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else gb(size_bytes)


def _short(count: int | None) -> str:
    """Return a count such as 1.2M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if count is not None and count >= size:
            return f"{count / size:.1f}{unit}"
    return "?" if count is None else str(count)
