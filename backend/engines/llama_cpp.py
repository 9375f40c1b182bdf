"""llama.cpp in this process, by llama.h: one engine for the CPU and for the cards of every build.

The environment holds one build (`devices/_mechanisms/llama_builds.py`), and `_llama/c_api.py` has the functions. This
project's loop for continuous batching drives it (`_text/batch_decoder.py`), and llama.cpp's own samplers choose tokens.
The library never parses the chat template. A card's worker sees only that card and the CPU's worker uses none, so the
buffers in the load log show where the model is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.common.formats.gguf import parts, read_header
from backend.common.formats.gguf.vocabulary import read_vocabulary
from backend.common.types import Placement
from backend.devices import backends_of, check_processor, ggml_place, llama_runtimes, split_id
from backend.engines import Emit, Engine, LoadRequest, RunRequest, RunResult, Session
from backend.engines._formats import GGUF
from backend.engines._llama.embeddings import Embedder
from backend.engines._llama.fit import load_fitted
from backend.engines._llama.library import Library, open_library
from backend.engines._llama.loaded_model import LoadedModel, choose_devices, load_model, placement
from backend.engines._llama.vocabulary import LlamaVocabulary
from backend.engines._text.agreement import TEXT
from backend.engines._text.batch_decoder import BatchDecoder
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.constraint import Constraints
from backend.engines._text.processor_check import ProcessorCheck
from backend.engines._text.session import TextSession

_CARDS = backends_of("ggml")
ENGINE = Engine(
    name="llama.cpp",
    library="xllamacpp",
    runtimes=tuple(dict.fromkeys(("base", *llama_runtimes()))),
    backends=("cpu", *_CARDS),
    tasks=("text", "lyrics", "embeddings"),
    formats=(GGUF,),
    adapter_suffixes=(".gguf",),
    batches=True,
    plans_memory=True,
    data_types_by_backend=dict.fromkeys(_CARDS, ("float16", "bfloat16", "Q4_K", "Q6_K", "Q8_0", "Q4_0", "Q4_1")),
    file_tasks=("embeddings",),
    options=frozenset(
        "max_tokens temperature top_p top_k seed stop repetition_penalty presence_penalty frequency_penalty"
        " logit_bias logprobs response_format raw tools".split()
    ),
)
_LIBRARY_BYTES = 100_000_000  # measured with SmolLM2-135M on x86-64: 63 MB beyond weights and KV cache
_SWITCH_S = 0.0005  # the decoder's thread must not wait for Python's switch interval of 5 ms after each step


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of weights, KV cache, and the library as measured."""
    header = read_header(Path(model_path))
    if header.cache_bytes_per_token is None:
        return None
    context = min(context_tokens, header.context_length or context_tokens)
    file_bytes = sum(part.stat().st_size for part in parts(Path(model_path))) or header.file_bytes
    return file_bytes + header.cache_bytes_per_token * context * slots + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Load the library, query the CPU, which raises if its build does not match, and return the versions.

    Raises ImportError, OSError, ModelLoadFailed for an unknown programming interface, and UnusableDataType if products
    with weights in a format are wrong on this CPU.
    """
    library = open_library(cards=True)
    if not any(device.registry == "CPU" for device in library.devices()):
        raise OSError(f"{library.title} lists no CPU device")
    if not library.build.cards:  # otherwise each card's own proof checks its products
        check_processor(library.ggml)
    return _versions(library)


def _versions(library: Library) -> dict[str, str]:
    return {library.build.name: library.build.version, "llama.cpp": library.llama.llama_version().decode()}


def load(request: LoadRequest) -> Session:
    """Load a GGUF file. Raises ModelBroken, ModelLoadFailed, ModelIncompatible, OutOfMemory, DeviceWrong."""
    path = Path(request.model_path)
    header = read_header(path)
    file = read_vocabulary(path, merges=False)
    names = {f"{name}_token": file.text(name) or "" for name in ("bos", "eos", "unk", "pad")}
    chat = Chat(file.chat_template, names, file.control_marks())
    is_card = split_id(request.device)[0] != "cpu"
    access = ggml_place(request.device, request.detected_device) if is_card else None  # before the library is loaded
    library = open_library(is_card)
    request = replace(request, context_tokens=min(request.context_tokens, header.context_length or sys.maxsize))
    sys.setswitchinterval(_SWITCH_S)
    with chat.kept_if_loaded():
        devices = choose_devices(library, request, access.handle) if access else []
        fitted = load_fitted(library, request, devices, header.makes_embeddings)
        loaded, request = fitted.loaded, fitted.request
        vocabulary = loaded.vocabulary(file)
        placed = placement(loaded, request.device)
        if not is_card:
            placed = replace(placed, evidence=f"{placed.evidence}; {_describe_others(library)}")
        elif not header.makes_embeddings:
            placed = _compare(loaded, vocabulary, request).add_to(placed)
    if header.makes_embeddings:
        chat.close()
        embedder = Embedder(loaded, vocabulary)
        return fitted.note_in(EmbeddingSession(embedder, request.threads, placed, _versions(library)))
    session = TextSession(
        BatchDecoder(loaded.rows(), request.slots),
        vocabulary,
        chat,
        request.context_tokens,
        placed,
        request.threads,
        _versions(library),
        constraints=Constraints(lambda: _grammar_tokenizer(vocabulary), vocabulary.ends),
    )
    return fitted.note_in(session)


class EmbeddingSession(Session):
    """A loaded model that turns texts into vectors."""

    def __init__(self, embedder: Embedder, threads: int, placement: Placement, versions: dict[str, str]) -> None:
        self._embedder = embedder
        self.placement = placement
        self.threads: int | None = threads
        self.versions = versions

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Compute the vectors. Raises ContextLengthExceeded, ModelIncompatible."""
        return self._embedder.embed(request.texts or [], request.folder, emit)


def _compare(loaded: LoadedModel, vocabulary: LlamaVocabulary, request: LoadRequest) -> ProcessorCheck:
    """Compare a model on a card with a copy on the processor, if that is due; return the check. Raises DeviceWrong."""
    path = Path(request.model_path)
    copy_bytes = estimate_bytes(request.model_path, 1, 1) or path.stat().st_size
    comparing = ProcessorCheck(ENGINE.name, request, path.name, _versions(loaded.library), copy_bytes)
    if comparing.is_due:
        ids = vocabulary.encode(TEXT)
        sizes = replace(request, device="cpu", context_tokens=comparing.context_tokens, slots=1)
        comparing.read_copy_model(lambda: load_model(loaded.library, sizes).rows(), ids)
        comparing.judge_model(loaded.rows(), ids)
    return comparing


def _grammar_tokenizer(vocabulary: LlamaVocabulary) -> Any:
    """Return the vocabulary as llguidance's tokenizer."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_GuidanceTokens(vocabulary)), eos_token=sorted(vocabulary.ends) or None)


class _GuidanceTokens:
    """The vocabulary with the names that llguidance reads."""

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        self._encode: Callable[[str], list[int]] = vocabulary.encode_inside
        self.tokens = vocabulary.all_bytes()
        self.eos_token_id = min(vocabulary.ends, default=0)
        self.bos_token_id = vocabulary.begin
        self.special_token_ids = [token for token in range(len(self.tokens)) if vocabulary.is_control(token)]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def _describe_others(library: Library) -> str:
    """Return which devices the library could use, and what keeps it on the CPU."""
    others = [device.name for device in library.devices() if device.registry != "CPU"]
    if not others:
        return "the library has no other device than the CPU"
    return f"the library also has {', '.join(others)}, and no layer, KV cache or operation is offloaded"
