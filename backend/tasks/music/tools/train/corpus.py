"""Which tunes are read, and the form each is labelled with.

Only collections whose compositions are in the public domain and whose encodings carry no restriction; in
O'Neill's, tunes transcribed by Henrik Norbeck are left out because he restricts the files on his own site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.abc_reader import Tune, read_tunes

COLLECTIONS = ("ryansMammoth", "oneills1850", "airdsAirs", "miscFolk")
# O'Neill's Music of Ireland (1903) is ordered by kind; from the numbers where each begins.
ONEILL = (
    (1, "air"), (636, "any"), (701, "jig"), (1116, "slip jig"), (1176, "reel"), (1556, "hornpipe"),
    (1781, "any"), (1801, "march"),
)  # fmt: skip
WORDS = (
    ("slip jig", r"slip ?jigs?"),
    ("jig", r"(double )?jigs?|giggs?"),
    ("reel", r"reels?"),
    ("hornpipe", r"hornpipes?|clogs?"),
    ("strathspey", r"strathspeys?|(highland )?flings?"),
    ("march", r"march(es)?|quick ?-?steps?"),
    ("air", r"airs?"),
)
METERS = {
    "jig": {(6, 8)}, "slip jig": {(9, 8)}, "reel": {(4, 4), (2, 4)}, "hornpipe": {(4, 4), (2, 4)},
    "strathspey": {(4, 4), (2, 4)}, "march": {(4, 4), (2, 4), (6, 8)},
    "air": {(4, 4), (2, 4), (3, 4), (6, 8), (9, 8)},
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A tune with where it is from; `form` is "any" where nothing says what it is."""

    collection: str
    tune: Tune
    form: str

    @property
    def name(self) -> str:
        """Collection, number and title."""
        return " ".join((self.collection, self.tune.number, *self.tune.titles[:1]))


def read_corpus(folder: Path, without_campin: bool = False) -> Iterator[Source | AbcError]:
    """All tunes of the collections below music21's `corpus` folder, in a fixed order."""
    for collection in COLLECTIONS:
        if without_campin and collection in ("airdsAirs", "miscFolk"):
            continue
        for file in sorted((folder / collection).glob("*.abc")):
            for tune in read_tunes(file.read_text(encoding="utf-8", errors="replace")):
                if isinstance(tune, AbcError):
                    yield tune
                elif not any("norbeck" in name.lower() for name in tune.transcribers):
                    yield label(collection, tune)


def label(collection: str, tune: Tune) -> Source:
    """A tune of a collection with its form."""
    return Source(collection, tune, _form(collection, tune))


def _form(collection: str, tune: Tune) -> str:
    meter = tune.meter or (4, 4)
    meter = (4, 4) if meter == (2, 2) else meter
    guesses = [tune.rhythm]
    if collection == "oneills1850":
        number = int(re.match(r"\s*(\d+)", tune.number)[1]) if re.match(r"\s*\d+", tune.number) else 0  # type: ignore[index]
        guesses.append([form for first, form in ONEILL if number >= first][-1] if number else "")
    else:
        guesses += tune.titles
    for guess in guesses:
        for form, words in WORDS:
            if re.search(rf"\b({words})\b", guess.lower()) and meter in METERS[form]:
                return form
    return "slip jig" if meter == (9, 8) else "any"
