"""A complete music job with a fake model: exact, reproducible, cancellable, with all files."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import soundfile

from backend.child.artifact_writer import disk_full_error
from backend.common.errors import Validation
from backend.tasks.audio.files.tags import provenance_facts
from backend.tasks.audio.progress import RenderResult
from backend.tasks.music.choices import BACKINGS, DEFAULT_FORMATS, FORMATS, INSTRUMENTS
from backend.tasks.music.composer import compose
from backend.tasks.music.controls import TuneSettings, complete_options, variation_seeds
from backend.tasks.music.job import JobSpec, build_score, make_tunes
from backend.tasks.music.length import bar_beats, format_meter
from backend.tasks.music.plan import FORMS, MODES, TONICS
from backend.tasks.music.score import Score
from backend.tasks.options import parse_options
from tests.fake_decoder import FakeDecoder

SUFFIXES = [FORMATS[name][0] for name in DEFAULT_FORMATS]


class Heard:
    """An event callback that records events and cancels from the `stop_at`-th event of a kind on."""

    def __init__(self, folder: Path, stop_at: tuple[str, int] | None = None) -> None:
        self.folder = folder
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.bytes: dict[str, bytes] = {}
        self._stop_at = stop_at

    def __call__(self, event: str, data: Mapping[str, Any]) -> bool:
        self.events.append((event, data))
        if event == "artifact":
            self.bytes[data["name"]] = (self.folder / data["name"]).read_bytes()
        return self._stop_at is not None and len(self.of(self._stop_at[0])) >= self._stop_at[1]

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the data of the events of this kind; `composing` and `rendering` are progress."""
        return [data for event, data in self.events if kind in (event, data.get("phase"))]


def made(
    folder: Path, seed: int = 1, stop_at: tuple[str, int] | None = None, **options: Any
) -> tuple[RenderResult, Heard]:
    folder.mkdir(exist_ok=True)
    heard = Heard(folder, stop_at)
    return make_tunes(FakeDecoder(), None, JobSpec(parse_options("music", options), seed, folder), heard), heard


def composed(seed: int, **options: Any) -> tuple[TuneSettings, list[Score]]:
    whole = parse_options("music", options)
    chosen, seeds = complete_options(whole, seed), variation_seeds(seed, whole["variations"])
    return chosen, [
        build_score(chosen, melody, provenance_facts("whim", None, one))
        for melody, one in zip(compose(FakeDecoder(), chosen.plan, seeds), seeds, strict=True)
    ]


def wishes() -> list[dict[str, Any]]:
    """Return requests: every style with lengths and tempi, each key and mode, each instrument and backing."""
    chance = random.Random(3)
    styles = [(form, meter) for form, meters in FORMS.items() for meter in meters]
    keys, instruments = list(itertools.product(TONICS, MODES)), list(itertools.product(INSTRUMENTS, BACKINGS))
    found: list[dict[str, Any]] = []
    while len(found) < 128:
        number = len(found)
        form, meter = styles[number % len(styles)]
        key, mode = keys[number % len(keys)]
        instrument, backing = instruments[number % len(instruments)]
        wish: dict[str, Any] = {
            "form": form,
            "meter": format_meter(meter),
            "instrument": instrument,
            "backing": backing,
        }
        wish |= {"key": key, "mode": mode, "temperature": chance.choice([0.5, 0.9, 1.3])}
        kind = number % 4
        if kind in (0, 1):
            wish["bars"] = chance.randint(1, 40)
        if kind in (2, 3):
            wish["seconds"] = round(chance.uniform(5, 60), 2)
        if kind in (1, 3):
            wish["tempo_bpm"] = round(chance.uniform(80, 160), 1)
        try:
            complete_options(parse_options("music", wish), number)
        except Validation as error:
            assert error.remedy
            wish["mode"] = "any"  # that key cannot be written in that mode
        found.append(wish)
    return found


def test_more_than_five_hundred_tunes_are_exactly_what_was_asked() -> None:
    tunes = 0
    for seed, wish in enumerate(wishes()):
        chosen, scores = composed(seed, **wish, variations=4)
        for score in scores:
            check(wish, chosen, score)
            tunes += 1
    assert tunes > 500


def check(wish: dict[str, Any], chosen: TuneSettings, score: Score) -> None:
    """Check that the score follows each option that is set."""
    melody = score.melody
    assert (melody.form, format_meter(melody.meter), melody.tonic) == (wish["form"], wish["meter"], wish["key"])
    assert wish["mode"] in ("any", melody.mode) and melody.bars == chosen.plan.bars
    assert all(
        after - before == melody.bar_ticks for before, after in itertools.pairwise((*melody.bar_starts, melody.end))
    )
    if "bars" in wish:
        assert melody.bars == wish["bars"]
    if "tempo_bpm" in wish:
        assert score.tempo_bpm == wish["tempo_bpm"]
    if seconds := wish.get("seconds"):
        assert score.seconds <= seconds + 1e-9
        rest_s = seconds - score.seconds
        bar_s = bar_beats(melody.meter) * 60 / score.tempo_bpm
        assert rest_s < (bar_s + 1e-9 if "tempo_bpm" in wish else 1e-6)
    reach = INSTRUMENTS[wish["instrument"]]
    assert all(reach.lowest <= note.pitch <= reach.highest for note in score.parts[0].notes)
    assert score.parts[0].instrument == wish["instrument"]
    assert {part.name for part in score.parts[1:]} == {
        "none": set(),
        "chords": {"chords"},
        "bass": {"bass"},
        "full": {"chords", "bass"},
    }[wish["backing"]]


def test_a_job_makes_every_kind_of_file_and_counts_what_it_made(tmp_path: Path) -> None:
    result, heard = made(tmp_path, form="jig", key="D", seconds=4, backing="none")
    assert result.complete and sorted(heard.bytes) == sorted(f"tune.{suffix}" for suffix in SUFFIXES)
    info = soundfile.info(tmp_path / "tune.wav")
    assert info.frames == 4 * 44100 and info.channels == 2 and result.audio_s == 4
    assert result.counts["bars"] == result.chosen["bars"] == 4 and result.counts["variations"] == 1
    assert 0 < result.counts["notes"] < result.counts["tokens"]
    assert list(result.phases) == ["composing", "rendering"] and all(value > 0 for value in result.phases.values())
    assert {event: heard.events.count((event, data)) for event, data in heard.events if event == "token"} == {
        "token": 1
    }
    assert heard.of("token")[0]["text"].startswith("Jig in D ")


def test_progress_rises_to_its_end_in_each_phase(tmp_path: Path) -> None:
    _, heard = made(tmp_path, form="reel", bars=16, backing="none", variations=2)
    for phase, unit, total in (("composing", "bars", 32), ("rendering", "seconds", None)):
        steps = heard.of(phase)
        done = [step["done"] for step in steps]
        assert done == sorted(done) and done[0] == 0 and done[-1] == steps[-1]["total"]
        assert {step["unit"] for step in steps} == {unit} and (total is None or steps[0]["total"] == total)


def test_the_same_seed_gives_the_same_bytes_and_another_another_tune(tmp_path: Path) -> None:
    wish: dict[str, Any] = {"seconds": 5, "form": "reel"}
    first, again, other = (
        made(tmp_path / name, seed, **wish)[1].bytes for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert first == again
    assert first["tune.mid"] != other["tune.mid"] and first["tune.wav"] != other["tune.wav"]


def test_a_variation_is_what_its_seed_gives_alone() -> None:
    _, variations = composed(5, form="jig", bars=8, key="G", mode="major", variations=3)
    assert len({score.melody.notes for score in variations}) == 3
    _, (alone,) = composed(6, form="jig", bars=8, key="G", mode="major")
    assert alone.melody == variations[1].melody


def test_one_process_makes_tunes_in_one_thread_after_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with ThreadPoolExecutor(1) as pool:  # as the worker has a thread for each job
            result, heard = pool.submit(made, tmp_path / name, 1, None, seconds=3, backing="none").result()
        assert result.complete and len(heard.bytes) == len(SUFFIXES)


def test_several_variations_are_numbered(tmp_path: Path) -> None:
    result, heard = made(tmp_path, form="jig", bars=2, backing="none", variations=3)
    assert sorted(heard.bytes) == sorted(f"tune-{number}.{suffix}" for number in (1, 2, 3) for suffix in SUFFIXES)
    assert result.chosen["seeds"] == [1, 2, 3] and result.counts["bars"] == 6


@pytest.mark.parametrize("polls", [1, 40])
def test_a_stop_while_composing_ends_at_the_next_token(tmp_path: Path, polls: int) -> None:
    decoder = FakeDecoder()
    heard = Heard(tmp_path, ("poll", polls))
    result = make_tunes(decoder, None, JobSpec(parse_options("music", {"bars": 32}), 1, tmp_path), heard)
    assert not result.complete and decoder.steps <= polls and not heard.bytes
    assert list(result.phases) == ["composing"] and result.counts["tokens"] == decoder.steps
    assert list(tmp_path.iterdir()) == []


def test_a_stop_while_rendering_keeps_the_files_that_were_complete(tmp_path: Path) -> None:
    stop = ("artifact", len(SUFFIXES) * 2 - 2 * 2 + 2)  # all that is written, and the audio of the first variation
    result, heard = made(tmp_path, stop_at=stop, form="jig", bars=8, backing="none", variations=2)
    assert not result.complete and list(result.phases) == ["composing", "rendering"]
    assert "tune-1.wav" in heard.bytes and "tune-2.wav" not in heard.bytes
    assert {file.name for file in tmp_path.iterdir()} == set(heard.bytes)
    assert result.audio_s and result.counts["notes"] > 0


def test_a_disk_without_room_for_the_audio_is_told_as_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(OSError, match="No space") as caught:
        made(tmp_path, form="jig", seconds=4)
    assert disk_full_error(caught.value)
    assert {file.suffix for file in tmp_path.iterdir()} == {".mid", ".abc", ".svg"}, "what had room is whole"


def test_an_opening_phrase_begins_the_tune() -> None:
    _, (score,) = composed(1, abc="M:6/8\nK:D\nA|d2f a2f|", bars=16)
    assert [note.pitch % 12 for note in score.melody.notes[:5]] == [9, 2, 6, 9, 6]
    assert score.melody.pickup_ticks == 12
