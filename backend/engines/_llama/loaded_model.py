"""Load a GGUF model and its context by llama.h, on the devices and with the sizes of a load request."""

from __future__ import annotations

import contextlib
import ctypes
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.common import error_patterns
from backend.common.errors import DeviceLost, ModelBroken, ModelIncompatible, ModelLoadFailed, TouchstoneError
from backend.common.formats.gguf.vocabulary import Vocabulary
from backend.common.types import Placement, PlacementPart
from backend.devices import split_id
from backend.engines import LoadRequest
from backend.engines._llama import c_api
from backend.engines._llama.batch_model import LlamaBatchModel
from backend.engines._llama.library import Library, LibraryDevice, encode_path
from backend.engines._llama.sampling import Sampling, sampling_threads
from backend.engines._llama.vocabulary import LlamaVocabulary
from backend.engines._memory_errors import LOWER_CONTEXT, does_not_fit

PROMPT_CHUNK_TOKENS = 64  # a cancel takes effect between prefill chunks
CARD_CHUNK_TOKENS = 512
_EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
_ALL_LAYERS = 999
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute|output) buffer size =\s+([\d.]+) MiB")
_OFFLOADED = re.compile(r"offloaded \d+/\d+ layers to GPU")
# ggml's names of devices on which several threads may wait for a step; on the processor there is nothing to wait for.
_SHARED_DEVICES = ("CUDA", "ROCm")
_LAYER = re.compile(r"layer +\d+ assigned to device (\S+?),")
_CAUSE_LINE = re.compile(
    r"error loading model: (.*)|failed to (?:load|open|allocate)[^\n]*|device \S+ does not support [^\n.]*"
    r"|failed to initialize the context: (.*)|unable to allocate [^\n]*"
)


@dataclass
class LoadedModel:
    """A model and its context. Both are freed with the object."""

    library: Library
    model: int
    context: int
    chunk_tokens: int
    slots: int
    log: str
    names: Mapping[str, str] = field(default_factory=dict)  # ggml's names of the devices, and where they are

    def __post_init__(self) -> None:
        self._free = weakref.finalize(self, _free, self.library.llama, self.model, self.context)
        self._free.atexit = False  # a step may still be running

    def close(self) -> None:
        """Free the memory of the model."""
        self._free()

    @property
    def context_tokens(self) -> int:
        """The context of each sequence; the library rounds up what was requested."""
        return int(self.library.llama.llama_n_ctx_seq(self.context))

    def vocabulary(self, file: Vocabulary) -> LlamaVocabulary:
        """Return the model's vocabulary. `file` is what the GGUF file declares."""
        return LlamaVocabulary(self.library.llama, self.library.llama.llama_model_get_vocab(self.model), file)

    def rows(self) -> LlamaBatchModel:
        """Return the model as batch model."""
        llama = self.library.llama
        size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        sizes = (self.slots, self.context_tokens, size)
        window = llama.llama_model_n_swa(self.model)
        can_copy = not (llama.llama_model_is_recurrent(self.model) or llama.llama_model_is_hybrid(self.model))
        threads = sampling_threads() if all(name.startswith(_SHARED_DEVICES) for name in self.names) else 1
        sampling = Sampling(llama, self.context, size, threads)
        return LlamaBatchModel(llama, self.context, sizes, sampling, self.chunk_tokens, window, self, can_copy)


def load_model(
    library: Library, request: LoadRequest, devices: Sequence[LibraryDevice] = (), makes_embeddings: bool = False
) -> LoadedModel:
    """Load a file onto devices; without any, on the processor. `request.context_tokens` is that of each sequence.

    Raises ModelLoadFailed, ModelIncompatible, OutOfMemory.
    """
    path = Path(request.model_path)
    is_card = bool(devices)
    chunk = CARD_CHUNK_TOKENS if is_card else PROMPT_CHUNK_TOKENS
    if makes_embeddings:
        chunk = request.context_tokens  # a text is computed in one piece
    llama = library.llama
    with library.log.collected() as lines, contextlib.ExitStack() as kept:
        params = _model_params(library, request, devices, kept)
        model = llama.llama_model_load_from_file(encode_path(str(path)), params)
        if not model:
            raise load_error(path, "".join(lines), request.context_tokens, library.title)
        if llama.llama_model_has_encoder(model) and not makes_embeddings:
            llama.llama_model_free(model)
            raise ModelIncompatible(
                f"{path.name} is a model with an encoder, which the engine does not run.", "Choose another model."
            )
        context = llama.llama_init_from_model(
            model, _context_params(library, request, chunk, is_card, makes_embeddings)
        )
        if not context:
            llama.llama_model_free(model)
            raise load_error(path, "".join(lines), request.context_tokens, library.title)
        if refused := _apply_adapters(llama, model, context, request, lines):
            _free(llama, model, context)
            raise refused
    names = {device.name: where for device, where in zip(devices, places(request, devices), strict=True)}
    return LoadedModel(library, model, context, chunk, request.slots, "".join(lines), names)


def _apply_adapters(
    llama: Any, model: int, context: int, request: LoadRequest, log: Sequence[str]
) -> ModelBroken | None:
    """Apply the LoRA adapters of the request to the context. Returns the error for one that the library refuses."""
    handles = []
    for adapter in request.adapters:
        handle = llama.llama_adapter_lora_init(model, encode_path(adapter.path))
        if not handle:
            why = [line.strip() for line in "".join(log).splitlines() if "lora" in line]
            reason = why[-1].rpartition(": ")[2].rstrip(".") if why else "llama.cpp logged no reason"
            return ModelBroken(
                f"The LoRA adapter {Path(adapter.path).name} does not fit {Path(request.model_path).name}: {reason}.",
                "Use the adapter with the model that it was trained for.",
            )
        handles.append(handle)
    if handles:
        scales = (ctypes.c_float * len(handles))(*(adapter.scale for adapter in request.adapters))
        listed = (ctypes.c_void_p * len(handles))(*handles)
        if llama.llama_set_adapters_lora(context, listed, len(handles), scales):
            return ModelBroken("llama.cpp refused to apply the LoRA adapters.", "Remove `adapters` of the model.")
    return None


def choose_devices(library: Library, request: LoadRequest, own: int) -> list[LibraryDevice]:
    """Return the devices that a load uses. `own` is the library's handle of the request's device. Raises DeviceLost."""
    listed = library.devices()
    mine = next(device for device in listed if device.handle == own)
    by_address = {device.pci.lower(): device for device in listed if device.pci and device.registry == mine.registry}
    found: list[LibraryDevice] = []
    for address in request.llama.devices:
        if address.lower() not in by_address:
            raise DeviceLost(
                f"{library.title} lists no device at {address} for {request.device}.",
                "Refresh the devices, which lists and proves them again; then rerun the job.",
            )
        found.append(by_address[address.lower()])
    return found or [mine]


def places(request: LoadRequest, devices: Sequence[LibraryDevice]) -> list[str]:
    """Return where the buffers of each device are, for the receipt: the request's device, or another card's address."""
    backend = split_id(request.device)[0]
    own = request.detected_device.identity.get("pci", "") if request.detected_device else ""
    if len(devices) == 1:
        return [request.device]
    return [request.device if device.pci.lower() == own else f"{backend} {device.pci}" for device in devices]


def _model_params(
    library: Library, request: LoadRequest, devices: Sequence[LibraryDevice], kept: contextlib.ExitStack
) -> c_api.ModelParams:
    """Return the parameters. What their pointers refer to lives until `kept` is closed."""
    params = library.llama.llama_model_default_params()
    chosen = request.llama
    handles = (ctypes.c_void_p * (len(devices) + 1))(*(device.handle for device in devices))
    params.devices = ctypes.addressof(handles)
    # A build may hold a card's backend too, as on a Mac: the empty list of devices keeps all layers on the processor.
    params.n_gpu_layers = 0 if not devices else _ALL_LAYERS if chosen.gpu_layers is None else chosen.gpu_layers
    params.split_mode = c_api.SPLIT_LAYER if len(devices) > 1 else c_api.SPLIT_NONE
    references: list[Any] = [handles]
    if len(devices) > 1 and chosen.split:
        shares = (ctypes.c_float * max(library.llama.llama_max_devices(), len(chosen.split)))(*chosen.split)
        params.tensor_split = ctypes.addressof(shares)
        references.append(shares)
    if devices and chosen.expert_layers_in_memory:
        overrides = _expert_overrides(library, chosen.expert_layers_in_memory)
        params.tensor_buft_overrides = ctypes.addressof(overrides)
        references.append(overrides)
    kept.callback(references.clear)
    return params  # type: ignore[no-any-return]


def _expert_overrides(library: Library, layers: int) -> Any:
    """Return the overrides that keep the experts of the first `layers` layers in system memory; -1: of all layers."""
    memory = library.ggml.ggml_backend_cpu_buffer_type()
    patterns = [rf"\.{_EXPERTS}"] if layers < 0 else [rf"blk\.{layer}\.{_EXPERTS}" for layer in range(layers)]
    listed = [c_api.BufferOverride(pattern.encode(), memory) for pattern in patterns]
    return (c_api.BufferOverride * (len(listed) + 1))(*listed, c_api.BufferOverride(None, None))


def _context_params(
    library: Library, request: LoadRequest, chunk: int, is_card: bool, makes_embeddings: bool
) -> c_api.ContextParams:
    params = library.llama.llama_context_default_params()
    chosen = request.llama
    params.n_ctx = request.context_tokens * request.slots
    params.n_batch = params.n_ubatch = max(chunk, request.slots)
    params.n_seq_max = request.slots
    params.n_threads = params.n_threads_batch = request.threads
    params.flash_attn_type = c_api.FLASH_ATTENTION[chosen.flash_attention]
    params.type_k = c_api.CACHE_TYPES[chosen.cache_type_k]
    params.type_v = c_api.CACHE_TYPES[chosen.cache_type_v]
    params.offload_kqv = params.op_offload = is_card
    params.swa_full = False
    params.embeddings = makes_embeddings
    if not makes_embeddings:
        params.n_outputs_max = request.slots  # otherwise the library reserves logits for a chunk of prompt tokens
    return params  # type: ignore[no-any-return]


def placement(loaded: LoadedModel, device: str) -> Placement:
    """Return shares of weight bytes by buffer, as the library logs them.

    On the processor the buffers of the KV cache and of the computation must be there as well.
    """
    found = [(kind, name, float(mib)) for name, kind, mib in _BUFFER.findall(loaded.log)]
    buffers = [(name, mib) for kind, name, mib in found if kind == "model"]
    if not sum(mib for _, mib in buffers):
        return Placement(None, [], "llama.cpp's load log lists no model buffer, so the placement is unknown")
    others = [(f"{name} {kind}", mib) for kind, name, mib in found if kind != "model" and not is_host(name)]
    if device == "cpu" and others:
        return Placement(
            None,
            [],
            f"llama.cpp's load log lists buffers outside the CPU: {_listed(others)}: placement unknown",
        )
    sizes: dict[str, float] = {}
    for name, mib in buffers:
        where = "cpu" if is_host(name) else name if device == "cpu" else loaded.names.get(name, device)
        sizes[where] = sizes.get(where, 0.0) + mib
    total = sum(sizes.values())
    parts = [PlacementPart(where, mib / total) for where, mib in sizes.items()]
    layers = "".join(f"; {match[0]}" for match in [_OFFLOADED.search(loaded.log)] if match)
    evidence = f"model buffer sizes in llama.cpp's load log: {_listed(buffers)}{layers}"
    here = sum(mib for where, mib in sizes.items() if where in (device, *loaded.names.values()))
    return Placement(here / total, parts, evidence)


def _listed(buffers: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {mib:.2f} MiB" for name, mib in buffers)


def is_host(name: str) -> bool:
    """Return whether a buffer is in system memory, which a card may read but does not own."""
    return name.upper().startswith(("CPU", "HOST")) or name.endswith("_Host")


def load_error(path: Path, log: str, context_tokens: int, build: str) -> TouchstoneError:
    """Return the error for a model that the library could not load."""
    lines = [match[1] or match[2] or match[0] for match in _CAUSE_LINE.finditer(log)]
    reason = (lines[0] if lines else "llama.cpp logged no reason").strip().rstrip(".")
    if error_patterns.classify_error_text(log) == "out_of_memory":
        return does_not_fit(f"{path.name} with a context of {context_tokens} tokens", f"{reason}.", LOWER_CONTEXT)
    if "does not support" in reason:
        return ModelIncompatible(f"llama.cpp cannot run models on this device: {reason}.", "Choose another device.")
    if "unknown model architecture" in log or "unsupported" in reason:
        return ModelIncompatible(
            f"{build} cannot run {path.name}: {reason}.",
            "Choose a model of another architecture, or update the runtime.",
        )
    return ModelLoadFailed(f"llama.cpp could not load {path.name}: {reason}.", "Download the model file again.")


def _free(llama: Any, model: int, context: int) -> None:
    llama.llama_free(context)
    llama.llama_model_free(model)
