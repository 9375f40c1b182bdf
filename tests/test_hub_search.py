"""Search on Hugging Face: the real program against a server of the hub's API, with its pages, limits and failures."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from backend.child.download.errors import Refused
from backend.child.download.hub_search import SearchOrder, search_hub
from backend.child.download.results import FoundRepository
from backend.child.progress_report import ProgressReport
from backend.common.errors import SearchUnavailable, Validation
from backend.common.types import JsonObject
from backend.manager.model_advice import with_fits
from backend.models import search as search_module
from backend.models.sources import parse
from tests.hub_server import HubServer, Repository

MB = 1_000_000
SMALL, LARGE = b"s" * MB, b"l" * (3 * MB)


class Quiet(ProgressReport):
    def __init__(self) -> None:
        """No output."""

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Nobody looks."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING")) or name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    files = {"README.md": b"#", "Tiny.Q8_0.gguf": LARGE, "Tiny-Q4_K_M.gguf": SMALL, "mmproj-f16.gguf": SMALL}
    parts = {f"q8/Big-Q8_0-0000{n}-of-00002.gguf": SMALL for n in (1, 2)}
    repositories = {
        "maker/Tiny-Chat-GGUF": Repository(files, licence="apache-2.0", downloads=900),
        "maker/Big-Chat-GGUF": Repository({**parts, "odd-00001-of-00003.gguf": SMALL}, downloads=800),
        "maker/Image-Chat-GGUF": Repository({"flux.gguf": SMALL}, task="text-to-image", downloads=700),
        "maker/Closed-Chat-GGUF": Repository({"closed.gguf": SMALL}, gated=True, downloads=600),
        "maker/Empty-Chat-GGUF": Repository({"README.md": b"#"}, downloads=500),
        "maker/Vectors-GGUF": Repository({"vectors-f16.gguf": SMALL}, task="sentence-similarity"),
        "maker/Graph": Repository({"model.onnx": SMALL}, task="image-classification", tags=("onnx",)),
    }
    with HubServer(repositories) as served:
        # The library reads its variables when it is imported, once in this process.
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
        yield served


def found(query: str, task: str = "text", limit: int = 10, waits: list[float] | None = None) -> list[FoundRepository]:
    order = SearchOrder(query, task, limit, {}, 5.0)
    return search_hub(order, Quiet(), (waits if waits is not None else []).append)["results"]


def names(results: list[FoundRepository]) -> list[str]:
    return [result["name"] for result in results]


def test_a_result_has_what_a_choice_needs(hub: HubServer) -> None:
    (first,) = found("tiny chat")
    small, large = first.pop("files")  # type: ignore[misc]
    assert first == {
        "source": "hf:maker/Tiny-Chat-GGUF",
        "name": "Tiny-Chat-GGUF",
        "author": "maker",
        "downloads": 900,
        "likes": 3,
        "licence": "apache-2.0",
        "updated_at": "2026-11-01T10:20:30.000Z",
        "gated": False,
        "page": f"{hub.url}/maker/Tiny-Chat-GGUF",
        "reason": None,
    }
    assert small == {
        "name": "Tiny-Q4_K_M.gguf",
        "source": "hf:maker/Tiny-Chat-GGUF/Tiny-Q4_K_M.gguf",
        "bytes": MB,
        "parts": 1,
        "quantization": "Q4_K_M",
    }
    assert (large["quantization"], large["bytes"]) == ("Q8_0", 3 * MB)
    source = parse(small["source"])
    assert source and (source.repo, source.member) == ("maker/Tiny-Chat-GGUF", "Tiny-Q4_K_M.gguf")


def test_only_models_for_the_task_are_found_the_most_downloaded_first(hub: HubServer) -> None:
    assert names(found("gguf")) == ["Tiny-Chat-GGUF", "Big-Chat-GGUF", "Closed-Chat-GGUF"]
    assert names(found("maker", "embeddings")) == ["Vectors-GGUF"]
    assert names(found("maker", "onnx")) == ["Graph"]
    assert found("nothing like that") == []


def test_a_split_model_is_one_file_and_an_incomplete_one_none(hub: HubServer) -> None:
    (big,) = found("big")
    assert [(file["name"], file["bytes"], file["parts"]) for file in big["files"]] == [
        ("q8/Big-Q8_0-00001-of-00002.gguf", 2 * MB, 2)
    ]


def test_a_gated_repository_is_listed_with_the_page_where_its_licence_is_accepted(hub: HubServer) -> None:
    (closed,) = found("closed")
    assert closed["gated"] and closed["files"] == [] and closed["page"].endswith("/maker/Closed-Chat-GGUF")
    assert closed["reason"] == "Its files are only listed for accounts with access."


def test_further_pages_are_asked_for_until_there_are_enough(hub: HubServer) -> None:
    hub.page = 2
    assert names(found("gguf", limit=3)) == ["Tiny-Chat-GGUF", "Big-Chat-GGUF", "Closed-Chat-GGUF"]
    assert len([one for one in hub.asked if one.path == "/api/models"]) == 2
    hub.asked.clear()
    assert names(found("gguf", limit=2)) == ["Tiny-Chat-GGUF", "Big-Chat-GGUF"]
    assert len([one for one in hub.asked if one.path == "/api/models"]) == 1


def test_the_token_never_goes_to_another_server(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret-token")
    hub.page = 1
    with HubServer({}) as other:
        hub.headers = {}
        monkeypatch.setattr(hub, "url", other.url)  # the address in its Link header
        assert names(found("gguf", limit=2)) == ["Tiny-Chat-GGUF"]
        assert other.asked == []
    assert hub.asked[0].headers["Authorization"] == "Bearer secret-token"


@pytest.mark.parametrize(
    ("headers", "waited"), [({"Retry-After": "2"}, 2.0), ({"RateLimit": '"api";r=0;t=4'}, 4.0), ({}, 0.5)]
)
def test_a_short_limit_is_waited_out(hub: HubServer, headers: dict[str, str], waited: float) -> None:
    hub.statuses, hub.headers = [429], headers
    waits: list[float] = []
    assert names(found("tiny", waits=waits)) == ["Tiny-Chat-GGUF"]
    assert waits == [waited]


def refusal(query: str = "tiny", waits: list[float] | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        found(query, waits=waits)
    assert caught.value.code == "search_unavailable"
    return caught.value


@pytest.mark.parametrize(
    ("headers", "when"),
    [({"Retry-After": "240"}, "Search again in 240 s."), ({"RateLimit": '"api";r=0;t=55'}, "Search again in 55 s.")],
)
def test_a_long_limit_is_reported_with_its_end(hub: HubServer, headers: dict[str, str], when: str) -> None:
    hub.statuses, hub.headers = [429], headers
    waits: list[float] = []
    refused = refusal(waits=waits)
    assert "is limiting requests (HTTP status 429)" in refused.detail and waits == []
    assert refused.remedy.startswith(when) and "HF_TOKEN" in refused.remedy


def test_a_server_in_trouble_is_asked_three_times(hub: HubServer) -> None:
    hub.statuses = [500, 502, 503]
    waits: list[float] = []
    assert "internal error (HTTP status 503)" in refusal(waits=waits).detail
    assert waits == [0.5, 1.0]
    hub.statuses = [500, 502]
    assert names(found("tiny")) == ["Tiny-Chat-GGUF"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!DOCTYPE html><title>Sign in</title>", "the answer is not JSON"),
        (b'{"error": "no"}', "the list of models is not a list"),
        (b"[" * 100_000, "the answer is not JSON"),
        (b"", "the answer is not JSON"),
        (b'"' + b"x" * (9 << 20) + b'"', "more than 8 MB"),
    ],
)
def test_a_damaged_answer_is_named(hub: HubServer, body: bytes, words: str) -> None:
    hub.body = body
    refused = refusal()
    assert words in refused.detail and "HF_ENDPOINT" in refused.remedy


ODD: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"id": 5},
    {"id": "no-owner"},
    {"id": "../../etc/passwd"},
    {"id": "maker/Tiny-Chat-GGUF/extra"},
    {"id": "maker/\u202etxt"},
]


@pytest.mark.parametrize("item", ODD, ids=str)
def test_odd_entries_of_the_list_are_left_out(hub: HubServer, item: Any) -> None:
    hub.body = json.dumps([item, {"id": "maker/Tiny-Chat-GGUF", "pipeline_tag": "text-generation"}]).encode()
    assert names(found("tiny")) == ["Tiny-Chat-GGUF"]


@pytest.mark.parametrize(
    "facts",
    [
        {"downloads": -1, "likes": "many", "lastModified": "yesterday", "tags": 5, "cardData": [], "author": 3},
        {"downloads": True, "likes": 1e300, "lastModified": 0, "tags": [1, None], "cardData": {"license": {}}},
        {"downloads": 2**70, "likes": None, "lastModified": None, "tags": None, "cardData": None},
    ],
)
def test_odd_facts_become_null(hub: HubServer, facts: JsonObject, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"id": "maker/x", "pipeline_tag": "text-generation"}
    answers = {"/api/models?": [listed], "/api/models/maker/x": {**facts, "siblings": [{"rfilename": "x.gguf"}]}}

    def get(self: object, url: str) -> tuple[object, None]:
        return next(answer for part, answer in reversed(answers.items()) if part in url), None

    monkeypatch.setattr("backend.child.download.hub_search._Api.get", get)
    (result,) = found("x")
    assert [result[key] for key in ("downloads", "likes", "licence", "updated_at")] == [None] * 4
    assert (result["author"], result["files"][0]["bytes"]) == ("maker", None)


@pytest.mark.parametrize(
    "name", ["../up.gguf", "/root.gguf", "a\\b.gguf", "c:x.gguf", "at@main.gguf", "nul\0.gguf", "", None, 5]
)
def test_a_file_whose_name_is_no_source_is_left_out(
    hub: HubServer, name: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(self: object, url: str) -> tuple[object, None]:
        listed: object = [{"id": "maker/x", "pipeline_tag": None}]
        return (
            {"siblings": [{"rfilename": name}, "odd", {"rfilename": "good.gguf"}]} if "blobs" in url else listed
        ), None

    monkeypatch.setattr("backend.child.download.hub_search._Api.get", get)
    assert [file["name"] for file in found("x")[0]["files"]] == ["good.gguf"]


def test_offline_mode_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    assert "HF_HUB_OFFLINE is set" in refusal().detail and hub.asked == []


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        refused = refusal()
    assert "Models cannot be searched: 127.0.0.1 (HF_ENDPOINT) cannot be reached" in refused.detail
    assert "hf:OWNER/REPO" in refused.remedy


def test_a_token_that_is_refused_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "old")
    hub.statuses = [401]
    refused = refusal()
    assert "does not accept HF_TOKEN" in refused.detail and "settings/tokens" in refused.remedy


# The child process


def searched(query: str, endpoint: str, **more: Any) -> list[JsonObject]:
    environ = {"HF_ENDPOINT": endpoint, **more.pop("environ", {})}
    return asyncio.run(search_module.search(query, environ=environ, **more))


def test_the_search_runs_in_a_child_with_the_variables_of_the_user(hub: HubServer) -> None:
    (result,) = searched("tiny", hub.url, environ={"HF_TOKEN": "mine"})
    assert result["source"] == "hf:maker/Tiny-Chat-GGUF" and len(result["files"]) == 2
    assert {one.headers["Authorization"] for one in hub.asked} == {"Bearer mine"}


def test_the_reason_and_remedy_of_the_child_arrive(hub: HubServer) -> None:
    hub.statuses, hub.headers = [429], {"Retry-After": "99"}
    with pytest.raises(SearchUnavailable) as caught:
        searched("tiny", hub.url)
    assert caught.value.problem().status == 503 and "in 99 s" in caught.value.remedy


@pytest.mark.parametrize(
    ("query", "more"),
    [("", {}), ("  ", {}), ("x" * 201, {}), ("x", {"task": "music"}), ("x", {"limit": 0}), ("x", {"limit": 31})],
)
def test_a_search_that_makes_no_sense_is_refused_before_anything_is_asked(query: str, more: dict[str, Any]) -> None:
    with pytest.raises(Validation):
        searched(query, "http://127.0.0.1:9", **more)


def test_each_file_tells_what_it_fits(hub: HubServer) -> None:
    results: list[JsonObject] = [dict(result) for result in found("tiny")]
    (result,) = with_fits(results, [])
    assert [fit["device"] for fit in result["files"][0]["fits"]] == ["cpu"], "without probes, the system memory counts"
    assert result["files"][0]["fits"][0]["fits"] == "yes"
