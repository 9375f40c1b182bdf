"""Text by folders of ONNX Runtime GenAI: its format and its tokenizer; its graph is driven by our own loop.

`_decoder.py` says why. The session is made on the device alone, and ONNX Runtime's record of the assignment is the
evidence of where it runs.
"""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from backend import faults
from backend.devices import backends_of, onnx_place
from backend.engines import Emit, Engine, LoadRequest, RunRequest, RunResult
from backend.engines._biases import check_biases
from backend.engines._chat import Chat
from backend.engines._decoder import Decoder, Step, Text
from backend.engines._genai_folder import CONFIG, GenaiFolder, open_folder
from backend.engines._logprobs import Logprobs
from backend.engines._sampler import Sampler
from backend.engines._stops import Stops
from backend.errors import (
    ContextLengthExceeded,
    ModelBroken,
    ModelIncompatible,
    ModelLoadFailed,
    OutOfMemory,
    TouchstoneError,
)
from backend.types import Placement

ENGINE = Engine(
    name="onnx-genai",
    library="onnxruntime_genai",
    runtimes=("base",),
    backends=backends_of("onnxruntime"),
    tasks=("text",),
    suffixes=(),
    files=(CONFIG,),
    batches=True,
    options=frozenset(
        {
            *("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty", "raw", "logprobs"),
            *("presence_penalty", "frequency_penalty", "logit_bias"),
        }
    ),
)
_LIBRARY_BYTES = 90_000_000  # SmolLM2-135M: what the worker took beyond weights and cache, on x86-64
_POLL_S = 0.1
_FETCH = "Fetch the whole folder again, or make it again with the builder of ONNX Runtime GenAI."


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Weights, which ONNX Runtime packs anew while loading, the cache, and what the library itself took."""
    folder = open_folder(Path(model_path))
    context = min(context_tokens, folder.context_length or context_tokens)
    return 2 * folder.file_bytes + folder.cache_bytes_per_token * context * slots + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Imports both libraries."""
    import onnxruntime
    import onnxruntime_genai

    return {"onnxruntime": str(onnxruntime.__version__), "onnxruntime-genai": str(onnxruntime_genai.__version__)}


def load(request: LoadRequest) -> GenaiSession:
    """Loads a folder. Raises ModelBroken, ModelLoadFailed, ModelIncompatible or OutOfMemory."""
    import onnxruntime_genai

    folder = open_folder(Path(request.model_path))
    chat = Chat(folder.chat_template, folder.names, folder.control_marks)
    try:
        place = onnx_place(request.device, request.found)
        session = place.session(folder.graph, request.threads)
        tokenizer = onnxruntime_genai.Tokenizer(str(folder.path))
        tokenizer.update_options(add_special_tokens="false")
        context = min(request.context_tokens, folder.context_length or request.context_tokens)
        decoder = Decoder(session, folder, context, request.slots, in_place=place.is_processor)
    except TouchstoneError:
        chat.close()
        raise
    except Exception as error:  # the libraries' exceptions share no base of their own
        chat.close()
        raise _load_error(folder, error) from error
    return GenaiSession(decoder, tokenizer, chat, folder, context, place.placement([session]), request.threads)


class GenaiSession:
    """One loaded folder. `run` may be called from as many threads at once as there are slots."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Any,
        chat: Chat,
        folder: GenaiFolder,
        context: int,
        placement: Placement,
        threads: int,
    ) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._chat = chat
        self._folder = folder
        self._context = context
        self._bos = int(tokenizer.bos_token_id) if folder.begins_with_bos else None
        self.placement = placement
        self.threads: int | None = threads
        self.versions = check()

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Generates until a stop, the limit or a cancel. Raises ContextLengthExceeded, Validation."""
        options = request.options
        pieces, template = self._chat.pieces(request)
        prompt = self._tokens(pieces)
        if len(prompt) >= self._context:
            raise ContextLengthExceeded(
                f"The prompt has {len(prompt)} tokens and the context holds {self._context}.",
                "Shorten the prompt, or raise text.context_tokens in config.yaml.",
                prompt_tokens=len(prompt),
                context_tokens=self._context,
            )
        if (size := self._folder.vocabulary_size) is not None:
            check_biases(options["logit_bias"], size)
        sampler = Sampler(options, request.seed, prompt)
        limit = min(options["max_tokens"], self._context - len(prompt))
        text = Text(prompt, sampler, limit, self._folder.ends, options["logprobs"])
        writing = _Writing(self._tokenizer, emit, options["stop"], options["logprobs"])
        finish = "cancelled"
        self._decoder.add(text)
        try:
            while finish == "cancelled":
                try:
                    news = text.news.get(timeout=_POLL_S)
                except queue.Empty:
                    if emit("poll", {}):
                        break
                    continue
                if isinstance(news, Exception):
                    raise _run_error(news)
                if isinstance(news, int):
                    progress = {"phase": "prompt", "done": news, "total": len(prompt), "unit": "tokens"}
                    if emit("progress", progress):
                        break
                    continue
                ended, cancelled = writing.take(news, news.token in text.ends)
                finish = ended or finish
                if cancelled:
                    break
        finally:
            text.cancelled = True
        return RunResult({"tokens": writing.tokens, "prompt_tokens": len(prompt), "cached_tokens": 0}, finish, template)

    def _tokens(self, pieces: list[str]) -> list[int]:
        found = [int(token) for piece in pieces for token in self._tokenizer.encode(piece)]
        if self._bos is not None and found[:1] != [self._bos]:
            found.insert(0, self._bos)
        return found or [self._bos if self._bos is not None else min(self._folder.ends, default=0)]


class _Writing:
    """Tokens become text, up to a stop."""

    def __init__(self, tokenizer: Any, emit: Emit, stop: str | list[str] | None, logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._stream = tokenizer.create_stream()
        self._emit = emit
        self._stops = Stops([stop] if isinstance(stop, str) else stop or [])
        self._logprobs = None if logprobs is None else Logprobs(logprobs)
        self._shown = 0
        self.tokens = 0

    def take(self, step: Step, ends: bool) -> tuple[str | None, bool]:
        """Shows what can be shown; returns how the text ended, if it did, and whether to stop at once."""
        self.tokens += 1
        piece = "" if ends else self._stream.decode(step.token)
        if piece and self._logprobs:
            self._logprobs.take([self._listed(step, piece)])
        shown = self._stops.feed(piece) if piece else ""
        if self._stops.found:
            return "stop", self._show(shown)
        if step.finish:
            shown += self._stops.rest()
        return step.finish, self._show(shown)

    def _show(self, text: str) -> bool:
        if not text:
            return self._emit("poll", {})
        count, self._shown = self.tokens - self._shown, self.tokens
        listed = {"logprobs": self._logprobs.of(text)} if self._logprobs else {}
        return self._emit("token", {"text": text, "count": count, **listed})

    def _listed(self, step: Step, piece: str) -> dict[str, Any]:
        named = [(token, str(self._tokenizer.decode([token])), value) for token, value in step.likeliest]
        likeliest = [
            {"id": token, "token": text, "bytes": list(text.encode()), "logprob": value} for token, text, value in named
        ]
        return {
            "id": step.token,
            "token": piece,
            "bytes": list(piece.encode()),
            "logprob": step.logprob,
            "top_logprobs": likeliest,
        }


def _load_error(folder: GenaiFolder, error: Exception) -> TouchstoneError:
    told = f"{error}".strip()[:600]
    if faults.code_of(told) == "out_of_memory":
        return OutOfMemory(
            f"{folder.path.name} does not fit into memory: {told}",
            "Lower text.context_tokens in config.yaml, close other programs, or choose a smaller model.",
        )
    lowered = told.lower()
    if any(words in lowered for words in ("unsupported model ir", "opset", "is not a registered function", "no op")):
        return ModelIncompatible(
            f"{folder.path.name} needs another version of ONNX Runtime: {told}", "Choose another model or engine."
        )
    damages = ("invalid protobuf", "protobuf parsing", "external data", "file size", "no graph")
    if any(words in lowered for words in damages):
        return ModelBroken(f"{folder.path.name} is damaged: {told}", _FETCH)
    return ModelLoadFailed(f"{folder.path.name} could not be loaded: {told}", "Try another device, engine or model.")


def _run_error(error: Exception) -> Exception:
    if faults.code_of(f"{error}") == "out_of_memory":
        return OutOfMemory(f"The device ran out of memory: {error}"[:600], "Lower text.context_tokens or text.slots.")
    return error
