"""Parts of song jobs: pipeline indexes, model kinds of damaged folders, progress, tags, and adapters' declarations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelBroken
from backend.tasks.audio.files.kinds import KINDS as SOUND_KINDS
from backend.tasks.audio.files.kinds import why_unsupported
from backend.tasks.audio.files.tags import Tags, provenance_facts
from backend.tasks.audio.progress import ProgressReporter, RenderResult
from backend.tasks.songs.adapter import read_adapter
from backend.tasks.songs.diffusers_folder import component_names, open_pipeline
from backend.tasks.songs.model_kinds import declared_class, kind_of

ACE = {"_class_name": "AceStepPipeline", "_diffusers_version": "0.42.1"}


def write(folder: Path, **files: Any) -> Path:
    """Write JSON files, or raw texts. `__` in a name is a slash, `_json` its suffix."""
    for name, content in files.items():
        path = folder / f"{name.removesuffix('_json').replace('__', '/')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


# Pipelines


def test_the_components_of_an_index_are_its_pairs_of_library_and_class() -> None:
    index = {
        **ACE,
        "vae": ["diffusers", "AutoencoderOobleck"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "condition_encoder": ["ace_step", "AceStepConditionEncoder"],
        "feature_extractor": [None, None],
        "scale": 0.5,
        "_private": ["diffusers", "X"],
        "three": ["diffusers", "X", "Y"],
    }
    assert component_names(index, "m") == ["vae", "text_encoder", "condition_encoder"]


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"_class_name": "FluxPipeline"}, r"FluxPipeline\) that is not supported"),
        ({"_class_name": ["AceStepPipeline"]}, "not supported"),
        ({}, "not supported"),
        ({"_class_name": "MusicgenForConditionalGeneration"}, "not supported"),  # known, but not a pipeline
        ({**ACE, "../vae": ["diffusers", "A"]}, "outside its folder"),
        ({**ACE, "a\\b": ["diffusers", "A"]}, "outside its folder"),
        ({**ACE, "/etc": ["diffusers", "A"]}, "outside its folder"),
        ({**ACE, "vae": ["my_code", "A"]}, r"code in the model's repository \(my_code\)"),
        ({**ACE, "vae": [["diffusers"], "A"]}, "code in the model's repository"),
    ],
)
def test_an_index_that_needs_other_code_or_other_folders_is_rejected(index: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelBroken, match=reason):
        component_names(index, "m")


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "[" * 100_000])
def test_a_damaged_index_is_reported_and_the_folder_is_not_a_song_model(tmp_path: Path, content: str) -> None:
    folder = write(tmp_path / "m", model_index_json=content)
    with pytest.raises(ModelBroken, match="m/model_index.json"):
        open_pipeline(folder)
    assert declared_class(folder) is None and kind_of(folder) is None


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"model_index_json": ACE}, "AceStepPipeline"),
        ({"model_index_json": {"_class_name": 5}}, None),
        ({"config_json": {"architectures": ["LlamaForCausalLM", "Other"]}}, "LlamaForCausalLM"),
        ({"config_json": {"architectures": []}}, None),
        ({"config_json": {"architectures": "Llama"}}, None),
        ({"config_json": {"architectures": [None]}}, None),
        ({"model_index_json": ACE, "config_json": {"architectures": ["X"]}}, "AceStepPipeline"),
        ({}, None),
    ],
)
def test_the_class_of_a_folder_is_its_pipeline_s_or_its_configuration_s(
    tmp_path: Path, files: dict[str, Any], name: str | None
) -> None:
    assert declared_class(write(tmp_path, **files)) == name


def test_a_configuration_of_a_megabyte_is_not_parsed(tmp_path: Path) -> None:
    write(tmp_path, config_json=json.dumps({"architectures": ["X"], "filler": "x" * 1_000_000}))
    assert declared_class(tmp_path) is None


@pytest.mark.parametrize(
    ("vae", "transformer", "longest_s"),
    [
        (
            {"downsampling_ratios": [2, 4, 4, 8, 8], "sampling_rate": 44_100},
            {"sample_size": 1024},
            1024 * 2048 / 44_100,
        ),
        ({"downsampling_ratios": [2], "sampling_rate": 0}, {"sample_size": 1024}, None),
        ({"downsampling_ratios": ["x"], "sampling_rate": 44_100}, {"sample_size": 1024}, None),
        ({"downsampling_ratios": 5, "sampling_rate": 44_100}, {"sample_size": 1024}, None),
        ({"sampling_rate": 44_100}, {"sample_size": 1024}, None),
        ("{", {"sample_size": 1024}, None),
    ],
)
def test_the_longest_song_follows_from_the_sizes_if_they_can_be_read(
    tmp_path: Path, vae: Any, transformer: Any, longest_s: float | None
) -> None:
    files = {"model_index_json": {"_class_name": "StableAudioPipeline"}}
    kind = kind_of(write(tmp_path, **files, vae__config_json=vae, transformer__config_json=transformer))
    assert kind is not None and kind.longest_s == (None if longest_s is None else pytest.approx(longest_s))


# Adapters


def adapter(folder: Path, declaration: str) -> Any:
    """Parse an adapter file with this declaration."""
    path = folder / "mine.py"
    path.write_text(f"def load(): ...\ndef generate(): ...\nADAPTER = {declaration}\n", encoding="utf-8")
    return read_adapter(path)


@pytest.mark.parametrize(("limit", "seconds"), [("", 30), ("'longest_s': 12.5", 12.5), ("'longest_s': 600", 30)])
def test_an_adapter_makes_thirty_seconds_unless_it_has_a_lower_limit(
    tmp_path: Path, limit: str, seconds: float
) -> None:
    kind = adapter(tmp_path, f"{{'rate': 8000, 'channels': 1, {limit}}}").kind
    assert kind.defaults == {"seconds": seconds} and kind.title == "mine" and kind.takes == frozenset()


@pytest.mark.parametrize(
    "values",
    [
        "'rate': True, 'channels': 1",
        "'rate': 8000.0, 'channels': 1",
        "'rate': 0, 'channels': 1",
        "'rate': 768001, 'channels': 1",
        "'rate': 8000, 'channels': 17",
        "'rate': 8000",
        "'rate': 8000, 'channels': 1, 'longest_s': 0",
        "'rate': 8000, 'channels': 1, 'title': 5",
        "'rate': 8000, 'channels': 1, 'takes': ['volume']",
        "'rate': 8000, 'channels': 1, 'defaults': {'steps': 5}",
        "'rate': 8000, 'channels': 1, 'title': '\\ud800'",
        "'rate': 8000, 'channels': 1, 'memory_bytes': 1e9",
        "'rate': 8000, 'channels': 1, 'speed': 1",
    ],
)
def test_a_declaration_with_a_wrong_value_is_rejected(tmp_path: Path, values: str) -> None:
    with pytest.raises(ModelBroken, match=r"mine\.py") as refused:
        adapter(tmp_path, f"{{{values}}}")
    refused.value.detail.encode(), refused.value.remedy.encode()


def test_an_adapter_is_parsed_again_when_its_file_changes(tmp_path: Path) -> None:
    assert adapter(tmp_path, "{'rate': 8000, 'channels': 1}").rate == 8000
    assert adapter(tmp_path, "{'rate': 44100, 'channels': 2}").rate == 44100


# Progress


def test_progress_in_between_is_reported_only_after_the_interval_and_polls_instead() -> None:
    events: list[tuple[str, float | None]] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        events.append((event, data.get("done")))
        return event == "poll"

    reporter = ProgressReporter(emit, float("inf"))
    answers = [reporter.progress("read", done, 4, "blocks") for done in (0, 1, 2, 3, 4)]
    assert events == [("progress", 0), ("poll", None), ("poll", None), ("poll", None), ("progress", 4)]
    assert answers == [False, True, True, True, False], "a cancel is noticed at every call"


def test_without_an_interval_every_progress_is_reported() -> None:
    events: list[Mapping[str, Any]] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        events.append(data)
        return False

    reporter = ProgressReporter(emit, 0)
    for done in range(3):
        reporter.progress("write", done, 10, "s")
    assert [data["done"] for data in events] == [0, 1, 2]
    assert events[1] == {"phase": "write", "done": 1, "total": 10, "unit": "s"}


def test_a_phase_is_measured_even_if_it_fails_and_its_times_add_up() -> None:
    reporter = ProgressReporter(lambda event, data: False, 0)
    reporter.phases["read"] = 5.0
    with pytest.raises(KeyError), reporter.phase("read"):
        raise KeyError
    with reporter.phase("write"):
        pass
    assert reporter.phases["read"] >= 5.0 and set(reporter.phases) == {"read", "write"}


def test_a_cancelled_result_is_incomplete() -> None:
    assert RenderResult({}, True, None, {}, {}).finish_reason == "stop"
    assert RenderResult({}, False, None, {}, {}).finish_reason == "cancelled"


# Tags and formats


def frames_of(tag: bytes) -> list[tuple[bytes, bytes]]:
    """Return the frames of an ID3v2.3 tag, read by its own structure."""
    assert tag[:6] == b"ID3\x03\0\0"
    size = 0
    for byte in tag[6:10]:
        assert byte < 128
        size = size * 128 + byte
    assert size == len(tag) - 10
    frames, at = [], 10
    while at < len(tag):
        length = int.from_bytes(tag[at + 4 : at + 8], "big")
        frames.append((tag[at : at + 4], tag[at + 10 : at + 10 + length]))
        at += 10 + length
    assert at == len(tag)
    return frames


@settings(max_examples=40, derandomize=True, deadline=None)
@given(title=st.text("aé猫🎵\0\n\ufeff", max_size=90), model=st.text("m.\0", max_size=5))
def test_an_id3_tag_contains_any_title_as_utf_16(title: str, model: str) -> None:
    frames = frames_of(Tags(title, provenance_facts(model, None, 0)).as_id3())
    assert frames[0][0] == b"TIT2" and frames[0][1][:3] == b"\x01\xff\xfe"
    assert frames[0][1][3:].decode("utf-16-le") == title.replace("\0", " ")
    extra = [content for name, content in frames if name == b"TXXX"]
    assert len(extra) == (2 if model else 1), "the seed 0 is a fact, an empty model is not"


@pytest.mark.parametrize("name", SOUND_KINDS)
def test_a_format_stores_as_many_channels_as_it_has_and_not_one_more(name: str) -> None:
    limit = SOUND_KINDS[name].max_channels
    assert why_unsupported(name, 44_100, limit) is None
    assert f"at most {limit} channels" in (why_unsupported(name, 44_100, limit + 1) or "")
