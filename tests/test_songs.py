"""Song models without their libraries: options, folders, downloads, jobs."""

from __future__ import annotations

import argparse
import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile

from backend.child.download.errors import Refused
from backend.child.download.hub_file_selection import choose, expand_pipeline
from backend.cli.commands import music
from backend.common.config.settings import load_settings
from backend.common.errors import (
    Configuration,
    ModelBroken,
    ModelNotDownloaded,
    OutOfMemory,
    UnsupportedParameter,
    Validation,
    WorkerCrashed,
)
from backend.common.types import Device
from backend.engines import engines
from backend.models import Catalogue
from backend.models.entries import entry_for
from backend.models.registration import add, remove, settle
from backend.runtimes.recipes import recipes
from backend.scheduling.load_size import least_bytes
from backend.tasks.options.songs import SongOptions, song_options, song_schema
from backend.tasks.songs.diffusers_folder import open_pipeline
from backend.tasks.songs.job import Floats, JobSpec, ProgressCallback, SongRequest, make_songs
from backend.tasks.songs.model_kinds import KINDS, kind_of

ACE: dict[str, Any] = {
    "_class_name": "AceStepPipeline",
    "_diffusers_version": "0.42.1",
    "vae": ["diffusers", "AutoencoderOobleck"],
    "text_encoder": ["transformers", "Qwen3Model"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "transformer": ["diffusers", "AceStepTransformer1DModel"],
    "condition_encoder": ["ace_step", "AceStepConditionEncoder"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "audio_tokenizer": [None, None],
}
MODELS = {"vae", "text_encoder", "transformer", "condition_encoder"}
RATE = 8_000


def safetensors(numbers: int = 10) -> bytes:
    """Write a safetensors file with one float32 tensor."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * numbers)


def pipeline(folder: Path, index: Mapping[str, Any] = ACE, configs: Mapping[str, Any] | None = None) -> Path:
    """Write a diffusers folder with ten parameters per model."""
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps(index))
    for name, value in index.items():
        if name.startswith("_") or None in value:
            continue
        (folder / name).mkdir()
        if name in ("tokenizer", "scheduler"):
            (folder / name / f"{name}_config.json").write_text("{}")
        else:
            (folder / name / "config.json").write_text(json.dumps((configs or {}).get(name, {})))
            (folder / name / "diffusion_pytorch_model.safetensors").write_bytes(safetensors())
    for name in ("duration_embedder", "scheduler"):
        if configs and name in configs:
            (folder / name).mkdir(exist_ok=True)
            file = "scheduler_config.json" if name == "scheduler" else "config.json"
            (folder / name / file).write_text(json.dumps(configs[name]))
    return folder


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Catalogue]:
    def make() -> Catalogue:
        environ = {"HF_HOME": str(tmp_path / "hf")}
        return Catalogue(load_settings({}, {}, tmp_path), lambda task: {"title": task}, environ)

    (tmp_path / "data/models").mkdir(parents=True)
    return make


class TestOptions:
    def test_what_is_left_open_is_the_pipeline_s_own(self) -> None:
        options = song_options(KINDS["AceStepPipeline"], "a waltz", {"lyrics": "[verse]\nla"})
        assert options["seconds"] == 60 and options["steps"] == 8 and options["guidance_scale"] == 7
        assert set(options) == set(SongOptions.model_fields)

    def test_what_a_kind_has_not_is_refused_by_name(self) -> None:
        with pytest.raises(UnsupportedParameter) as caught:
            song_options(KINDS["StableAudioPipeline"], "rain", {"lyrics": "la", "tempo_bpm": 90})
        assert caught.value.extra["fields"] == ["options.lyrics", "options.tempo_bpm"]
        assert "Stable Audio does not take that" in caught.value.detail and "negative_prompt" in caught.value.remedy

    def test_complete_options_are_taken_again(self) -> None:
        for kind in KINDS.values():
            options = song_options(kind, "rain", {"seconds": 5, "seed": 3})
            assert song_options(kind, "rain", options) == options

    @pytest.mark.parametrize(
        ("kind", "prompt", "options", "word"),
        [
            ("AceStepPipeline", None, {}, "needs a description"),
            ("AceStepPipeline", "x" * 5001, {}, "5001 characters"),
            ("AceStepPipeline", "x", {"seconds": 601}, "at most 600 s"),
            ("AceStepPipeline", "x", {"second": 6}, "'options.second' is not known"),
            ("StableAudio3Pipeline", "x", {"negative_prompt": "noise"}, "guidance_scale is 1"),
            ("LongCatAudioDiTPipeline", "x", {"seconds": 30.01}, "at most 30 s"),
            ("AudioLDM2Pipeline", "x", {"formats": ["midi"]}, "options.formats"),
        ],
    )
    def test_refusals(self, kind: str, prompt: str | None, options: dict[str, Any], word: str) -> None:
        with pytest.raises(Validation) as caught:
            song_options(KINDS[kind], prompt, options)
        assert word in caught.value.detail

    def test_a_form_shows_what_the_kind_takes(self) -> None:
        shown = song_schema(KINDS["StableAudio3Pipeline"])["properties"]
        assert "lyrics" not in shown and shown["steps"]["default"] == 100
        assert shown["seconds"]["anyOf"][0]["maximum"] == 384
        assert "lyrics" in song_schema(KINDS["AceStepPipeline"])["properties"]


class TestFolders:
    def test_a_pipeline_is_recognised(self, tmp_path: Path) -> None:
        entry = entry_for("song", pipeline(tmp_path / "song"), None, None)
        assert (entry.task, entry.engines) == ("music", ("diffusers",))
        assert entry.options_for("music") == "songs" and entry.song and entry.song.title == "ACE-Step 1.5"
        found = open_pipeline(tmp_path / "song")
        assert set(found.models) == MODELS and found.parameter_count() == 40 and found.parameter_count("vae") == 10

    def test_the_settings_of_a_model_count(self, tmp_path: Path) -> None:
        turbo = kind_of(pipeline(tmp_path / "turbo", configs={"transformer": {"is_turbo": True}}))
        assert turbo and "guidance_scale" not in turbo.options
        with pytest.raises(UnsupportedParameter, match="guidance is distilled into this model"):
            song_options(turbo, "x", {"guidance_scale": 3})
        index = {"_class_name": "StableAudio3Pipeline"}
        configs = {"duration_embedder": {"max_val": 20.0}, "scheduler": {"stochastic_sampling": True}}
        small = kind_of(pipeline(tmp_path / "small", index, configs))
        assert small and (small.longest_s, small.defaults["seconds"], small.defaults["steps"]) == (20, 20, 8)
        vae = {"downsampling_ratios": [2, 4, 4, 8, 8], "sampling_rate": 44_100}
        diffuser: dict[str, Any] = {part: ["diffusers", "X"] for part in ("transformer", "vae")}
        index = {"_class_name": "StableAudioPipeline"} | diffuser
        fixed = kind_of(pipeline(tmp_path / "fixed", index, {"transformer": {"sample_size": 1024}, "vae": vae}))
        assert fixed and fixed.longest_s == pytest.approx(47.554, abs=0.001)

    def test_settings_without_end_count_for_nothing(self, tmp_path: Path) -> None:
        index: dict[str, Any] = {"_class_name": "StableAudio3Pipeline"}
        for number in (float("inf"), float("nan"), -1, 10**400):
            kind = kind_of(pipeline(tmp_path / f"{number}"[:20], index, {"duration_embedder": {"max_val": number}}))
            assert kind and kind.longest_s == 384
        configs = {"transformer": {"sample_size": 1024}, "vae": {"downsampling_ratios": [2], "sampling_rate": 1e999}}
        index = {"_class_name": "StableAudioPipeline", "transformer": ["diffusers", "X"], "vae": ["diffusers", "X"]}
        fixed = kind_of(pipeline(tmp_path / "fixed", index, configs))
        assert fixed and fixed.longest_s is None

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such pipes")
    @pytest.mark.parametrize("name", ["model_index.json", "vae/diffusion_pytorch_model.safetensors"])
    def test_a_pipe_in_a_folder_is_not_waited_for(self, tmp_path: Path, name: str) -> None:
        place = pipeline(tmp_path / "song")
        (place / name).unlink()
        os.mkfifo(place / name)
        entry_for("song", place, None, None)
        with pytest.raises(ModelBroken, match="cannot be read: .*not a regular file"):
            open_pipeline(place)

    def test_it_is_listed_with_its_options(self, build: Callable[..., Catalogue], tmp_path: Path) -> None:
        pipeline(tmp_path / "data/models/song")
        model = next(one for one in build().models() if one.id == "song")
        assert (model.state, model.task, model.engines) == ("ready", "music", ["diffusers"])
        assert "lyrics" in model.options_schema["properties"]
        facts = [model.details[name] for name in ("format", "quantisation", "parts")]
        assert facts == ["diffusers", "F32", 4]

    @pytest.mark.parametrize(
        ("spoil", "word"),
        [
            (lambda place: (place / "vae/config.json").parent.rename(place / "other"), "no folder vae"),
            (lambda place: _cut(place / "vae/diffusion_pytorch_model.safetensors"), "is truncated"),
            (lambda place: _pickled(place / "vae"), "pickle file (model.bin)"),
            (lambda place: (place / "vae/diffusion_pytorch_model.safetensors").unlink(), "no weights for its vae"),
            (lambda place: _index(place, vae=["own_code", "Vae"]), "never run"),
            (lambda place: _index(place, **{"../vae": ["diffusers", "Vae"]}), "outside its folder"),
            (lambda place: _index(place, _class_name="StableDiffusionPipeline"), "is not supported for music"),
            (lambda place: _index(place, _class_name=["AceStepPipeline"]), "is not supported for music"),
        ],
    )
    def test_what_is_wrong_is_said(
        self, build: Callable[..., Catalogue], tmp_path: Path, spoil: Callable[[Path], Any], word: str
    ) -> None:
        place = pipeline(tmp_path / "data/models/song")
        spoil(place)
        model = next(one for one in build().models() if one.id == "song")
        assert model.state == "broken" and word in (model.reason or ""), model.reason
        with pytest.raises(ModelBroken):
            add(build(), str(place))

    def test_a_card_has_to_hold_the_largest_part_alone(self, tmp_path: Path) -> None:
        place = str(pipeline(tmp_path / "song"))
        card, processor = (cast(Device, SimpleNamespace(kind=kind)) for kind in ("gpu", "cpu"))
        assert least_bytes("diffusers", place, card, 99) == 2 * 2 * 10, (
            "ten numbers at 16 bits, and as much to work with"
        )
        assert least_bytes("diffusers", place, processor, 99) == least_bytes("llama.cpp", place, card, 99) == 99

    def test_a_second_copy_in_other_numbers_is_left_out(self, tmp_path: Path) -> None:
        place = pipeline(tmp_path / "song")
        (place / "vae/diffusion_pytorch_model.fp16.safetensors").write_bytes(safetensors(30))
        assert open_pipeline(place).parameter_count("vae") == 10


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def _pickled(folder: Path) -> None:
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / "model.bin")


def _index(place: Path, **changed: Any) -> None:
    (place / "model_index.json").write_text(json.dumps({**ACE, **changed}))


class TestFetching:
    FILES = (
        *("README.md", "model_index.json", "vae/config.json", "vae/diffusion_pytorch_model.safetensors"),
        *("vae/diffusion_pytorch_model.fp16.safetensors", "vae/diffusion_pytorch_model.bin", "whole.safetensors"),
        *("transformer/config.json", "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"),
        *("transformer/diffusion_pytorch_model-00002-of-00002.safetensors", "samples/a.wav", "tokenizer/merges.txt"),
        *("transformer/diffusion_pytorch_model.safetensors.index.json", "notebook/vae/config.json"),
    )

    def test_each_part_once(self) -> None:
        choice = choose(dict.fromkeys(self.FILES), None, None, "o/r")
        assert (choice.kind, choice.files, choice.path) == ("diffusers", ("model_index.json",), "")
        index = {name: ACE[name] for name in ("_class_name", "vae", "transformer", "tokenizer")}
        files = set(expand_pipeline(choice, index, self.FILES, "o/r").files)
        left_out = {name for name in self.FILES if "fp16" in name or name.endswith((".bin", ".wav"))}
        assert files == set(self.FILES) - left_out - {"whole.safetensors", "notebook/vae/config.json"}

    @pytest.mark.parametrize(
        ("index", "files", "word"),
        [
            ({"_class_name": "StableDiffusionPipeline"}, FILES, "is not supported for music"),
            ({**ACE, "vae": ["its_own", "Vae"]}, FILES, "never run"),
            (ACE, ("model_index.json", "vae/config.json", "vae/model.bin"), "vae as pickle files only"),
        ],
    )
    def test_refused_before_anything_large_comes(self, index: Any, files: tuple[str, ...], word: str) -> None:
        choice = choose(dict.fromkeys(files), None, None, "o/r")
        with pytest.raises(Refused) as caught:
            expand_pipeline(choice, index, files, "o/r")
        assert word in caught.value.detail and caught.value.code == "model_broken"

    def test_a_model_of_the_catalogue_comes_and_goes(self, build: Callable[..., Catalogue], tmp_path: Path) -> None:
        id_, catalogue = "audioldm2-music", build()
        model = next(one for one in catalogue.models() if one.id == id_)
        assert model.state == "downloadable" and "not for commercial use" in str(model.licence)
        assert "Licence: CC-BY-NC-SA-4.0 (not for commercial use). Memory: unknown." in str(model.reason)
        assert model.details["non_commercial"] is True and "negative_prompt" in model.options_schema["properties"]
        with pytest.raises(ModelNotDownloaded):
            remove(catalogue, id_)
        place = pipeline(tmp_path / "hf/hub/models--cvssp--audioldm2-music/snapshots/c0ffee", {**ACE})
        entry = catalogue.resolve(id_)
        settle(catalogue, entry, {"path": str(place), "commit": "c0ffee", "brought": [], "licence": "x"})
        again = build()
        assert again.path_of(again.resolve(id_)) == place
        assert next(one for one in again.models() if one.id == id_).licence == model.licence
        remove(again, id_)
        assert next(one for one in build().models() if one.id == id_).state == "downloadable"


def test_the_verb_takes_lyrics_from_a_file(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    music.add_arguments(parser)
    args = parser.parse_args(["a", "waltz", "--lyrics", f"@{tmp_path / 'none.txt'}", "--steps", "8"])
    with pytest.raises(Configuration, match=r"none\.txt cannot be read"):
        music.run(args)


@pytest.mark.parametrize("name", ["torch", "cuda", "rocm", "xpu"])
def test_the_runtimes_bring_it(name: str) -> None:
    assert any(line.startswith("diffusers>=0.42.1") for line in recipes()[name].lines("gfx1100"))
    assert name in engines()["diffusers"].runtimes and recipes()[name].python[0] == "3.11"


class Composing:
    """A composer that generates one sine per song; its pitch is the seed."""

    rate, channels = RATE, 2

    def __init__(self, most: int = 1, fits: int = 99) -> None:
        self.most, self.fits, self.groups = most, fits, list[list[int]]()
        self.sound: Callable[[int, int], Any] = lambda seed, frames: np.sin(np.arange(frames) * seed / 50) / 2

    def max_batch(self, request: SongRequest) -> int:
        return self.most

    def receipt_values(self) -> dict[str, Any]:
        return {"number": "float32"}

    def compose(self, request: SongRequest, seeds: list[int], report: ProgressCallback) -> Floats:
        self.groups.append(seeds)
        report("encode", 0, 1, "songs")
        if len(seeds) > self.fits:
            raise OutOfMemory("too much", "less")
        for step in range(request.options["steps"]):
            report("denoise", step + 1, request.options["steps"], "steps")
        report("decode", 1, 1, "songs")
        songs = [self.sound(seed, request.frames + 100) for seed in seeds]
        return np.stack([np.stack([song] * self.channels) for song in songs]).astype(np.float32)


def order(folder: Path, variations: int = 1, here: range | None = None, **options: Any) -> JobSpec:
    kind = KINDS["AceStepPipeline"]
    whole = song_options(kind, "a waltz", {"seconds": 0.51, "variations": variations, **options})
    return JobSpec("a waltz", whole, 7, folder, here or range(variations), "song", "MIT")


class TestMaking:
    def make(self, composer: Any, asked: JobSpec, stop_at: str = "") -> tuple[Any, list[tuple[str, Any]]]:
        events: list[tuple[str, Any]] = []

        def emit(event: str, data: Mapping[str, Any]) -> bool:
            events.append((event, data))
            return bool(stop_at) and data.get("phase") == stop_at

        return make_songs(composer, asked, emit), events

    def test_a_song_is_as_long_as_asked(self, tmp_path: Path) -> None:
        made, events = self.make(Composing(), order(tmp_path, formats=["wav", "flac"]))
        for name in ("song.wav", "song.flac"):
            samples, rate = soundfile.read(tmp_path / name)
            assert (samples.shape, rate) == ((4080, 2), RATE)
        assert [data["name"] for event, data in events if event == "artifact"] == ["song.wav", "song.flac"]
        assert (made.complete, made.audio_s, made.counts["songs"]) == (True, 0.51, 1)
        assert made.chosen["seeds"] == [7] and made.chosen["number"] == "float32" and "lyrics" not in made.chosen
        assert list(made.phases) == ["encode", "denoise", "decode", "write"]

    @pytest.mark.parametrize(("most", "fits", "groups"), [(1, 9, [1, 1, 1]), (2, 9, [2, 1]), (3, 1, [3, 1, 1, 1])])
    def test_variations_whether_they_fit_at_once_or_not(
        self, tmp_path: Path, most: int, fits: int, groups: list[int]
    ) -> None:
        composer = Composing(most, fits)
        made, events = self.make(composer, order(tmp_path, 3))
        assert [len(group) for group in composer.groups] == groups
        assert made.chosen["seeds"] == [7, 8, 9] and made.counts["songs"] == 3
        told = [data for event, data in events if event == "progress" and data["phase"] == "denoise"]
        assert [one["done"] for one in told] == sorted(one["done"] for one in told)
        assert told[-1]["done"] == told[-1]["total"] == 24
        alone = Composing()
        (tmp_path / "alone").mkdir()
        self.make(alone, order(tmp_path / "alone", 3, range(1, 2)))
        assert alone.groups == [[8]]
        assert (tmp_path / "alone/song-2.wav").read_bytes() == (tmp_path / "song-2.wav").read_bytes()

    def test_memory_that_does_not_hold_one(self, tmp_path: Path) -> None:
        with pytest.raises(OutOfMemory):
            self.make(Composing(fits=0), order(tmp_path))

    @pytest.mark.parametrize("phase", ["encode", "denoise", "decode"])
    def test_a_cancel_is_heard_in_each_phase(self, tmp_path: Path, phase: str) -> None:
        made, events = self.make(Composing(), order(tmp_path), phase)
        assert not made.complete and made.finish_reason == "cancelled" and made.audio_s is None
        assert events[-1][1]["phase"] == phase and not list(tmp_path.glob("*.wav"))

    def test_numbers_that_are_none_are_no_song(self, tmp_path: Path) -> None:
        composer = Composing()
        composer.sound = lambda seed, frames: np.full(frames, np.nan)
        with pytest.raises(WorkerCrashed, match="NaN"):
            self.make(composer, order(tmp_path))

    def test_silence_is_said(self, tmp_path: Path) -> None:
        composer = Composing()
        composer.sound = lambda seed, frames: np.zeros(frames)
        made, events = self.make(composer, order(tmp_path))
        assert made.counts["silent"] == 1
        assert any("silent" in data["text"] for event, data in events if event == "token")

    def test_a_kind_of_file_that_cannot_hold_it(self, tmp_path: Path) -> None:
        composer = Composing()
        composer.rate = 7_000
        with pytest.raises(Validation, match="sample rate of 7000 Hz"):
            self.make(composer, order(tmp_path, formats=["mp3"]))
