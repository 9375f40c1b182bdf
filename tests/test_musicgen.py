"""MusicGen without its libraries: options, folders, sampling of codes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.child.download.hub_file_selection import choose
from backend.common.errors import ModelBroken, ModelIncompatible, UnsupportedParameter, Validation, WorkerCrashed
from backend.engines import engines
from backend.engines._audio.musicgen_sampler import SamplingProcessor, condition_from_the_first
from backend.models.entries import entry_for, shipped
from backend.models.file_checks import check
from backend.tasks.options.inputs import check_audio_inputs
from backend.tasks.options.songs import song_options, song_schema
from backend.tasks.songs.model_kinds import KINDS, kind_of
from backend.tasks.songs.musicgen_folder import MELODY, PLAIN, open_musicgen

CONFIG: dict[str, Any] = {"model_type": "musicgen", "text_encoder": {}, "audio_encoder": {}, "decoder": {}}
USUAL = {"temperature": 1.0, "top_k": 250, "top_p": 1.0}


def folder(place: Path, kind: str = PLAIN, tokenizer: bool = True, **config: Any) -> Path:
    """Write a transformers folder with two hundred float16 parameters."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps({**CONFIG, "architectures": [kind], **config}))
    header = json.dumps({"w": {"dtype": "F16", "shape": [200], "data_offsets": [0, 400]}}).encode()
    (place / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(400))
    if tokenizer:
        (place / "tokenizer.json").write_text("{}")
    return place


class TestOptions:
    @pytest.mark.parametrize("name", [PLAIN, MELODY])
    def test_what_is_left_open_is_what_its_makers_take(self, name: str) -> None:
        options = song_options(KINDS[name], "a waltz", {})
        taken = {each: options[each] for each in ("seconds", "guidance_scale", "temperature", "top_k", "top_p")}
        assert taken == {"seconds": 10, "guidance_scale": 3, "temperature": 1, "top_k": 250, "top_p": 1}
        shown = song_schema(KINDS[name])["properties"]
        assert shown["top_k"]["default"] == 250 and shown["seconds"]["anyOf"][0]["maximum"] == 30
        assert not {"lyrics", "steps", "negative_prompt"} & set(shown)

    @pytest.mark.parametrize("option", [{"lyrics": "la"}, {"steps": 3}, {"negative_prompt": "drums"}])
    def test_it_does_not_sing_or_take_steps(self, option: dict[str, Any]) -> None:
        with pytest.raises(UnsupportedParameter, match="MusicGen does not take that"):
            song_options(KINDS[PLAIN], "a waltz", option)

    def test_more_than_half_a_minute_is_refused(self) -> None:
        with pytest.raises(Validation, match="at most 30 s; 30.5 s were requested"):
            song_options(KINDS[PLAIN], "a waltz", {"seconds": 30.5})

    def test_other_kinds_have_no_such_chances(self) -> None:
        with pytest.raises(UnsupportedParameter, match="top_k"):
            song_options(KINDS["AceStepPipeline"], "a waltz", {"top_k": 5})

    def test_a_melody_goes_to_the_model_that_listens(self) -> None:
        check_audio_inputs("MusicGen Melody", KINDS[MELODY].sounds, {"melody": "id"})
        check_audio_inputs("MusicGen", KINDS[PLAIN].sounds, None)
        with pytest.raises(Validation, match="MusicGen takes no files as input"):
            check_audio_inputs("MusicGen", KINDS[PLAIN].sounds, {"melody": "id"})
        with pytest.raises(Validation, match="inputs.tune: MusicGen Melody takes melody as input") as caught:
            check_audio_inputs("MusicGen Melody", KINDS[MELODY].sounds, {"tune": "id"})
        assert caught.value.extra["fields"] == ["inputs.tune"]
        with pytest.raises(Validation, match="should be the id of a file"):
            check_audio_inputs("MusicGen Melody", KINDS[MELODY].sounds, {"melody": [1.0]})


class TestFolders:
    @pytest.mark.parametrize(("kind", "title"), [(PLAIN, "MusicGen"), (MELODY, "MusicGen Melody")])
    def test_a_folder_is_known_by_the_class_that_it_declares(self, kind: str, title: str, tmp_path: Path) -> None:
        place = folder(tmp_path / "tiny", kind)
        entry = entry_for("tiny", place, None, None)
        assert entry.task == "music" and entry.engines == ("musicgen",)
        found = kind_of(place)
        assert found and found.title == title and open_musicgen(place).parameter_count() == 200
        assert check(entry, 0) is None

    def test_what_is_missing_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(ModelIncompatible, match="has no tokenizer.json"):
            open_musicgen(folder(tmp_path / "a", tokenizer=False))
        with pytest.raises(ModelBroken, match="has no section audio_encoder"):
            open_musicgen(folder(tmp_path / "b", audio_encoder=None))
        place = folder(tmp_path / "c")
        (place / "model.safetensors").write_bytes((place / "model.safetensors").read_bytes()[:-10])
        with pytest.raises(ModelBroken, match=r"model\.safetensors"):
            open_musicgen(place)
        refused = check(entry_for("c", place, None, None), 1)
        assert isinstance(refused, ModelBroken) and "safetensors" in refused.detail

    def test_no_text_model_takes_the_engine_for_its_own(self, tmp_path: Path) -> None:
        place = folder(tmp_path / "text", "LlamaForCausalLM")
        assert entry_for("text", place, None, None).engines == ("transformers",)

    def test_of_two_copies_of_the_weights_one_is_fetched(self) -> None:
        names = ("README.md config.json tokenizer.json model.safetensors model.fp32.safetensors state_dict.bin").split()
        choice = choose(dict.fromkeys(names, 1), None, None, "facebook/musicgen-stereo-small")
        assert "model.safetensors" in choice.files and "tokenizer.json" in choice.files
        assert not {"model.fp32.safetensors", "state_dict.bin"} & set(choice.files)

    def test_every_one_of_the_catalogue_says_that_it_is_not_for_commerce(self, tmp_path: Path) -> None:
        listed = [entry for entry in shipped(tmp_path).values() if "musicgen" in entry.engines]
        assert len(listed) == 10
        for entry in listed:
            assert entry.licence == "CC-BY-NC-4.0 (not for commercial use)" and entry.facts["non_commercial"]
            assert entry.song and (entry.model_class == MELODY) == ("melody" in entry.id)
            assert entry.size_bytes and entry.facts["known"]
        assert engines()["musicgen"].formats[0].model_classes == {PLAIN, MELODY}


class TestChoice:
    @staticmethod
    def drawn(scores: Any, seeds: list[int], times: int = 1, **options: Any) -> Any:
        """Return the tokens [time, row]."""
        choice = SamplingProcessor(None, {**USUAL, **options}, seeds)
        return np.stack([choice._sample(np.asarray(scores, np.float32)) for _ in range(times)])

    def test_a_song_among_others_draws_what_it_draws_alone(self) -> None:
        scores = np.random.default_rng(1).standard_normal((4, 64))
        alone = {seed: self.drawn(scores, [seed], 20) for seed in (5, 6)}
        both = self.drawn(np.concatenate([scores, scores]), [5, 6], 20)
        assert np.array_equal(both[:, :4], alone[5]) and np.array_equal(both[:, 4:], alone[6])
        assert not np.array_equal(alone[5], alone[6])

    def test_tokens_come_as_often_as_their_shares_say(self) -> None:
        shares = np.array([0.5, 0.3, 0.15, 0.05])
        tokens = self.drawn(np.log(shares)[None], [3], 4000)
        found = np.bincount(tokens.ravel(), minlength=4) / 4000
        assert np.abs(found - shares).max() < 0.03
        warm = np.bincount(self.drawn(np.log(shares)[None], [3], 4000, temperature=2.0).ravel(), minlength=4) / 4000
        assert np.abs(warm - np.sqrt(shares) / np.sqrt(shares).sum()).max() < 0.03

    def test_bounds_hold(self) -> None:
        scores = np.log(np.array([[0.05, 0.5, 0.15, 0.3]]))
        assert set(self.drawn(scores, [1], 500, top_k=2).ravel()) == {1, 3}
        assert set(self.drawn(scores, [1], 500, top_p=0.6).ravel()) == {1, 3}
        assert set(self.drawn(scores, [1], 500, top_p=0.5).ravel()) == {1}
        assert set(self.drawn(scores, [1], 500, top_k=0).ravel()) == {0, 1, 2, 3}

    def test_numbers_that_are_none_end_the_worker(self) -> None:
        class Scores:
            def detach(self) -> Scores:
                return self

            def to(self, *where: Any) -> Scores:
                return self

            def numpy(self) -> Any:
                return np.array([[0.0, np.nan]], np.float32)

        class Torch:
            float32 = None

        with pytest.raises(WorkerCrashed, match="NaN"):
            SamplingProcessor(Torch(), USUAL, [1])(None, Scores())


class Cache:
    """A fake KV cache with a number of tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def get_seq_length(self) -> int:
        return self.tokens


def test_an_older_melody_model_is_told_its_words_at_the_first_step_alone() -> None:
    class Model:
        def prepare_inputs_for_generation(
            self, ids: Any, encoder_hidden_states: Any = None, past_key_values: Any = None
        ) -> dict[str, Any]:
            return {"encoder_hidden_states": None if past_key_values is not None else encoder_hidden_states}

    model: Any = Model()
    assert model.prepare_inputs_for_generation(1, "words", Cache(0))["encoder_hidden_states"] is None
    condition_from_the_first(model)
    assert model.prepare_inputs_for_generation(1, "words", Cache(0))["encoder_hidden_states"] == "words"
    assert model.prepare_inputs_for_generation(1, "words", Cache(9))["encoder_hidden_states"] is None


def test_a_newer_one_is_left_alone() -> None:
    class Model:
        def prepare_inputs_for_generation(self, ids: Any, is_first_iteration: bool = False) -> Any:
            return ids

    model: Any = Model()
    condition_from_the_first(model)
    assert "prepare_inputs_for_generation" not in vars(model)
