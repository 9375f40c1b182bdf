"""POST /v1/completions: a text goes on, as it is and without a chat template."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.jobs.live_job import LiveJob
from backend.server.dependencies import Caller, Manager, OpenStreams, events_or
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.request_models import CompletionBody
from backend.server.v1.request_translation import answered, made_for, requests_of, sampling_of
from backend.server.v1.response_shapes import Answer, finish_reason, tokens_of

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/completions", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def complete(
    body: CompletionBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams
) -> Response:
    """Continues each prompt as it is, in OpenAI's shapes. Each choice is a job, and leaving cancels it."""
    made_for(manager, body, "text")
    options = {**sampling_of(body), "raw": True}
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    requests = requests_of(body, [{"prompt": prompt} for prompt in body.prompt], options)
    return await answered(request, manager, streams, caller, body, requests, lambda jobs: CompletionAnswer(jobs, body))


class CompletionAnswer(Answer):
    """A text completion."""

    whole_object = chunk_object = "text_completion"
    prefix = "cmpl"

    def __init__(self, choices: Choices, body: CompletionBody) -> None:
        super().__init__(choices, body.n, body.with_usage)
        self._lengths = [0 for _ in choices.jobs]  # characters shown, for the offsets of tokens

    def opening(self, index: int) -> None:
        """Nothing comes before the text."""

    def text(self, index: int, token: dict[str, Any]) -> dict[str, Any]:
        """The text as it comes."""
        offset = self._lengths[index]
        self._lengths[index] += len(token["text"])
        return {"text": token["text"], "logprobs": _logprobs(token.get("logprobs"), offset)}

    def closing(self, index: int, job: LiveJob) -> list[dict[str, Any]]:
        """The reason of the end."""
        return [{"text": "", "finish_reason": finish_reason(job)}]

    def choice(self, index: int, job: LiveJob) -> dict[str, Any]:
        """The text, whole."""
        tokens = tokens_of(job)
        asked = (job.request.options or {})["logprobs"] is not None
        listed = [entry for token in tokens for entry in token.get("logprobs", ())] if asked else None
        return {
            "index": index,
            "text": "".join(token["text"] for token in tokens),
            "logprobs": _logprobs(listed, 0),
            "finish_reason": finish_reason(job),
        }


def _logprobs(listed: list[dict[str, Any]] | None, offset: int) -> dict[str, Any] | None:
    """The older shape: one list a fact."""
    if listed is None:
        return None
    offsets = []
    for entry in listed:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in listed],
        "token_logprobs": [entry["logprob"] for entry in listed],
        "top_logprobs": [{other["token"]: other["logprob"] for other in entry["top_logprobs"]} for entry in listed],
        "text_offset": offsets,
    }
