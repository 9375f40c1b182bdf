"""Text by folders of ONNX Runtime GenAI: its format and its tokenizer; its graph is driven by our own loop.

`_genai_rows.py` says why. The session is made on the device alone, and ONNX Runtime's record of the assignment is the
evidence of where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backend.common import error_patterns
from backend.common.errors import ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, TouchstoneError
from backend.devices import backends_of, onnx_place
from backend.engines import Engine, LoadRequest
from backend.engines._onnx.genai_config import CONFIG, GenaiFolder, open_folder
from backend.engines._onnx.genai_model import GenaiRows
from backend.engines._text.batch_decoder import Decoder
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.session import TextSession

ENGINE = Engine(
    name="onnx-genai",
    library="onnxruntime_genai",
    runtimes=("base",),
    backends=backends_of("onnxruntime"),
    tasks=("text", "lyrics"),
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


def load(request: LoadRequest) -> TextSession:
    """Loads a folder. Raises ModelBroken, ModelLoadFailed, ModelIncompatible or OutOfMemory."""
    folder = open_folder(Path(request.model_path))
    chat = Chat(folder.chat_template, folder.names, folder.control_marks)
    with chat.kept_if_loaded(lambda error: _load_error(folder, error)):
        place = onnx_place(request.device, request.detected_device, request.provider_options, request.cache)
        session = place.session(folder.graph, request.threads)
        tokens = _Tokens(folder)
        context = min(request.context_tokens, folder.context_length or request.context_tokens)
        rows = GenaiRows(session, folder, context, request.slots, in_place=place.is_processor)
    decoder = Decoder(rows, request.slots)
    return TextSession(decoder, tokens, chat, context, place.placement([session]), request.threads, check())


class _Tokens:
    """GenAI's tokenizer."""

    def __init__(self, folder: GenaiFolder) -> None:
        import onnxruntime_genai

        self._tokenizer = onnxruntime_genai.Tokenizer(str(folder.path))
        self._tokenizer.update_options(add_special_tokens="false")
        self.begin = int(self._tokenizer.bos_token_id) if folder.begins_with_bos else None
        self.ends = folder.ends
        self.vocabulary_size = folder.vocabulary_size

    def encode(self, piece: str) -> list[int]:
        """The tokens of a text."""
        return [int(token) for token in self._tokenizer.encode(piece)]

    def stream(self) -> Callable[[int], str]:
        """What each token adds."""
        return self._tokenizer.create_stream().decode  # type: ignore[no-any-return]

    def text(self, token: int) -> str:
        """One token by itself."""
        return str(self._tokenizer.decode([token]))


def _load_error(folder: GenaiFolder, error: Exception) -> TouchstoneError:
    told = f"{error}".strip()[:600]
    if error_patterns.classify_error_text(told) == "out_of_memory":
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
