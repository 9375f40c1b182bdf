"""Sentences about request bodies that do not fit: the place, what is wrong, and the key that was meant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator

from backend.common.config.strict_model import SHOWN, Name, StrictModel, to_validation_error
from backend.common.errors import TouchstoneError


class Voice(StrictModel):
    pitch: int = Field(ge=0, le=10, default=5)
    timbre: Literal["dark", "bright"] = "dark"


class Song(StrictModel):
    title: Name
    voices: Annotated[list[Voice], Field(min_length=1, max_length=3)] = [Voice()]
    lead: Voice | None = None
    tempo: float | None = Field(default=None, alias="bpm")

    @field_validator("title")
    @classmethod
    def _no_shouting(cls, title: str) -> str:
        if title.isupper() and len(title) > 3:
            raise ValueError("Do not shout")
        return title


def error(body: Any) -> TouchstoneError:
    with pytest.raises(ValidationError) as caught:
        Song.model_validate(body)
    return to_validation_error(caught.value.errors(), Song.model_fields)


@pytest.mark.parametrize(
    ("body", "detail", "remedy"),
    [
        ({"title": "x", "titel": 1}, "'titel' is not known.", "Did you mean 'title'?"),
        ({"title": "x", "zzz": 1}, "'zzz' is not known.", "Known here: title, voices, lead, bpm."),
        ({"title": "x", "bmp": 90}, "'bmp' is not known.", "Did you mean 'bpm'?"),
        ({"title": "x", "lead": {"pich": 1}}, "'lead.pich' is not known.", "Did you mean 'pitch'?"),
        ({"title": "x", "voices": [{}, {"tone": 1}]}, "'voices.1.tone' is not known.", "pitch"),
        ({"title": "x", "voices": []}, "voices has 0 entries.", "Send at least 1."),
        ({"title": "x", "voices": [{}] * 4}, "voices has more than 3 entries.", "Send fewer."),
        ({"title": "x", "lead": {"pitch": "5"}}, "lead.pitch: input should be a valid integer.", "/docs"),
        ({"title": "x", "lead": {"pitch": 11}}, "lead.pitch: input should be less than or equal to 10.", "/docs"),
        ({"title": "x", "lead": {"pitch": True}}, "lead.pitch: input should be a valid integer.", "/docs"),
        ({"title": 5}, "title: input should be a valid string.", "/docs"),
        ({"title": "SHOUT"}, "title: do not shout.", "/docs"),
        ({}, "title: field required.", "/docs"),
        ("not an object", "the request is not a JSON object.", "/docs"),
        ({"title": "x", "lead": 5}, "lead is not a JSON object.", "/docs"),
        ([], "the request is not a JSON object.", "/docs"),
    ],
)
def test_a_mistake_is_named_with_its_place(body: Any, detail: str, remedy: str) -> None:
    answer = error(body)
    assert answer.detail == detail
    assert remedy in answer.remedy


def test_several_mistakes_are_one_answer_with_all_their_fields() -> None:
    answer = error({"titel": 1, "lead": {"pitch": -1}, "voices": []})
    assert answer.extra["fields"] == ["title", "voices", "lead.pitch", "titel"]
    assert answer.detail.count(";") == 3


def test_the_same_advice_is_given_once() -> None:
    answer = error({"title": "x", "voices": [{"pich": 1}, {"pich": 2}]})
    assert answer.remedy == "Did you mean 'pitch'?"


def test_of_many_mistakes_the_first_are_named() -> None:
    answer = error({"title": "x", "voices": [{f"k{number}": 1 for number in range(9)}] * 3})
    assert answer.detail.count("is not known") == SHOWN == len(answer.extra["fields"])


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"title": "a\ud800"}, "title"),
        ({"title": "x", "voices": [{}, {"timbre": "\udfff"}]}, "voices.1.timbre"),
        ({"title": "x", "\ud83d": 1}, "\\ud83d"),
        ("\ud800", "the request"),
    ],
)
def test_half_a_character_is_refused_wherever_it_is(body: Any, place: str) -> None:
    answer = error(body)
    assert answer.detail == f"{place} is not valid Unicode (it contains a lone surrogate)."
    answer.detail.encode()


def test_whole_characters_outside_the_basic_plane_are_fine() -> None:
    assert Song.model_validate({"title": "\U0001d11e \0 é"}).title == "\U0001d11e \0 é"


def test_a_name_of_kilobytes_is_cut_in_the_answer() -> None:
    answer = error({"title": "x", "k" * 5000: 1})
    assert len(answer.detail) < 300


def test_known_names_are_those_that_callers_write() -> None:
    assert Song.known_names() == ["title", "voices", "lead", "bpm"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 20) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["title", "voices", "lead", "pitch", "bpm", "x", "\ud800"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=80, derandomize=True, database=None, deadline=None)
@given(JSON)
def test_any_body_is_accepted_or_answered_with_a_sentence(body: Any) -> None:
    try:
        song = Song.model_validate(body)
    except ValidationError as invalid:
        answer = to_validation_error(invalid.errors(), Song.model_fields)
        assert answer.status == 422 and answer.detail.endswith(".") and answer.remedy
    else:
        assert Song.model_validate(song.model_dump(by_alias=True)) == song or song.tempo != song.tempo
