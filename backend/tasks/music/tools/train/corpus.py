"""The selection of training tunes, and the form label of each.

Only collections whose compositions are in the public domain and whose encodings are unrestricted. Tunes in O'Neill's
that Henrik Norbeck transcribed are excluded, since he restricts the use of the files on his website.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.abc_reader import Tune, read_tunes

COLLECTIONS = ("ryansMammoth", "oneills1850", "airdsAirs", "miscFolk")
# O'Neill's Music of Ireland (1903) is ordered by form: (first tune number, form).
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
    """A tune with its origin. `form` is "any" if it is unknown."""

    collection: str
    tune: Tune
    form: str

    @property
    def name(self) -> str:
        """The collection, number and title."""
        return " ".join((self.collection, self.tune.number, *self.tune.titles[:1]))


def read_corpus(folder: Path, without_campin: bool = False) -> Iterator[Source | AbcError]:
    """Yield all tunes of the collections in music21's `corpus` folder, in a fixed order; errors for invalid ones."""
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
    """Return a tune of a collection with its form."""
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
