"""What a sound file says of itself: its title, what made it, with which model and seed, under which licence.

libsndfile writes these texts into WAV (RIFF's INFO), FLAC and Ogg (Vorbis comments). Into MP3 it writes UTF-8 where
readers expect Latin-1, and no licence, so that tag is made here: ID3v2.3 (id3.org/id3v2.3.0), texts in UTF-16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backend import __version__

if TYPE_CHECKING:
    from soundfile import SoundFile

PROGRAM = f"Touchstone {__version__}"
_UTF16 = b"\x01"  # the encoding of a text that has a mark of its byte order
LICENCE = "Licence of the model"


def facts_of(model: str, licence: str | None, seed: int | None) -> dict[str, str]:
    """What is known of how a sound came to be, by names for people."""
    known = {"Model": model, LICENCE: licence, "Seed": None if seed is None else str(seed)}
    return {name: value for name, value in known.items() if value}


@dataclass(frozen=True)
class Tags:
    """`made` is the word for what the program did."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    made: str = "Generated"

    @property
    def comment(self) -> str:
        """All of it in sentences."""
        return " ".join([f"{self.made} by {PROGRAM}.", *(f"{name}: {value}." for name, value in self.facts.items())])

    @property
    def licence(self) -> str:
        """Whose licence it is stands with it: a model's licence need not be its output's."""
        return f"{LICENCE}: {self.facts[LICENCE]}" if LICENCE in self.facts else ""

    def put_into(self, file: SoundFile) -> None:
        """Puts the texts into an open file, before its first sample. RIFF has no place for a licence."""
        found = {"title": self.title, "software": PROGRAM, "comment": self.comment}
        found |= {} if file.format in ("WAV", "RF64") else {"license": self.licence}
        for name, text in found.items():
            if text:  # it takes no empty ones
                setattr(file, name, _plain(text))

    def as_id3(self) -> bytes:
        """The tag that stands before the sound of an MP3 file."""
        frames = [_frame(b"TIT2", _UTF16 + _text(self.title)), _frame(b"TSSE", _UTF16 + _text(PROGRAM))]
        frames.append(_frame(b"COMM", _UTF16 + b"eng" + _text("") + b"\0\0" + _text(self.comment)))
        for name, value in (*self.facts.items(), *((("LICENSE", self.licence),) if self.licence else ())):
            frames.append(_frame(b"TXXX", _UTF16 + _text(name) + b"\0\0" + _text(value)))
        body = b"".join(frames)
        sizes = bytes(len(body) >> shift & 0x7F for shift in (21, 14, 7, 0))
        return b"ID3\x03\0\0" + sizes + body


def _plain(text: str) -> str:
    return text.replace("\0", " ")


def _text(text: str) -> bytes:
    return b"\xff\xfe" + _plain(text).encode("utf-16-le", "replace")


def _frame(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "big") + b"\0\0" + content
