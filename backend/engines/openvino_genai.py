"""Text by folders for OpenVINO GenAI: their graph and vocabulary, driven by our own loop, on Intel's devices.

GenAI's own pipelines choose tokens by rules of theirs and take one text each or hide where they run; here options mean
what they mean with the other engines, and the library's own word on the compiled model is the evidence. On a processor
that the provider for ONNX Runtime refuses, the same engine runs on the device `cpu`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from backend.common import error_patterns
from backend.common.device_api import DetectedDevice
from backend.common.errors import DeviceNotReady, ModelBroken, ModelLoadFailed, OutOfMemory, TouchstoneError
from backend.common.types import Placement, PlacementPart
from backend.devices import backends, split_id
from backend.engines import Engine, LoadRequest
from backend.engines._openvino.model_files import GRAPH, VOCABULARY, WEIGHTS, OpenvinoFolder, open_folder
from backend.engines._openvino.paged_model import paged_rows
from backend.engines._openvino.stateful_model import OpenvinoRows, StatefulRows
from backend.engines._text.batch_decoder import Decoder
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.hf_tokenizer import HfTokens
from backend.engines._text.session import TextSession

RUNTIME = "openvino"
ENGINE = Engine(
    name="openvino-genai",
    library="openvino",
    runtimes=(RUNTIME,),
    backends=("cpu", *(name for name, facts in backends().items() if RUNTIME in facts.runtimes)),
    tasks=("text", "lyrics"),
    suffixes=(),
    files=(GRAPH, WEIGHTS, VOCABULARY, "config.json"),
    batches=True,
    options=frozenset(
        "max_tokens temperature top_p top_k seed stop repetition_penalty presence_penalty frequency_penalty"
        " logit_bias logprobs raw tools".split()
    ),
)
_LIBRARY_BYTES = 200_000_000
_KINDS = {"cpu": "CPU", "npu": "NPU"}


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Weights, which OpenVINO lays out anew, the cache, and the library."""
    folder = open_folder(Path(model_path))
    if folder.cache_bytes_per_token is None:
        return None
    context = min(context_tokens, folder.context_length or context_tokens)
    return 2 * folder.weight_bytes + folder.cache_bytes_per_token * context * slots + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Finds the libraries. They are not imported beside ONNX Runtime's provider, which brings another OpenVINO."""
    from importlib.metadata import version

    for name in ("openvino", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return {name: version(name) for name in ("openvino", "tokenizers")}


def load(request: LoadRequest) -> TextSession:
    """Loads a folder. Raises ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, DeviceNotReady."""
    import openvino

    folder = open_folder(Path(request.model_path))
    core = openvino.Core()
    kind = _kind_of(core, request)
    chat = Chat(folder.chat_template, folder.names, folder.control_marks)
    context = min(request.context_tokens, folder.context_length or request.context_tokens)
    with chat.kept_if_loaded(lambda error: _load_error(folder, error)):
        rows = _rows(core, folder, kind, request, context)
        begin = folder.names.get("bos_token") if folder.begins_with_bos else None
        content = (folder.path / VOCABULARY).read_text(encoding="utf-8")
        tokens = HfTokens(content, begin, folder.ends, folder.vocabulary_size)
        rows.try_out(tokens.encode("A touchstone shows what is gold.") or [0])
    placement = _placement(rows.compiled, request.device, kind)
    return TextSession(Decoder(rows, request.slots), tokens, chat, context, placement, request.threads, check())


def _rows(core: Any, folder: OpenvinoFolder, kind: str, request: LoadRequest, context_tokens: int) -> OpenvinoRows:
    """The model with a row for each text: on the processor all rows in one pass, if its graph can be rewritten so."""
    if kind == "CPU":
        options = {"INFERENCE_NUM_THREADS": request.threads}
        paged = paged_rows(core, folder.graph, kind, options, request.slots, context_tokens)
        if paged:
            return paged
    else:
        options = {}
    compiled = core.compile_model(core.read_model(str(folder.graph)), kind, options)
    return StatefulRows(compiled, request.slots, folder.path.name)


def _kind_of(core: Any, request: LoadRequest) -> str:
    """The device as OpenVINO names it. Raises DeviceNotReady where it does not tell which it is."""
    listed: list[str] = list(core.available_devices)
    if split_id(request.device)[0] == "cpu":
        return "CPU"
    found = request.detected_device
    wanted = _KINDS.get(found.kind if found else "cpu", "GPU")
    same = [name for name in listed if name.split(".")[0] == wanted]
    matching = [name for name in same if found and _is_it(core, name, found)] if len(same) > 1 else same
    if len(matching) != 1:
        raise DeviceNotReady(
            f"OpenVINO lists {', '.join(listed) or 'no device'}, and which of them is {request.device} cannot be told.",
            "Choose the device cpu, or another engine.",
        )
    return matching[0]


def _is_it(core: Any, name: str, found: DetectedDevice) -> bool:
    """Whether one of OpenVINO's cards is the one that was listed, by its LUID or its name."""
    if luid := found.identity.get("luid"):
        told = str(core.get_property(name, "DEVICE_LUID")).lower()
        return told == luid.replace(":", "").replace("-", "").lower()
    return str(core.get_property(name, "FULL_DEVICE_NAME")).startswith(found.name)


def _placement(compiled: Any, device: str, kind: str) -> Placement:
    """Where the library says that it computes."""
    told: list[str] = list(compiled.get_property("EXECUTION_DEVICES"))
    here = [name for name in told if name == kind]
    if not told:
        return Placement(None, [], "OpenVINO does not tell where the model runs.")
    parts = [PlacementPart(device, len(here) / len(told))]
    parts += [PlacementPart(name.lower(), 1 / len(told)) for name in told if name != kind]
    return Placement(len(here) / len(told), parts, f"OpenVINO's EXECUTION_DEVICES of the model: {', '.join(told)}.")


def _load_error(folder: OpenvinoFolder, error: Exception) -> TouchstoneError:
    told = f"{error}".strip()[-600:]
    if error_patterns.classify_error_text(told) == "out_of_memory":
        return OutOfMemory(
            f"{folder.path.name} does not fit into memory: {told}",
            "Lower text.context_tokens or text.slots in config.yaml, or choose a smaller model.",
        )
    if any(words in told.lower() for words in ("xml", "weights", "unexpected end")):
        return ModelBroken(f"{folder.path.name} is damaged: {told}", "Fetch the whole folder again.")
    return ModelLoadFailed(f"{folder.path.name} could not be loaded: {told}", "Try another device, engine or model.")
