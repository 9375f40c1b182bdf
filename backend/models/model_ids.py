"""The ids of model files: each file keeps the id under which it was first seen, in `<data>/models/ids.json`."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

from backend.child.download.workspace import NAME, lock_for
from backend.common.files import is_reserved_windows_name
from backend.common.formats.gguf.kinds import PICKLES
from backend.engines import model_formats

log = logging.getLogger(__name__)
_LOCK_S = 2.0
_ID_CHARS = 200  # ids are names of folders too
_LETTERS = """
а=a б=b в=v г=g д=d е=e ж=zh з=z и=i й=y к=k л=l м=m н=n о=o п=p р=r с=s т=t у=u ф=f х=kh ц=ts ч=ch ш=sh
щ=shch ъ= ы=y ь= э=e ю=yu я=ya α=a β=b γ=g δ=d ε=e ζ=z η=i θ=th ι=i κ=k λ=l μ=m ν=n ξ=x ο=o π=p ρ=r σ=s ς=s
τ=t υ=y φ=f χ=ch ψ=ps ω=o ß=ss æ=ae œ=oe ø=o ł=l đ=d ð=d þ=th ı=i ħ=h ŧ=t ё=yo є=ye і=i ї=yi ґ=g ў=u ђ=dj ј=j
љ=lj њ=nj א=a ב=b ג=g ד=d ה=h ו=v ז=z ח=h ט=t י=y ך=k כ=k ל=l ם=m מ=m ן=n נ=n ס=s ע=a ף=p פ=p ץ=ts צ=ts ק=k
ר=r ש=sh ת=t ا=a ب=b ت=t ث=th ج=j ح=h خ=kh د=d ذ=dh ر=r ز=z س=s ش=sh ص=s ض=d ط=t ظ=z ع=a غ=gh ف=f ق=q ك=k ل=l
م=m ن=n ه=h و=w ي=y ћ=c џ=dz ŋ=ng ə=e ー=
"""  # Cyrillic, Greek, Latin, Hebrew and Arabic; Unicode's own names spell these letters out
_SPECIAL = {pair[0]: pair[2:] for pair in _LETTERS.split()}
_NAMED = re.compile(r"(?:LETTER|SYLLABLE|CHARACTER|VOWEL SIGN)(?: [A-Z-]+)*? ([A-Z]+)$")


class ModelIds:
    """The file of ids. Another process may change it, so it is read again whenever it changed."""

    def __init__(self, models_dir: Path) -> None:
        self._folder = models_dir
        self._file = models_dir / "ids.json"
        self._stamp: tuple[int, int] | None = None
        self._paths: dict[str, Path] = {}
        self._ids: dict[Path, str] = {}

    def paths(self) -> dict[str, Path]:
        """Return the files by id, also of files that are gone: their ids are never given to others."""
        self._refresh()
        return self._paths

    def id_of(self, file: Path, is_taken: Callable[[str], bool]) -> str:
        """Return the id of a file; a new one is stored. `is_taken` returns whether another model has an id."""
        self._refresh()
        known = self._ids.get(file)
        if known is not None and not is_taken(known):
            return known
        lock = lock_for(self._folder / NAME, self._file.name)
        try:
            (self._folder / NAME).mkdir(parents=True, exist_ok=True)
            until_s = time.monotonic() + _LOCK_S
            while not lock.acquire() and time.monotonic() < until_s:
                time.sleep(0.01)
            try:
                self._refresh()
                id_ = self._choose(file, is_taken)
                self._write()
            finally:
                lock.release()
        except OSError as error:  # it keeps the id until the process ends
            log.warning("id of a model not stored", extra={"file": str(self._file), "detail": str(error)})
            id_ = self._choose(file, is_taken)
        return id_

    def _choose(self, file: Path, is_taken: Callable[[str], bool]) -> str:
        """Choose the id of a file: its name, with a number if that is taken."""
        stem, number = slug(file), 2
        id_ = stem
        while is_taken(id_) or self._paths.get(id_, file) != file:
            id_, number = f"{stem}-{number}", number + 1
        self._paths[id_], self._ids[file] = file, id_
        return id_

    def _refresh(self) -> None:
        try:
            facts = self._file.stat()
        except OSError:
            return
        if (facts.st_ino, facts.st_mtime_ns) == self._stamp:
            return
        try:
            stored: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8"))["ids"]
            self._paths |= {id_: self._folder / path for id_, path in stored.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("ids of models not readable", extra={"file": str(self._file), "detail": str(error)})
        self._ids = {path: id_ for id_, path in self._paths.items()}
        self._stamp = facts.st_ino, facts.st_mtime_ns

    def _write(self) -> None:
        stored = {id_: self._written(path) for id_, path in sorted(self._paths.items())}
        fresh = self._file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as out:
            json.dump({"ids": stored}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self._file)

    def _written(self, path: Path) -> str:
        """Return a path as it is stored: the data folder may be moved."""
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else str(path)


def slug(path: Path) -> str:
    """Return an id made from a file's name."""
    made = re.sub(r"[^a-z0-9._-]+", "-", transliterate(stem_of(path.name).lower()))
    made = made[:_ID_CHARS].strip("-.") or "model"
    return f"model-{made}" if is_reserved_windows_name(made) else made  # its files get this name


def stem_of(name: str) -> str:
    """Return the name of a model file or folder without the suffix of its format. A version such as 2.5 stays."""
    stem, dot, suffix = name.rpartition(".")
    known = {model_format.suffix for model_format in model_formats()} | {*PICKLES, ".safetensors", ".py"}
    return stem if stem and dot + suffix.lower() in known else name


def legacy_slug(path: Path) -> str:
    """Return the id that versions before 0.3 made: cut at the last dot, and without letters of other scripts."""
    made = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.") or "model"
    return f"model-{made}" if is_reserved_windows_name(made) else made


def transliterate(text: str) -> str:
    """Return a lower-case text with Latin letters in place of others, as far as Unicode names them."""
    return "".join(_transliterated(char) for char in unicodedata.normalize("NFC", text))


def _transliterated(char: str) -> str:
    if char.isascii():
        return char
    if char in _SPECIAL:
        return _SPECIAL[char]
    name = unicodedata.name(char, "")
    if (named := _NAMED.search(name)) and " WITH " not in name:
        return named[1].lower()
    pieces = unicodedata.normalize("NFKD", char)
    if pieces != char:
        return "".join(_transliterated(piece) for piece in pieces)
    if char.isalpha():
        return f"u{ord(char):x}"
    return str(unicodedata.digit(char, "")) or ("" if unicodedata.category(char).startswith("M") else "-")
