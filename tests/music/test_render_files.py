"""`render` writes complete files or none, with the names and media types that it returns."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import soundfile

from backend.tasks.audio.progress import Cancelled
from backend.tasks.music import soundbank
from backend.tasks.music.backing import arrange
from backend.tasks.music.choices import FORMATS, INSTRUMENTS
from backend.tasks.music.rendering import possible_formats, render
from tests.music.reading import midi_notes, music21_notes, parts_with_notes
from tests.music.tunes import tune

SCORE = arrange(tune(1, bars=4, pickup_ticks=12), "banjo", "full", 120, "A jig")


def test_all_files_of_a_tune_are_written_and_named(tmp_path: Path) -> None:
    seconds = round(SCORE.seconds + 1, 1)
    made = render(SCORE, tmp_path, tuple(FORMATS), seconds, name="tune-2")
    assert made == [
        ("tune-2.wav", "audio/wav"),
        ("tune-2.flac", "audio/flac"),
        ("tune-2.mp3", "audio/mpeg"),
        ("tune-2.ogg", "audio/ogg"),
        ("tune-2.mid", "audio/midi"),
        ("tune-2.abc", "text/vnd.abc"),
        ("tune-2.svg", "image/svg+xml"),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {name for name, _ in made}
    for name in ("tune-2.wav", "tune-2.flac", "tune-2.mp3", "tune-2.ogg"):
        assert soundfile.info(tmp_path / name).frames == round(seconds * 44_100)
    heard = parts_with_notes(SCORE)
    assert midi_notes((tmp_path / "tune-2.mid").read_bytes()) == heard
    assert music21_notes((tmp_path / "tune-2.abc").read_text(encoding="utf-8"), "abc") == heard


def test_the_order_asked_for_is_the_order_told_and_no_more_is_written(tmp_path: Path) -> None:
    assert [name for name, _ in render(SCORE, tmp_path, ("abc", "midi"))] == ["tune.abc", "tune.mid"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("formats", [("wav", "abc"), ("abc",)])
def test_stopped_it_leaves_nothing(formats: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        render(SCORE, tmp_path, formats, on_progress=lambda done, total: True)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="aiff"):
        render(SCORE, tmp_path, ("midi", "aiff"))
    with pytest.raises(ValueError, match="do not fit"):
        render(SCORE, tmp_path, ("wav", "midi"), seconds=1)
    assert not list(tmp_path.iterdir())


def test_without_its_library_there_is_no_sheet_and_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "verovio" else find(name, package)

    assert "svg" in possible_formats()
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert possible_formats() == ("wav", "flac", "mp3", "ogg", "midi", "abc")
    with pytest.raises(ValueError, match="svg"):
        render(SCORE, tmp_path, ("svg",))


def test_the_sound_bank_is_small_whole_and_says_whose_it_is() -> None:
    files = {path.name: path.stat().st_size for path in soundbank.FOLDER.iterdir()}
    assert set(files) == {f"{name}.flac" for name in INSTRUMENTS} | {"sounds.json", "LICENSE"}
    assert sum(files.values()) <= 9_000_000 and len(INSTRUMENTS) >= 12
    licence = (soundbank.FOLDER / "LICENSE").read_text(encoding="utf-8")
    assert "Frank Wen" in licence and "Permission is hereby granted, free of charge" in licence
    facts = json.loads((soundbank.FOLDER / "sounds.json").read_text(encoding="utf-8"))
    assert facts["instruments"].keys() == INSTRUMENTS.keys()
    for name in INSTRUMENTS:
        frames = sum(zone["frames"] for zone in facts["instruments"][name]["zones"])
        assert soundfile.info(soundbank.FOLDER / f"{name}.flac").frames == frames
