"""Sources of models: spellings that mean the same, names of files, and rules for names before a file is opened."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelBroken, TouchstoneError, Validation
from backend.models.file_names import check_member, check_name, web_suffixes
from backend.models.sources import Source, as_data, parse

FEW = settings(max_examples=120, derandomize=True, deadline=None, database=None)
PIECE = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
FILE = st.builds(lambda stem: f"{stem}.gguf", st.from_regex(r"[a-z]{1,8}", fullmatch=True))


@FEW
@given(PIECE, PIECE, st.none() | PIECE, st.none() | FILE | st.from_regex(r"Q[2-8]_[0K]", fullmatch=True))
def test_the_text_of_a_hub_source_means_the_same_source(
    owner: str, name: str, revision: str | None, member: str | None
) -> None:
    where = "" if member is None else f"/{member}" if member.endswith(".gguf") else f":{member}"
    source = parse(f"hf:{owner}/{name}{where}" + (f"@{revision}" if revision else ""))
    assert source
    assert source.repo == f"{owner}/{name}"
    assert source.revision == (None if revision == "main" else revision)
    assert parse(str(source)) == source


@FEW
@given(PIECE, PIECE, FILE, PIECE)
def test_the_page_of_a_file_means_the_same_as_its_short_form(owner: str, name: str, file: str, revision: str) -> None:
    short = parse(f"hf:{owner}/{name}/{file}@{revision}")
    for kind in ("blob", "resolve", "raw"):
        assert parse(f"https://huggingface.co/{owner}/{name}/{kind}/{revision}/{file}") == short


@FEW
@given(st.text(max_size=40))
def test_any_text_is_a_source_a_path_or_an_error_with_a_remedy(text: str) -> None:
    for prefix in ("", "hf:", "https://", "https://models.example/", "hf:a/b/"):
        try:
            source = parse(prefix + text)
        except TouchstoneError as error:
            assert error.remedy
            continue
        if source is None:
            assert prefix == ""
        else:
            assert source.kind in ("hf", "https")
            assert Source(**as_data(source)) == source


@FEW
@given(
    st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="?#/%\\"), min_size=1, max_size=12)
)
def test_an_address_is_stored_in_ascii_and_keeps_the_name_of_its_file(name: str) -> None:
    try:
        source = parse(f"https://models.example/folder/{name}.gguf")
    except TouchstoneError:
        return
    assert source and source.url
    assert source.url.isascii()
    assert " " not in source.url
    assert source.file_name == f"{name}.gguf"


WINDOWS_PATHS = [r"C:\models\x.gguf", "C:/models/x.gguf", r"D:x.gguf", r"\\server\share\x.gguf", r"..\x.gguf", "c:"]


@pytest.mark.parametrize("path", WINDOWS_PATHS)
def test_a_drive_letter_is_not_a_scheme(path: str) -> None:
    assert parse(path) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://models.example/a/b%20c.gguf?x=y.bin", "b c.gguf"),
        ("https://models.example/a%2Fb.gguf", "b.gguf"),
        ("hf:maker/model", "model"),
        ("hf:maker/model/deep/x.gguf", "x.gguf"),
        ("hf:maker/model:q8_0", "model-Q8_0"),
    ],
)
def test_the_name_of_the_file_is_its_last_part(text: str, name: str) -> None:
    source = parse(text)
    assert source and source.file_name == name


def test_the_name_in_a_windows_path_is_its_last_part() -> None:
    assert Source("path", path=r"C:\models\My Model.gguf").file_name == "My Model.gguf"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("HTTPS://MODELS.EXAMPLE/x.gguf", "https://models.example/x.gguf"),
        ("https://models.example:443/x.gguf", "https://models.example:443/x.gguf"),
        ("http://localhost/x.gguf", "http://localhost/x.gguf"),
        ("https://[2001:db8::1]/x.gguf", "https://[2001:db8::1]/x.gguf"),
    ],
)
def test_scheme_and_host_are_stored_in_lower_case(address: str, host: str) -> None:
    source = parse(address)
    assert source and source.url == host


@pytest.mark.parametrize("text", ["http://localhost.example/x.gguf", "http://127.0.0.1.example/x.gguf"])
def test_plain_http_is_refused_for_names_that_resemble_this_machine(text: str) -> None:
    with pytest.raises(Validation, match="plain http"):
        parse(text)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (Source("https", url="https://m.example/x.gguf?token=secret"), "https://m.example/x.gguf"),
        (Source("pypi-wheel", requirement="pack==1"), "pypi-wheel:pack==1"),
        (Source("built-in"), "built-in"),
        (Source("path", path="/x.gguf"), "/x.gguf"),
    ],
)
def test_a_source_is_shown_without_secrets(source: Source, shown: str) -> None:
    assert str(source) == shown


def test_a_model_of_several_files_has_the_address_of_each() -> None:
    source = Source("https", url="https://m.example/v1/", members=["a.th", "b.th"])
    assert source.addresses() == ["https://m.example/v1/a.th", "https://m.example/v1/b.th"]


def test_the_request_of_a_web_address_is_the_source_itself() -> None:
    source = Source("https", url="https://m.example/x.gguf", path="/kept")
    assert source.asked is source


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x.gguf", None),
        ("X.GGUF", None),
        ("x-00001-of-00500.gguf", None),
        ("x-00001-of-00501.gguf", "several parts"),
        ("x-00000-of-00002.gguf", "several parts"),
        ("x-00001-of-00000.gguf", "several parts"),
        ("x-1-of-2.gguf", None),
        ("x.ckpt", "pickle"),
        ("x.gguf.part1", "manually split"),
        ("x.zip", "is not a"),
        ("", "The source is not a"),
    ],
)
def test_a_name_shows_whether_a_file_may_be_downloaded(name: str, problem: str | None) -> None:
    if problem is None:
        check_name(name)
        return
    with pytest.raises((Validation, ModelBroken), match=problem) as caught:
        check_name(name)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (None, None),
        ("cpu/int4", None),
        ("x-00003-of-00003.gguf", None),
        ("x-00004-of-00003.gguf", "not a valid part"),
        ("x-00000-of-00003.gguf", "not a valid part"),
        ("model.safetensors", "only weights"),
        ("Model.SafeTensors", "only weights"),
        ("pytorch_model.bin", "pickle"),
        ("x.gguf-split-a", "manually split"),
    ],
)
def test_a_file_of_a_repository_has_to_be_a_model_on_its_own(name: str | None, problem: str | None) -> None:
    if problem is None:
        check_member(name)
        return
    with pytest.raises((Validation, ModelBroken), match=problem) as caught:
        check_member(name)
    assert caught.value.remedy


def test_a_very_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(Validation) as caught:
        check_name("x" * 5000 + ".zip")
    assert len(caught.value.detail) < 300


def test_each_suffix_that_may_be_downloaded_is_accepted() -> None:
    assert web_suffixes()
    for suffix in web_suffixes():
        assert re.fullmatch(r"\.[a-z0-9]+", suffix)
        check_name(f"x{suffix}")
