"""Search Hugging Face for models, with the files of each, by the JSON API that `huggingface_hub` uses.

`GET /api/models?search=…` lists repositories; a `Link` header has the address of the next page.
`GET /api/models/OWNER/NAME?blobs=true` lists the files of one with their sizes. The library supplies endpoint, token
and offline mode. The requests are made here: those of the library wait for minutes when the rate is limited, and read
answers of any size.
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from backend.child.download.errors import Refused
from backend.child.download.http_errors import TRANSIENT_STATUSES, network_problem, retry_after_s
from backend.child.download.hub_client import configure_library, is_safe_path, licence_text
from backend.child.download.hub_file_selection import group_ggufs, quantization_of
from backend.child.download.network import DownloadClient
from backend.child.download.results import FoundFile, FoundRepository, HubSearch
from backend.child.progress_report import ProgressReport
from backend.common.formats.gguf.kinds import part_names

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,15}Z", re.ASCII)
_RATE_RESET = re.compile(r"\bt\s*=\s*(\d{1,6})")  # in the header RateLimit: "api";r=0;t=55
_LISTED = ("author", "downloads", "gated", "lastModified", "likes", "pipeline_tag", "tags")
_CHAT = (None, "text-generation", "image-text-to-text", "text2text-generation", "any-to-any", "conversational")
_VECTORS = ("feature-extraction", "sentence-similarity")
TASKS: Mapping[str, tuple[str, tuple[str | None, ...]]] = {  # the tag of their files, and the hub's tasks
    "text": ("gguf", (*_CHAT, "question-answering", "summarization", "translation")),
    "embeddings": ("gguf", _VECTORS),
    "onnx": ("onnx", ()),
}
MOST_RESULTS = 30
_PAGES, _DETAILS_AT_ONCE = 3, 5
_MOST_FILES, _MOST_BYTES = 80, 8 << 20
_TRIES, _BACKOFF_S, _LONGEST_WAIT_S = 3, 0.5, 5.0
_AGAIN = "search again"


@dataclass(frozen=True)
class SearchOrder:
    """What to search. `variables`: the user's environment variables of the library. `stall_s`: timeout of a request."""

    query: str
    task: str
    limit: int
    variables: Mapping[str, str]
    stall_s: float


class _Failed(Exception):
    """A request without a usable answer. `status` is None if the hub did not answer."""

    def __init__(self, refused: Refused, status: int | None = None) -> None:
        super().__init__(refused.detail)
        self.refused, self.status = refused, status


def search_hub(order: SearchOrder, report: ProgressReport, sleep: Callable[[float], None] = time.sleep) -> HubSearch:
    """Return the repositories with files for the task, the most downloaded first. Raises Refused."""
    configure_library(order.variables)
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise _unavailable("HF_HUB_OFFLINE is set", "Unset it, start again, and search again.")
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    search = _Search(order, _Api(constants.ENDPOINT, token, order.stall_s, sleep), report)
    try:
        return {"results": search.run()}
    except _Failed as failed:
        raise failed.refused from None


class _Search:
    def __init__(self, order: SearchOrder, api: _Api, report: ProgressReport) -> None:
        self._order, self._api, self._report = order, api, report
        self._tag, self._hub_tasks = TASKS[order.task]

    def run(self) -> list[FoundRepository]:
        found: list[FoundRepository] = []
        pages = self._pages()
        with ThreadPoolExecutor(_DETAILS_AT_ONCE) as threads:
            for listed in pages:
                wanted = listed[: MOST_RESULTS * 2]
                for repository in threads.map(self._describe, wanted):
                    if repository["files"] or repository["reason"]:
                        found.append(repository)
                    self._report.progress("search", min(len(found), self._order.limit), self._order.limit)
                if len(found) >= self._order.limit:
                    break
        return found[: self._order.limit]

    def _pages(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield the repositories of each page that may have models for the task."""
        parameters = {
            "search": self._order.query,
            "filter": self._tag,
            "sort": "downloads",
            "limit": min(MOST_RESULTS, self._order.limit + 5),
            "expand": _LISTED,
        }
        url: str | None = f"{self._api.endpoint}/api/models?{urllib.parse.urlencode(parameters, doseq=True)}"
        for _ in range(_PAGES):
            if url is None:
                return
            page, url = self._api.get(url)
            if not isinstance(page, list):
                raise _Failed(self._api.damaged("the list of models is not a list"))
            items = [item for item in page if isinstance(item, dict) and _REPOSITORY.fullmatch(str(item.get("id")))]
            yield [item for item in items if not self._hub_tasks or item.get("pipeline_tag") in self._hub_tasks]

    def _describe(self, listed: Mapping[str, Any]) -> FoundRepository:
        """Return a repository with its files. If they cannot be listed, `reason` says why."""
        repo, reason = str(listed["id"]), None
        facts: Mapping[str, Any] = {}
        try:
            answer, _ = self._api.get(f"{self._api.endpoint}/api/models/{repo}?blobs=true")
            facts = answer if isinstance(answer, dict) else {}
        except _Failed as failed:
            if failed.status not in (401, 403, 404):
                raise
            reason = "Its files are only listed for accounts with access."
        merged = {**listed, **{key: value for key, value in facts.items() if value is not None}}
        owner, _, name = repo.partition("/")
        return {
            "source": f"hf:{repo}",
            "name": name,
            "author": owner,
            "downloads": _count(merged.get("downloads")),
            "likes": _count(merged.get("likes")),
            "licence": _licence(merged),
            "updated_at": _time(merged.get("lastModified")),
            "gated": bool(merged.get("gated")),
            "page": f"{self._api.endpoint}/{repo}",
            "reason": reason,
            "files": self._files(repo, facts.get("siblings")),
        }

    def _files(self, repo: str, siblings: object) -> list[FoundFile]:
        """Return the models among the files of a repository, the smallest first; a split model once."""
        sizes: dict[str, int | None] = {}
        for sibling in siblings if isinstance(siblings, list) else []:
            name = sibling.get("rfilename") if isinstance(sibling, dict) else None
            if isinstance(name, str) and is_safe_path(name) and not re.search(r"[@:]", name):
                sizes[name] = _count(sibling.get("size"))
        names = sorted(sizes)
        models = group_ggufs(names) if self._tag == "gguf" else {n: [n] for n in names if n.lower().endswith(".onnx")}
        files: list[FoundFile] = []
        for parts in models.values():
            if parts != part_names(parts[0]):
                continue  # a part is missing
            known = [size for part in parts if (size := sizes[part]) is not None]
            files.append(
                {
                    "name": parts[0],
                    "source": f"hf:{repo}/{parts[0]}",
                    "bytes": sum(known) if len(known) == len(parts) else None,
                    "parts": len(parts),
                    "quantization": quantization_of(parts[0]) or None,
                }
            )
        return sorted(files, key=lambda file: (file["bytes"] or 0, file["name"]))[:_MOST_FILES]


class _Api:
    """GET requests to the hub's API, retried when an answer may come soon."""

    def __init__(self, endpoint: str, token: str | None, stall_s: float, sleep: Callable[[float], None]) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._token, self._stall_s, self._sleep = token, stall_s, sleep
        host = urllib.parse.urlsplit(endpoint).hostname or endpoint
        self.host = "Hugging Face" if host == "huggingface.co" else f"{host} (HF_ENDPOINT)"

    def get(self, url: str) -> tuple[object, str | None]:
        """Return the JSON of an answer, and the address of the next page if there is one. Raises _Failed."""
        for attempt in range(1, _TRIES + 1):
            try:
                return self._attempt(url)
            except _Busy as busy:
                wait_s = _BACKOFF_S * 2 ** (attempt - 1) if busy.wait_s is None else busy.wait_s
                if attempt == _TRIES or wait_s > _LONGEST_WAIT_S:
                    raise _Failed(busy.refused, busy.status) from None
                self._sleep(wait_s)
        raise AssertionError("the last attempt raises")

    def damaged(self, how: str) -> Refused:
        """Return the error for an answer that is not the hub's."""
        return _unavailable(
            f"{self.host} does not answer as Hugging Face does ({how})",
            "Check HF_ENDPOINT, and whether a proxy in between changes responses.",
        )

    def _attempt(self, url: str) -> tuple[object, str | None]:
        import httpx

        try:
            with DownloadClient(url, self._token, self._stall_s).open({"Accept": "application/json"}) as response:
                if not response.is_success:
                    raise self._refusal(response.status_code, response.headers)
                body = b""
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > _MOST_BYTES:
                        raise _Failed(self.damaged(f"more than {_MOST_BYTES >> 20} MB"))
                following = response.links.get("next", {}).get("url")
        except httpx.HTTPError as error:
            reason, remedy = network_problem(error, self.host, _AGAIN, "Or add a model by its name: hf:OWNER/REPO")
            raise _Busy(_unavailable(reason, remedy)) from None
        except Refused as refused:  # a redirect that is not followed, or a proxy that cannot be used
            raise _Failed(_unavailable(refused.detail.rpartition(": ")[2].rstrip("."), refused.remedy)) from None
        try:
            return json.loads(body), self._own(following)
        except (ValueError, RecursionError):
            raise _Failed(self.damaged("the answer is not JSON")) from None

    def _own(self, following: str | None) -> str | None:
        """Return the address of the next page if it is of the same server: the token goes along."""
        if following is None:
            return None
        ours, theirs = urllib.parse.urlsplit(self.endpoint), urllib.parse.urlsplit(following)
        return following if (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc) else None

    def _refusal(self, status: int, headers: Mapping[str, str]) -> Exception:
        if status == 429:
            wait_s = retry_after_s(headers)
            if wait_s is None and (reset := _RATE_RESET.search(headers.get("RateLimit") or "")):
                wait_s = float(reset[1])
            when = f"in {wait_s:.0f} s" if wait_s is not None else "in some minutes"
            sign_in = "" if self._token else " With HF_TOKEN set, the limit is higher."
            reason = f"{self.host} is limiting requests (HTTP status 429)"
            return _Busy(_unavailable(reason, f"Search again {when}.{sign_in}"), wait_s, status)
        if status in TRANSIENT_STATUSES or status >= 500:
            return _Busy(
                _unavailable(f"{self.host} has an internal error (HTTP status {status})", "Search again later.")
            )
        if status in (401, 403) and self._token:
            reason = f"{self.host} does not accept HF_TOKEN (HTTP status {status})"
            remedy = "Check the token at https://huggingface.co/settings/tokens, or unset HF_TOKEN, and start again."
            return _Failed(_unavailable(reason, remedy), status)
        return _Failed(self.damaged(f"HTTP status {status}"), status)


class _Busy(Exception):
    """An answer may come later; `wait_s` is what the server asks for."""

    def __init__(self, refused: Refused, wait_s: float | None = None, status: int | None = None) -> None:
        super().__init__(refused.detail)
        self.refused, self.wait_s, self.status = refused, wait_s, status


def _unavailable(reason: str, remedy: str) -> Refused:
    return Refused("search_unavailable", f"Models cannot be searched: {reason}.", remedy)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _time(value: object) -> str | None:
    return value if isinstance(value, str) and _TIME.fullmatch(value) else None


def _licence(facts: Mapping[str, Any]) -> str | None:
    """Return the licence of the card, or that in the tags."""
    card = facts.get("cardData")
    named = licence_text(card.get("license")) if isinstance(card, dict) else None
    tags = facts.get("tags")
    tagged = [tag[8:] for tag in tags if str(tag).startswith("license:")] if isinstance(tags, list) else []
    return named or licence_text(tagged or None)
