"""Text by transformers on torch, on every device that a build of torch reaches: GGUF files and folders of safetensors.

The library provides the models. The batching loop, the KV cache and the sampling are this project's, so that jobs share
a loaded model, a cancel takes effect within one token, and options mean what they mean with the other engines.
"""

from __future__ import annotations

import os
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.common.commands import command
from backend.common.engine_api import MODEL_DTYPE
from backend.common.errors import ModelIncompatible, ModelLoadFailed, TouchstoneError
from backend.common.system.resources import memory_free_bytes
from backend.common.types import Placement
from backend.devices import torch_place
from backend.engines import Engine, LoadRequest
from backend.engines._formats import CHECKPOINT, GGUF
from backend.engines._memory_errors import LOWER_CONTEXT, does_not_fit, needs_more_memory, out_of_memory_message
from backend.engines._text.agreement import TEXT
from backend.engines._text.batch_decoder import BatchDecoder
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.hf_tokenizer import HfVocabulary
from backend.engines._text.processor_check import ProcessorCheck
from backend.engines._text.session import TextSession
from backend.engines._torch.attention import register
from backend.engines._torch.batch_model import TorchBatchModel
from backend.engines._torch.cuda_graphs import COMPILED, GraphBatchModel
from backend.engines._torch.model_files import ModelFiles, open_model_files, open_tokenizer
from backend.engines._torch.supported_backends import BACKENDS, LIBRARY_BYTES, RUNTIMES

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

ENGINE = Engine(
    name="transformers",
    library="transformers",
    runtimes=RUNTIMES,
    backends=BACKENDS,
    tasks=("text", "lyrics"),
    formats=(GGUF, CHECKPOINT),
    batches=True,
    options=frozenset(
        "max_tokens temperature top_p top_k seed stop repetition_penalty presence_penalty frequency_penalty"
        " logit_bias logprobs raw tools".split()
    ),
    data_types=(MODEL_DTYPE,),
)
_COMPILE_THREADS = 8  # the most compiler threads, because steps run at the same time
_SWITCH_S = (
    0.0005  # a step is shorter than Python's switch interval of 5 ms, so the decoder thread must not wait for it
)
_COPY_CHUNK_TOKENS = 512
_TRANSFORMERS_BYTES = 250_000_000  # SmolLM2-135M: beyond torch, weights and cache, on x86-64


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of weights and KV cache at 16 bits, and of the libraries."""
    model_files = open_model_files(Path(model_path))
    if model_files.cache_values is None:
        return None
    context = min(context_tokens, model_files.context_length or context_tokens)
    return (
        2 * (model_files.parameter_count + model_files.cache_values * context * slots)
        + LIBRARY_BYTES
        + _TRANSFORMERS_BYTES
    )


def check() -> dict[str, str]:
    """Import the libraries; return their versions."""
    import tokenizers
    import torch
    import transformers

    return {name.__name__: str(name.__version__) for name in (torch, transformers, tokenizers)}


def load(request: LoadRequest, best: str = COMPILED) -> TextSession:
    """Load a model. `best` is the fastest mode that a card may use to compute a step.

    Raises ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, DeviceNotReady, DeviceWrong.
    """
    path = Path(request.model_path)
    model_files, tokenizer = open_model_files(path), open_tokenizer(path)
    place = torch_place(request.device, request.detected_device)
    place.torch.set_num_threads(request.threads)
    context = min(request.context_tokens, model_files.context_length or request.context_tokens)
    chat = Chat(tokenizer.chat_template, tokenizer.names, tokenizer.marks)
    comparison = ProcessorCheck(
        ENGINE.name,
        replace(request, context_tokens=context),
        model_files.name,
        check(),
        4 * model_files.parameter_count,
    )
    with chat.kept_if_loaded(lambda error: _load_error(model_files, error)):
        model = _model(model_files, place)
        size = int(model.config.get_text_config().vocab_size)
        tokens = HfVocabulary(tokenizer.tokenizer_json, tokenizer.begin, tokenizer.ends, size)
        ids = tokens.encode(TEXT) or [0]
        if comparison.is_due:
            limit = comparison.context_tokens
            comparison.read_copy_model(lambda: _copy(model, (1, limit, size, model_files.name)), ids)
        model = _moved(model, place)
        rows = _rows(place, model, (request.slots, context, size, model_files.name), request, best)
        comparison.verify(rows, ids)

    def find_placement() -> Placement:
        return comparison.add_to(place.placement([*model.parameters(), *model.buffers()]))

    decoder = BatchDecoder(rows, request.slots)
    taken = place.taken_since(request.card_free_bytes)
    describe_steps = rows.describe_steps if isinstance(rows, GraphBatchModel) else None
    return TextSession(
        decoder,
        tokens,
        chat,
        context,
        find_placement(),
        request.threads,
        check(),
        taken,
        describe_steps,
        find_placement,
    )


def _copy(model: Any, sizes: tuple[int, int, int, str]) -> TorchBatchModel:
    """Return a copy of a model on the processor, with the same weights in float32."""
    place = torch_place("cpu")
    exact = replace(place, access=replace(place.access, dtype="float32"))
    copied = deepcopy(model)
    for tensor in [*copied.parameters(), *copied.buffers()]:  # the library's `float` refuses models of GGUF files
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    rows = TorchBatchModel(exact, copied, *sizes)
    rows.prefill_chunk_tokens = _COPY_CHUNK_TOKENS
    return rows


def _rows(
    place: TorchPlace, model: Any, sizes: tuple[int, int, int, str], request: LoadRequest, best: str
) -> TorchBatchModel:
    """Return the model as batch model: with CUDA graphs on cards that record them."""
    if not place.access.can_record:
        return TorchBatchModel(place, model, *sizes)
    if folder := request.compile_cache_dir or request.scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(min(request.threads, _COMPILE_THREADS))
    sys.setswitchinterval(_SWITCH_S)
    return GraphBatchModel(place, model, *sizes, best)


def _model(model_files: ModelFiles, place: TorchPlace) -> Any:
    """Load the model into system memory, in the data type that the device computes well. Raises OutOfMemory."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    number = getattr(place.torch, place.access.dtype)
    needed = model_files.loading_bytes + model_files.parameter_count * number.itemsize
    free = memory_free_bytes()
    if free is not None and needed > free:
        raise needs_more_memory(model_files.name, needed, free, " of system memory while it is loaded", LOWER_CONTEXT)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(model_files.folder), dtype=number, local_files_only=True, trust_remote_code=False, **model_files.arguments
    )
    config = model.config.get_text_config()
    if place.access.plain_only or getattr(config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # torch's own attention has no soft cap
    elif config._attn_implementation not in ("sdpa", "eager"):
        model.set_attn_implementation("sdpa")
    return model.eval()


def _moved(model: Any, place: TorchPlace) -> Any:
    """Move a model onto the device, with the attention that recordings need there."""
    import transformers

    if place.access.can_record and model.config.get_text_config()._attn_implementation == "sdpa":
        model.set_attn_implementation(register(place.torch, transformers))
    return model.to(place.device)


def _load_error(model_files: ModelFiles, error: Exception) -> TouchstoneError:
    if message := out_of_memory_message(error):
        return does_not_fit(model_files.name, message, LOWER_CONTEXT)
    message = f"{type(error).__name__}: {error}".strip()[:600]
    if isinstance(error, ImportError) or "pip install" in message:
        return ModelLoadFailed(
            f"{model_files.name} needs a package that this runtime lacks: {message}",
            f"Update the runtime: {command('runtimes update NAME')}.",
        )
    if isinstance(error, (ValueError, KeyError, NotImplementedError)):
        return ModelIncompatible(
            f"transformers cannot run {model_files.name}: {message}", "Choose another engine or model."
        )
    return ModelLoadFailed(f"{model_files.name} could not be loaded: {message}", "Try another device, engine or model.")
