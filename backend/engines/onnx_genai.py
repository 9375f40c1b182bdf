"""Text by folders of ONNX Runtime GenAI: GenAI's format and tokenizer, with this project's batching loop for the graph.

`_onnx/genai_model.py` has the reason. The session uses the selected device alone, and ONNX Runtime's record of the node
assignment is the evidence of where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken, ModelIncompatible, ModelLoadFailed, TouchstoneError
from backend.common.formats.onnx.validation import read_onnx
from backend.common.types import Placement
from backend.devices import backends_of, onnx_place
from backend.engines import ConvertedForm, Engine, FolderDownload, LoadRequest, ModelFormat
from backend.engines._memory_errors import LOWER_CONTEXT, does_not_fit, out_of_memory_message
from backend.engines._onnx.genai_config import CONFIG, GenaiFolder, open_folder
from backend.engines._onnx.genai_model import GenaiBatchModel
from backend.engines._text.agreement import TEXT
from backend.engines._text.batch_decoder import BatchDecoder
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.processor_check import ProcessorCheck
from backend.engines._text.session import TextSession


def _describe(path: Path) -> Mapping[str, Any]:
    folder = open_folder(path)
    operators = {name for _, name in read_onnx(folder.graph).operators}
    return {
        "architecture": folder.model.get("type"),
        "quantisation": "4 or 8 bits" if operators & _QUANTISED else None,
        "context_tokens": folder.context_length,
        "chat_template": folder.chat_template is not None,
        "parts": 1,
    }


_QUANTISED = {"MatMulNBits", "GatherBlockQuantized"}
ENGINE = Engine(
    name="onnx-genai",
    library="onnxruntime_genai",
    runtimes=("base",),
    backends=backends_of("onnxruntime"),
    tasks=("text", "lyrics"),
    formats=(
        ModelFormat(
            name="onnx-genai",
            files=(CONFIG,),
            validate=open_folder,
            describe=_describe,
            folder_download=FolderDownload(CONFIG, title="ONNX Runtime GenAI", priority=10, preferred="cpu"),
        ),
    ),
    converted_forms=(
        # Measured with SmolLM2-135M, greedy decoding at full precision, 8 prompts with 159 tokens: int8 has 111 tokens
        # before the first difference, llama.cpp with the same GGUF file 121, int4 in any of the builder's variants 11
        # to 14, because it quantizes again what was quantized differently. If both exist, int8 is used.
        ConvertedForm("onnx-int8", 10, "int8"),
        ConvertedForm("onnx-int4", 30, "int4", {"algo_config": "rtn", "matmul_mixed_precision": "last_matmul:int8"}),
    ),
    batches=True,
    data_types=("float16", "int4", "int8"),
    data_types_by_backend={"cpu": ("int4", "int8")},  # its models have activations in float32
    options=frozenset(
        {
            *("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty", "raw", "logprobs"),
            *("presence_penalty", "frequency_penalty", "logit_bias"),
        }
    ),
)
_LIBRARY_BYTES = 90_000_000  # measured with SmolLM2-135M on x86-64: worker memory beyond weights and KV cache
_FETCH = "Download the complete folder again, or create it again with the builder of ONNX Runtime GenAI."


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of weights, KV cache and library. ONNX Runtime holds the weights twice while it repacks them."""
    folder = open_folder(Path(model_path))
    context = min(context_tokens, folder.context_length or context_tokens)
    return 2 * folder.file_bytes + folder.cache_bytes_per_token * context * slots + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Import both libraries; return their versions."""
    import onnxruntime
    import onnxruntime_genai

    return {"onnxruntime": str(onnxruntime.__version__), "onnxruntime-genai": str(onnxruntime_genai.__version__)}


def load(request: LoadRequest) -> TextSession:
    """Load a folder. Raises ModelBroken, ModelLoadFailed, ModelIncompatible, OutOfMemory, DeviceWrong."""
    folder = open_folder(Path(request.model_path))
    chat = Chat(folder.chat_template, folder.names, folder.control_marks)
    with chat.kept_if_loaded(lambda error: _load_error(folder, error)):
        place = onnx_place(request.device, request.detected_device, request.provider_options, request.compile_cache_dir)
        session = place.session(folder.graph, request.threads)
        tokens = _Tokens(folder)
        context = min(request.context_tokens, folder.context_length or request.context_tokens)
        rows = GenaiBatchModel(session, folder, context, request.slots, in_place=place.is_processor)
        comparison = _compare(rows, folder, tokens, replace(request, context_tokens=context))
    decoder = BatchDecoder(rows, request.slots)

    def find_placement() -> Placement:
        return comparison.add_to(place.placement([session]))

    return TextSession(
        decoder,
        tokens,
        chat,
        context,
        find_placement(),
        request.threads,
        check(),
        find_placement=find_placement,
    )


def _compare(rows: GenaiBatchModel, folder: GenaiFolder, tokens: _Tokens, request: LoadRequest) -> ProcessorCheck:
    """Compare the model with a copy on the processor; return the check. Raises DeviceWrong."""
    comparison = ProcessorCheck(ENGINE.name, request, folder.path.name, check(), 2 * folder.file_bytes)
    if comparison.is_due:
        ids = tokens.encode(TEXT)

        def copy() -> GenaiBatchModel:
            session = onnx_place("cpu").session(folder.graph, request.threads)
            return GenaiBatchModel(session, folder, comparison.context_tokens, 1, in_place=True)

        comparison.read_copy_model(copy, ids)
        comparison.judge_model(rows, ids)
    return comparison


class _Tokens:
    """GenAI's tokenizer as a `Vocabulary`."""

    def __init__(self, folder: GenaiFolder) -> None:
        import onnxruntime_genai

        self._tokenizer = onnxruntime_genai.Tokenizer(str(folder.path))
        self._tokenizer.update_options(add_special_tokens="false")
        self.begin = int(self._tokenizer.bos_token_id) if folder.begins_with_bos else None
        self.ends = folder.ends
        self.vocabulary_size = folder.vocabulary_size

    def encode(self, piece: str) -> list[int]:
        """Return the tokens of a text."""
        return [int(token) for token in self._tokenizer.encode(piece)]

    def stream(self) -> Callable[[int], str]:
        """Return a function that returns the text that each further token adds."""
        return self._tokenizer.create_stream().decode  # type: ignore[no-any-return]

    def text(self, token: int) -> str:
        """Return the text of a single token."""
        return str(self._tokenizer.decode([token]))


def _load_error(folder: GenaiFolder, error: Exception) -> TouchstoneError:
    name = folder.path.name
    if no_memory := out_of_memory_message(error):
        return does_not_fit(name, no_memory, LOWER_CONTEXT)
    message = f"{error}".strip()[:600]
    lowered = message.lower()
    if any(part in lowered for part in ("unsupported model ir", "opset", "is not a registered function", "no op")):
        return ModelIncompatible(
            f"{name} needs another version of ONNX Runtime: {message}", "Choose another model or engine."
        )
    damages = ("invalid protobuf", "protobuf parsing", "external data", "file size", "no graph")
    if any(part in lowered for part in damages):
        return ModelBroken(f"{name} is damaged: {message}", _FETCH)
    return ModelLoadFailed(f"{name} could not be loaded: {message}", "Try another device, engine or model.")
