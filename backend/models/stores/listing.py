"""List the models of all stores, and find one by the source that a caller names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from backend.common.bounded_reads import NoAnswer, bounded_read, silent_folder
from backend.common.errors import ModelBroken, UnknownModel
from backend.common.formats.gguf import first_part
from backend.common.formats.gguf.kinds import SPLIT
from backend.engines import model_formats
from backend.models.hub_cache import hub_cache
from backend.models.sources import HUB_CACHE, LLAMA_CPP, LM_STUDIO, OLLAMA
from backend.models.stores import locations, ollama
from backend.models.stores.folder_walk import walk
from backend.models.stores.stored_model import Store, StoredModel

SCAN_S = 5.0  # timeout of one store
_MOST_MODELS = 2000  # of one store
_DEPTH = 5
_PROJECTOR = "mmproj"  # in the names of files for images, as all programs write them


@dataclass(frozen=True)
class Listing:
    """What was found: the models and the folders that were searched."""

    models: list[StoredModel]
    stores: list[Store]


def _walk_folder(program: str, depth: int, folder: Path) -> Iterator[StoredModel]:
    """Yield the models below a folder, named by their path in it. Files of a format without a task are left out."""
    found = walk(folder, _is_model_folder, depth)
    files = dict.fromkeys(first_part(path) for path in found.found if _is_model(path))
    for path in files:
        name = path.relative_to(folder).as_posix()
        yield StoredModel(program, name, path, projector=_projector_of(path, found.found))


def _cached_repositories(folder: Path) -> Iterator[StoredModel]:
    """Yield the models in the cache of Hugging Face, of each repository those of one snapshot."""
    for repository in sorted(folder.glob("models--*--*")):
        snapshot = _snapshot(repository)
        if snapshot is None:
            continue
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        if _is_model_folder(snapshot):
            yield StoredModel(HUB_CACHE, name, snapshot)
            continue
        for model in _walk_folder(HUB_CACHE, _DEPTH, snapshot):
            yield StoredModel(HUB_CACHE, f"{name}/{model.name}", model.path, projector=model.projector)


def _snapshot(repository: Path) -> Path | None:
    """Return the snapshot of the branch `main`, otherwise the newest one."""
    try:
        main = repository / "snapshots" / (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        if main.is_dir() and main.parent.name == "snapshots":
            return main
    except (OSError, ValueError):
        pass  # it was fetched by its commit
    snapshots = [path for path in repository.glob("snapshots/*") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _is_model_folder(path: Path) -> bool:
    return any(model_format.files and model_format.recognises(path) for model_format in model_formats())


def _is_model(path: Path) -> bool:
    name = path.name.lower()
    if path.is_dir():
        return True  # the walk returns only folders that are models
    return name.endswith(".gguf") and _PROJECTOR not in name


def _projector_of(path: Path, files: list[Path]) -> Path | None:
    """Return the projector in the folder of a model; of several the first one."""
    return next(
        (file for file in files if file.parent == path.parent and file != path and _PROJECTOR in file.name.lower()),
        None,
    )


@dataclass(frozen=True)
class _Program:
    """How the models of a program are found. `title` is how it is called in messages."""

    title: str
    folders: Callable[[Mapping[str, str]], list[Path]]
    models: Callable[[Path], Iterator[StoredModel]]


PROGRAMS: dict[str, _Program] = {
    OLLAMA: _Program("Ollama", locations.ollama_folders, ollama.list_models),
    LM_STUDIO: _Program("LM Studio", locations.lm_studio_folders, partial(_walk_folder, LM_STUDIO, 2)),
    HUB_CACHE: _Program("the cache of Hugging Face", lambda environ: [hub_cache(environ)], _cached_repositories),
    LLAMA_CPP: _Program(LLAMA_CPP, locations.llama_cpp_folders, partial(_walk_folder, LLAMA_CPP, 0)),
}


def list_stores(environ: Mapping[str, str], programs: tuple[str, ...] = tuple(PROGRAMS)) -> Listing:
    """Return the models of all stores that exist; a name in two folders of a program counts once."""
    models: dict[str, StoredModel] = {}
    stores = []
    for program in programs:
        for folder in dict.fromkeys(PROGRAMS[program].folders(environ)):
            found, reason = _read_store(program, folder)
            if found or reason:
                stores.append(Store(program, folder, len(found), reason))
            for model in found:
                models.setdefault(model.source, model)
    return Listing(list(models.values()), stores)


def _read_store(program: str, folder: Path) -> tuple[list[StoredModel], str | None]:
    """Return the models of a folder, and why there are none or not all. A folder that does not exist has no reason."""
    read = PROGRAMS[program].models
    try:
        found = bounded_read(
            folder, lambda: list(islice(read(folder), _MOST_MODELS + 1)) if folder.is_dir() else [], SCAN_S
        )
    except NoAnswer as error:
        return [], silent_folder(folder, error)[0]
    except OSError as error:
        return [], f"{folder} cannot be read: {error.strerror}."
    is_cut = len(found) > _MOST_MODELS
    return found[
        :_MOST_MODELS
    ], f"{folder} has more than {_MOST_MODELS} models: not all are listed." if is_cut else None


def find_stored(program: str, name: str, environ: Mapping[str, str]) -> StoredModel:
    """Return the model of a source. Raises UnknownModel that names similar ones, ModelBroken if it is not usable."""
    model = _named(program, name, environ)
    if model is None:
        models = list_stores(environ, (program,)).models
        near = difflib.get_close_matches(name, [each.name for each in models], 1, 0.4)
        title = PROGRAMS[program].title
        raise UnknownModel(
            f"There is no model {name[:200]!r} in {title}.",
            f"Did you mean {program}:{near[0]}?" if near else "GET /api/models/importable lists what is there.",
            valid=[each.source for each in models],
        )
    if model.path is None:
        raise ModelBroken(str(model.reason), str(model.remedy))
    return model


def current_path(program: str, name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the path of an added model now: an update by Ollama gives a name another file. None if it is unknown."""
    model = _named(program, name, environ) if program == OLLAMA else None
    return model.path if model else None


def _named(program: str, name: str, environ: Mapping[str, str]) -> StoredModel | None:
    if program == OLLAMA:
        folders = locations.ollama_folders(environ)
        found = (bounded_read(folder, partial(ollama.find_model, folder, name)) for folder in folders)
        return next((model for model in found if model), None)
    models = list_stores(environ, (program,)).models
    exact = [model for model in models if name in (model.name, _without_part(model.name))]
    below = [model for model in models if model.name.startswith(f"{name}/")]
    return exact[0] if exact else below[0] if len(below) == 1 else None


def _without_part(name: str) -> str:
    """Return the name of a split model without the number of its part."""
    split = SPLIT.fullmatch(name)
    return f"{split[1]}.gguf" if split else name
