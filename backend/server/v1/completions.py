"""POST /v1/completions: continues a prompt without a chat template."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob
from backend.server.dependencies import Caller, IdempotencyKey, Manager, OpenStreams, events_or
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.request_models import CompletionBody
from backend.server.v1.request_translation import build_requests, require_model_task, run_and_respond, sampling_options
from backend.server.v1.response_shapes import CompletionResponse, finish_reason, tokens_of

NAMES = {"options.prompt_tokens": "prompt"}
router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/completions", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def complete(
    body: CompletionBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams, key: IdempotencyKey
) -> Response:
    """Continue each prompt as it is, in OpenAI's shapes. Each choice is a job; closing the request cancels it."""
    require_model_task(manager, body, "text")
    options = {**sampling_options(body), "raw": True}
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    requests = [
        each
        for prompt in body.prompt
        for each in (
            build_requests(body, [{"prompt": prompt}], options)
            if isinstance(prompt, str)
            else build_requests(body, [{}], {**options, "prompt_tokens": prompt})
        )
    ]
    return await run_and_respond(
        request, manager, streams, caller, body, requests, lambda jobs: TextResponse(jobs, body), NAMES, key
    )


class TextResponse(CompletionResponse):
    """The response of a text completion."""

    full_object = chunk_object = "text_completion"
    prefix = "cmpl"

    def __init__(self, choices: Choices, body: CompletionBody) -> None:
        super().__init__(choices, body.n, body.with_usage)
        self._lengths = [0 for _ in choices.jobs]  # characters sent, for the token offsets
        self._echoes = body.echo

    def opening(self, index: int) -> JsonObject | None:
        """Return the prompt if the caller wants it before the text."""
        return {"text": self._echo(index)} if self._echoes else None

    def note_thoughts(self, index: int) -> None:
        """Do nothing: a text without a chat template is not divided."""

    def _echo(self, index: int) -> str:
        return (self._choices.jobs[index].request.prompt or "") if self._echoes else ""

    def text(self, index: int, token: JsonObject) -> JsonObject:
        """Return the text of a token."""
        offset = self._lengths[index]
        self._lengths[index] += len(token["text"])
        return {"text": token["text"], "logprobs": _logprobs(token.get("logprobs"), offset)}

    def closing(self, index: int, job: LiveJob) -> list[JsonObject]:
        """Return the chunk with the finish reason."""
        return [{"text": "", "finish_reason": finish_reason(job)}]

    def choice(self, index: int, job: LiveJob) -> JsonObject:
        """Return the complete text."""
        tokens = tokens_of(job)
        has_logprobs = (job.request.options or {})["logprobs"] is not None
        entries = [entry for token in tokens for entry in token.get("logprobs", ())] if has_logprobs else None
        return {
            "index": index,
            "text": self._echo(index) + "".join(token["text"] for token in tokens),
            "logprobs": _logprobs(entries, 0),
            "finish_reason": finish_reason(job),
        }


def _logprobs(entries: list[JsonObject] | None, offset: int) -> JsonObject | None:
    """Return logprobs in the shape of completions: parallel lists."""
    if entries is None:
        return None
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in (*entry["top_logprobs"], entry)} for entry in entries
        ],
        "text_offset": offsets,
    }
