"""Preparation of the dataset: read the corpus, normalise it, write the training file, and count excluded tunes."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from backend.common.types import JsonObject
from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.tools.train.corpus import read_corpus
from backend.tasks.music.tools.train.dataset import build_dataset
from backend.tasks.music.tools.train.normalise import UnusableTune, WrittenTune, normalise


def corpus_folder() -> Path:
    """Return the folder of tunes in music21's wheel, without importing music21. Raises FileNotFoundError."""
    spec = find_spec("music21")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "music21 is not installed: pip install -r backend/tasks/music/tools/train/requirements.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "corpus"


def read_tunes(without_campin: bool = False) -> tuple[list[WrittenTune], Counter[str]]:
    """Return all usable tunes, and the number of excluded ones by reason."""
    tunes: list[WrittenTune] = []
    reasons: Counter[str] = Counter()
    for source in read_corpus(corpus_folder(), without_campin):
        if isinstance(source, AbcError):
            reasons["unreadable"] += 1
            continue
        try:
            tunes.append(normalise(source))
        except UnusableTune as reason:
            reasons[str(reason)] += 1
    return tunes, reasons


def prepare(path: Path, without_campin: bool = False, seed: int | None = None) -> JsonObject:
    """Write the dataset to `path` and return counts. `seed` draws a new split; default: the released one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tunes, reasons = read_tunes(without_campin)
    return {
        "left out": dict(reasons),
        "by collection": dict(Counter(tune.name.split()[0] for tune in tunes)),
        **build_dataset(tunes, path, seed),
    }
