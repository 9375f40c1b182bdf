"""Ollama's store: `manifests/HOST/NAMESPACE/MODEL/TAG` lists the layers of a model, `blobs/sha256-…` are the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.files import read_text
from backend.common.types import JsonObject
from backend.models.sources import OLLAMA
from backend.models.stores.stored_model import StoredModel

_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_LAYER = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MOST_MANIFESTS = 2000
_TEXT_BYTES = 1 << 20


@dataclass(frozen=True)
class _Manifest:
    """A parsed manifest: the files and texts of its layers by kind."""

    files: dict[str, list[Path]]
    parameters: JsonObject

    def first(self, kind: str) -> Path | None:
        return next(iter(self.files.get(kind, [])), None)


def list_models(folder: Path) -> Iterator[StoredModel]:
    """Yield the models of a store. Raises OSError."""
    root = folder / "manifests"
    if not root.is_dir():
        return
    manifests = (path for path in root.glob("*/*/*/*") if path.is_file() and not path.name.startswith("."))
    for count, path in enumerate(sorted(manifests)):
        if count == _MOST_MANIFESTS:
            return
        yield _model(folder, path)


def find_model(folder: Path, name: str) -> StoredModel | None:
    """Return a model by any spelling of its name: `llama3.2`, `llama3.2:latest`, `hf.co/OWNER/REPO:TAG`."""
    path = _manifest_path(folder, name)
    return _model(folder, path) if path and path.is_file() else None


def _manifest_path(folder: Path, name: str) -> Path | None:
    """Return where the manifest of a name is; None for a name that Ollama does not allow."""
    path, colon, tag = name.rpartition(":")
    path, tag = (path, tag) if colon else (name, _TAG)
    pieces = path.split("/")
    if not 1 <= len(pieces) <= 3 or any(not re.fullmatch(r"\w[\w.-]*", piece) for piece in (*pieces, tag)):
        return None
    complete = [*[_HOST, _NAMESPACE][: 3 - len(pieces)], *pieces]
    return folder.joinpath("manifests", *complete, tag)


def _name(manifest: Path) -> str:
    """Return the name as Ollama prints it, without its own host and the namespace of its library."""
    host, namespace, model, tag = manifest.parts[-4:]
    prefix = f"{namespace}/" if host == _HOST else f"{host}/{namespace}/"
    return f"{model}:{tag}" if (host, namespace) == (_HOST, _NAMESPACE) else f"{prefix}{model}:{tag}"


def _model(folder: Path, path: Path) -> StoredModel:
    name = _name(path)
    try:
        content = json.loads(_small_text(path))
        layers = [(str(layer["mediaType"]), str(layer["digest"])) for layer in content["layers"]]
        config = str((content.get("config") or {}).get("digest") or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or "it is not a manifest of Ollama"
        return _refused(name, f"{path} cannot be read: {why}.", f"Download it again: ollama pull {name}")
    files: dict[str, list[Path]] = {}
    for media_type, digest in layers:
        if media_type.startswith(_LAYER) and (blob := _blob(folder, digest)):
            files.setdefault(media_type.removeprefix(_LAYER), []).append(blob)
    manifest = _Manifest(files, _parameters(files))
    return _checked(name, manifest, _config(folder, config))


def _checked(name: str, manifest: _Manifest, config: JsonObject) -> StoredModel:
    """Return the model, with the reason if it has no file that an engine loads."""
    path = manifest.first("model")
    if path is None:
        if config.get("remote_host") or config.get("remote_model"):
            return _refused(
                name, f"{name} runs on Ollama's servers; it has no file on this machine.", "Choose another."
            )
        if "tensor" in manifest.files:
            return _refused(
                name,
                f"{name} is stored as single tensors, which only Ollama reads.",
                "Add the same model as GGUF: hf:OWNER/REPO.",
            )
        return _refused(name, f"{name} has no model in its manifest.", f"Download it again: ollama pull {name}")
    if len(manifest.files["model"]) > 1:
        return _refused(
            name,
            f"{name} is stored in several files, which only Ollama joins.",
            "Add the same model as GGUF: hf:OWNER/REPO.",
        )
    missing = [file for files in manifest.files.values() for file in files if not file.is_file()]
    if missing:
        return _refused(
            name, f"{name} is incomplete: {missing[0]} does not exist.", f"Download it again: ollama pull {name}"
        )
    if adapters := manifest.files.get("adapter"):
        listed = ", ".join(f"{{path: {file}}}" for file in adapters)
        return _refused(
            name,
            f"{name} is a model with a LoRA adapter, which is not applied from here.",
            f"Add it to config.yaml: `models: {{ID: {{path: {path}, adapters: [{listed}]}}}}`.",
        )
    return StoredModel(
        OLLAMA,
        name,
        path,
        projector=manifest.first("projector"),
        notices=tuple(_notices(manifest)),
    )


def _notices(manifest: _Manifest) -> Iterator[str]:
    """Yield what Ollama would add to the model and Touchstone does not."""
    unused = [kind for kind in ("template", "system", "messages") if kind in manifest.files]
    if unused:
        listed = ", ".join("system prompt" if kind == "system" else kind for kind in unused)
        yield f"Not used of what Ollama stores for it: {listed}. The chat template in the file is used."
    if manifest.parameters:
        listed = ", ".join(f"{key} {value}" for key, value in sorted(manifest.parameters.items()))
        yield f"Ollama's parameters for it are not applied ({listed[:300]}): send them as options."


def _parameters(files: dict[str, list[Path]]) -> JsonObject:
    """Return the parameters of a model's author, such as stop sequences; empty if they cannot be read."""
    for file in files.get("params", []):
        try:
            content = json.loads(_small_text(file))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            return {str(key): value for key, value in content.items()}
    return {}


def _config(folder: Path, digest: str) -> JsonObject:
    blob = _blob(folder, digest)
    try:
        content: Any = json.loads(_small_text(blob)) if blob else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _blob(folder: Path, digest: str) -> Path | None:
    """Return the file of a digest; older versions of Ollama named it with a colon."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        return None
    path, older = (folder / "blobs" / f"sha256{mark}{match[1]}" for mark in "-:")
    return older if not path.exists() and older.exists() else path


def _small_text(path: Path) -> str:
    if path.stat().st_size > _TEXT_BYTES:
        raise ValueError("too long for a manifest")
    return read_text(path)


def _refused(name: str, reason: str, remedy: str) -> StoredModel:
    return StoredModel(OLLAMA, name, None, reason=reason, remedy=remedy)
