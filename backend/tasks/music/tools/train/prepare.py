"""Reads the corpus, normalises it and writes the training file; says what was left out and why."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.tools.train.corpus import read_corpus
from backend.tasks.music.tools.train.dataset import build
from backend.tasks.music.tools.train.normalise import Unusable, WrittenTune, normalise


def corpus_folder() -> Path:
    """Where music21's wheel keeps its tunes; music21 itself is not imported. Raises FileNotFoundError."""
    found = find_spec("music21")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(
            "music21 is not installed: pip install -r backend/tasks/music/tools/train/requirements.txt"
        )
    return Path(found.submodule_search_locations[0]) / "corpus"


def read_tunes(without_campin: bool = False) -> tuple[list[WrittenTune], Counter[str]]:
    """All usable tunes, and the reasons why the others are not."""
    tunes: list[WrittenTune] = []
    reasons: Counter[str] = Counter()
    for source in read_corpus(corpus_folder(), without_campin):
        if isinstance(source, AbcError):
            reasons["unreadable"] += 1
            continue
        try:
            tunes.append(normalise(source))
        except Unusable as reason:
            reasons[str(reason)] += 1
    return tunes, reasons


def prepare(path: Path, without_campin: bool = False, seed: int | None = None) -> dict[str, Any]:
    """Writes `path`; returns counts. A seed draws a new split, else it is that of the released weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tunes, reasons = read_tunes(without_campin)
    return {
        "left out": dict(reasons),
        "by collection": dict(Counter(tune.name.split()[0] for tune in tunes)),
        **build(tunes, path),
    }
