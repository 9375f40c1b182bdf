"""The cache of Hugging Face, which other programs use too: its folder, and removal of files downloaded for a model.

Its layout: `models--OWNER--NAME/snapshots/COMMIT/FILE`, links into `blobs`, and `refs/BRANCH` with a commit each.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from backend.child.download.workspace import NAME, lock_for
from backend.common.config.settings.schema import with_home
from backend.common.errors import Configuration
from backend.common.formats.gguf import parts
from backend.models.sources import Source


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder, by the environment variables of `huggingface_hub`."""
    home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or with_home("~/.cache"), "huggingface"))
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return with_home(named) if named else with_home(home) / "hub"


def has_parts(source: Source, environ: Mapping[str, str]) -> bool:
    """Return whether there is a partial download of the repository that can be resumed."""
    return any(_workspace(_repository(source, environ)).glob("*.part"))


def drop(source: Source, needed: Iterable[Path], environ: Mapping[str, str]) -> None:
    """Remove the files that were downloaded for a model, except files of `needed` models and files from before.

    Raises Configuration.
    """
    repository = _repository(source, environ)
    if source.path and source.commit:
        path = Path(source.path)
        snapshot = next((folder for folder in (path, *path.parents) if folder.name == source.commit), None)
        if snapshot is not None and snapshot.parent.name == "snapshots":
            repository = snapshot.parent.parent
            try:
                _drop_files(
                    snapshot, [name for name in source.downloaded_files or [] if not _among(snapshot / name, needed)]
                )
            except OSError as error:
                raise Configuration(
                    f"{error.filename} cannot be removed: {error.strerror}.",
                    "Close programs that use it, or remove it by hand.",
                ) from error
    for part in _workspace(repository).glob("*.part"):
        lock = lock_for(part.parent, part.stem)
        if lock.acquire():
            shutil.rmtree(part, ignore_errors=True)
            lock.release()
    if repository.is_dir() and not any(repository.glob("snapshots/*")):
        shutil.rmtree(repository, ignore_errors=True)


def _among(file: Path, needed: Iterable[Path]) -> bool:
    """Return whether a file is one of other models, a part of one, or in one of their folders."""
    others = [part for path in needed for part in (path, *parts(path))]
    return any(path in others for path in (file, *file.parents))


def _drop_files(snapshot: Path, downloaded_files: list[str]) -> None:
    for name in downloaded_files:
        file = snapshot / name
        blob = file.resolve()
        file.unlink(missing_ok=True)
        others = (link.resolve() for link in snapshot.parent.rglob("*") if link.is_symlink())
        if blob.parent == snapshot.parent.parent / "blobs" and blob not in others:
            blob.unlink(missing_ok=True)
    for folder in sorted({(snapshot / name).parent for name in downloaded_files}, key=lambda each: -len(each.parts)):
        for empty in (folder, *folder.parents):
            if snapshot not in (empty, *empty.parents):
                break
            with contextlib.suppress(OSError):  # it still has another model's files
                empty.rmdir()


def _repository(source: Source, environ: Mapping[str, str]) -> Path:
    return hub_cache(environ) / f"models--{(source.repo or '').replace('/', '--')}"


def _workspace(repository: Path) -> Path:
    return repository / "blobs" / NAME
