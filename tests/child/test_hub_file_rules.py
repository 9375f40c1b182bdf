"""Which files of a Hugging Face repository are downloaded, for any listing, and the error messages."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.download.errors import Refused
from backend.child.download.hub_client import is_safe_path
from backend.child.download.hub_errors import HubQuery, explain, is_transient
from backend.child.download.hub_file_selection import Choice, choose, expand_pipeline
from backend.common.formats.gguf.kinds import PICKLES

REPO = "maker/model"
STEMS = ("model", "m-Q4_K_M", "m-Q8_0", "m-00001-of-00002", "m-00002-of-00002", "config", "genai_config", ".hidden")
SUFFIXES = (".gguf", ".safetensors", ".onnx", ".json", ".bin", ".pt", ".md", ".txt", ".xml", ".h5")
NAMES = st.builds(
    lambda folder, stem, suffix: f"{folder}{stem}{suffix}",
    st.sampled_from(("", "cpu/", "cpu/deep/")),
    st.sampled_from(STEMS),
    st.sampled_from(SUFFIXES),
)
LISTINGS = st.dictionaries(NAMES, st.none() | st.integers(1, 10**9), max_size=12)


def test_the_sample_has_repositories_of_several_kinds() -> None:
    kinds = {choose({name: 1, "config.json": 1}, None, None, REPO).kind for name in ("model.gguf", "model.safetensors")}
    assert kinds == {"gguf", "safetensors"}


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(LISTINGS, st.sampled_from((None, "cpu")), st.sampled_from((None, "Q8_0")))
def test_only_listed_files_are_chosen_and_never_one_that_can_run_code(
    files: dict[str, int | None], asked: str | None, variant: str | None
) -> None:
    try:
        choice = choose(files, asked, variant, REPO)
    except Refused as refused:
        assert refused.code in ("validation_error", "model_broken")
        assert refused.detail and refused.remedy
        return
    assert choice.files
    assert set(choice.files) <= set(files)
    assert len(set(choice.files)) == len(choice.files)
    assert not [name for name in choice.files if PurePosixPath(name).suffix in PICKLES]
    assert asked is None or all(name.startswith("cpu/") for name in choice.files)
    assert variant is None or choice.kind == "gguf"


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(LISTINGS, st.randoms())
def test_the_order_of_the_listing_does_not_matter(files: dict[str, int | None], random: Any) -> None:
    def outcome(listing: dict[str, int | None]) -> object:
        try:
            return choose(listing, None, None, REPO)
        except Refused as refused:
            return refused.detail

    shuffled = list(files.items())
    random.shuffle(shuffled)
    assert outcome(files) == outcome(dict(shuffled))


@pytest.mark.parametrize(
    ("sizes", "words"), [((1_000_000, 2_000_000), "(3 MB)"), ((1_000_000, None), "m-Q8_0-00001-of-00002.gguf was")]
)
def test_the_size_of_a_split_model_is_that_of_all_parts_if_all_are_known(
    sizes: tuple[int | None, int | None], words: str
) -> None:
    files = {f"m-Q8_0-0000{number}-of-00002.gguf": size for number, size in enumerate(sizes, 1)}
    assert words in choose({**files, "m-Q2_K.gguf": 5}, None, "q8_0", REPO).said


def test_a_long_list_of_others_is_cut() -> None:
    names = [f"v{number}-model.onnx" for number in range(30)]
    with pytest.raises(Refused, match="and 18 more") as caught:
        choose(dict.fromkeys(names), None, None, REPO)
    assert "FILE.onnx" in caught.value.remedy


def test_a_projector_is_chosen_only_if_it_is_named() -> None:
    files = dict.fromkeys(["mmproj-f16.gguf", "m-Q4_0.gguf"], 1)
    assert choose(files, None, None, REPO).path == "m-Q4_0.gguf"
    assert choose(files, "mmproj-f16.gguf", None, REPO).path == "mmproj-f16.gguf"


INDEX = {
    "_class_name": "StableAudioPipeline",
    "vae": ["diffusers", "AutoencoderOobleck"],
    "transformer": ["diffusers", "StableAudioDiTModel"],
    "optional": [None, None],
}


def pipeline(*names: str) -> Choice:
    files = ["model_index.json", *names]
    choice = choose(dict.fromkeys(files, 1), None, None, REPO)
    assert choice.lists_components
    return expand_pipeline(choice, INDEX, files, REPO)


def test_a_pipeline_is_downloaded_once_and_as_plain_safetensors() -> None:
    files = pipeline(
        "vae/config.json",
        "vae/model.safetensors",
        "vae/model.fp16.safetensors",
        "vae/model.bin",
        "transformer/model.fp16.safetensors",
        "other/model.safetensors",
        "README.md",
        "vae/.gitattributes",
    ).files
    assert set(files) == {
        "model_index.json",
        "README.md",
        "vae/config.json",
        "vae/model.safetensors",
        "transformer/model.fp16.safetensors",
    }


def test_a_component_with_pickle_files_only_is_refused() -> None:
    with pytest.raises(Refused, match="weights of its vae as pickle files only"):
        pipeline("vae/diffusion_pytorch_model.bin", "transformer/model.safetensors")


@pytest.mark.parametrize("index", [{}, {"_class_name": ["x"]}, {"_class_name": "EvilPipeline", "vae": ["x", "y"]}])
def test_a_pipeline_that_is_not_supported_is_refused(index: dict[str, Any]) -> None:
    choice = choose({"model_index.json": 1}, None, None, REPO)
    with pytest.raises(Refused, match="not supported"):
        expand_pipeline(choice, index, ["model_index.json"], REPO)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a\\b", "C:x", "a\x00b", "a\nb", "..", "a/.."])
def test_a_name_that_leads_out_of_the_cache_is_dropped(name: str) -> None:
    assert not is_safe_path(name)


@pytest.mark.parametrize("name", ["model.gguf", "a/b/c.onnx", "..a/b", "a..b", ".gitattributes", "ü/模型.gguf"])
def test_an_ordinary_name_is_kept(name: str) -> None:
    assert is_safe_path(name)


def error(name: str, status: int | None = None, *bases: type[Exception]) -> Exception:
    """Return an exception of a class with this name, as the library raises it."""
    made: Exception = type(name, bases or (Exception,), {})("the library's text")
    if status is not None:
        made.response = type("Response", (), {"status_code": status})()  # type: ignore[attr-defined]
    return made


def query(has_token: bool = False, file: str | None = None, endpoint: str = "https://huggingface.co") -> HubQuery:
    return HubQuery(REPO, "main", file, endpoint, has_token)


HUB_ERRORS = [
    (error("GatedRepoError", 403), query(), "licence", "HF_TOKEN"),
    (error("GatedRepoError", 403), query(has_token=True), "account of HF_TOKEN", "retry the download"),
    (error("EntryNotFoundError", 404), query(file="x.gguf"), "has no file x.gguf", "tree/main"),
    (error("RevisionNotFoundError", 404), query(), "no revision main", "leave the revision out"),
    (error("RepositoryNotFoundError", 401), query(), "without signing in", "If it is private"),
    (error("RepositoryNotFoundError", 401), query(has_token=True), "does not accept HF_TOKEN", "settings/tokens"),
    (error("HfHubHTTPError", 403), query(has_token=True), "does not allow access", "Accept the licence"),
    (error("HfHubHTTPError", 429), query(), "limiting requests", "Retry later"),
    (error("HfHubHTTPError", 503), query(endpoint="https://mirror.example"), "mirror.example (HF_ENDPOINT)", "Retry"),
    (error("HFValidationError"), query(), "cannot be a repository", "Correct its name"),
    (error("SomethingNew"), query(), "SomethingNew: the library's text", "model folder"),
]


@pytest.mark.parametrize(("raised", "asked", "detail", "remedy"), HUB_ERRORS)
def test_each_error_of_the_library_has_its_reason_and_remedy(
    raised: Exception, asked: HubQuery, detail: str, remedy: str
) -> None:
    refused = explain(raised, asked)
    assert detail in refused.detail
    assert remedy in refused.remedy


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (error("HfHubHTTPError", 503), True),
        (error("HfHubHTTPError", 429), True),
        (error("HfHubHTTPError", 404), False),
        (error("GatedRepoError", 403), False),
        (error("ReadTimeout", None, type("TimeoutException", (Exception,), {})), True),
        (error("RemoteProtocolError"), True),
        (error("HFValidationError"), False),
    ],
)
def test_only_errors_that_may_pass_are_retried(raised: Exception, expected: bool) -> None:
    assert is_transient(raised) is expected
