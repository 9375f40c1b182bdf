"""Text by folders for OpenVINO GenAI, with this project's batching loop for the graph, on Intel's devices.

GenAI's own pipelines sample tokens by other rules, and take one request each or hide where they run. Here options mean
what they mean with the other engines, and OpenVINO's report on the compiled model is the evidence. On a processor that
the provider for ONNX Runtime rejects, the same engine runs on the device `cpu`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.errors import DeviceLost, DeviceNotReady, ModelBroken, ModelLoadFailed, TouchstoneError
from backend.common.types import Placement, PlacementPart
from backend.devices import backends, check_openvino, split_id
from backend.engines import ConvertedForm, Engine, LoadRequest, ModelFormat
from backend.engines._memory_errors import LOWER_CONTEXT, does_not_fit, out_of_memory_message
from backend.engines._openvino.model_files import GRAPH, VOCABULARY, WEIGHTS, OpenvinoFolder, open_folder
from backend.engines._openvino.paged_model import compile_paged_model
from backend.engines._openvino.stateful_model import OpenvinoBatchModel, StatefulBatchModel
from backend.engines._text.agreement import TEXT
from backend.engines._text.batch_decoder import BatchDecoder
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.hf_tokenizer import HfVocabulary
from backend.engines._text.processor_check import ProcessorCheck
from backend.engines._text.session import TextSession

RUNTIME = "openvino"
ENGINE = Engine(
    name="openvino-genai",
    library="openvino",
    runtimes=(RUNTIME,),
    backends=("cpu", *(name for name, facts in backends().items() if RUNTIME in facts.runtimes)),
    tasks=("text", "lyrics"),
    formats=(ModelFormat(name="openvino", files=(GRAPH, WEIGHTS, VOCABULARY, "config.json"), validate=open_folder),),
    # It holds the weights of the GGUF file unchanged: 125 of llama.cpp's 176 tokens before the first difference.
    converted_forms=(ConvertedForm("openvino", 20, runtime=RUNTIME, space_factor=4),),
    batches=True,
    proves_itself=True,
    options=frozenset(
        "max_tokens temperature top_p top_k seed stop repetition_penalty presence_penalty frequency_penalty"
        " logit_bias logprobs raw tools".split()
    ),
)
_LIBRARY_BYTES = 200_000_000
_KINDS = {"cpu": "CPU", "npu": "NPU"}


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of the weights (twice, OpenVINO repacks them), the KV cache and the library."""
    folder = open_folder(Path(model_path))
    if folder.cache_bytes_per_token is None:
        return None
    context = min(context_tokens, folder.context_length or context_tokens)
    return 2 * folder.weight_bytes + folder.cache_bytes_per_token * context * slots + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Find the libraries without importing them; return their versions.

    ONNX Runtime's provider contains another OpenVINO, and both cannot be imported into one process.
    """
    from importlib.metadata import version

    for name in ("openvino", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return {name: version(name) for name in ("openvino", "tokenizers")}


def prove(device: str, detected: DetectedDevice) -> dict[str, str]:
    """Compute on a device through OpenVINO. Returns why data types are unusable.

    Raises WrongResult, DeviceLost, DeviceNotReady, ImportError, OSError, and OpenVINO's exceptions.
    """
    import openvino

    core = openvino.Core()
    request = LoadRequest(device, "", 0, 1, detected_device=detected)
    return check_openvino(core, _kind_of(core, request))


def load(request: LoadRequest) -> TextSession:
    """Load a folder.

    Raises ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, DeviceNotReady, DeviceWrong.
    """
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
        tokens = HfVocabulary(content, begin, folder.ends, folder.vocabulary_size)
        comparison = ProcessorCheck(
            ENGINE.name, replace(request, context_tokens=context), folder.path.name, check(), 2 * folder.weight_bytes
        )
        ids = tokens.encode(TEXT) or [0]
        if comparison.is_due:

            def copy() -> OpenvinoBatchModel:
                exact = {"INFERENCE_NUM_THREADS": request.threads, "INFERENCE_PRECISION_HINT": "f32"}
                compiled = core.compile_model(core.read_model(str(folder.graph)), "CPU", exact)
                return StatefulBatchModel(compiled, 1, folder.path.name)

            comparison.read_copy_model(copy, ids)
        comparison.verify(rows, ids)

    def find_placement() -> Placement:
        return comparison.add_to(_placement(rows.compiled, request.device, kind))

    return TextSession(
        BatchDecoder(rows, request.slots),
        tokens,
        chat,
        context,
        find_placement(),
        request.threads,
        check(),
        find_placement=find_placement,
    )


def _rows(
    core: Any, folder: OpenvinoFolder, kind: str, request: LoadRequest, context_tokens: int
) -> OpenvinoBatchModel:
    """Compile the model: with a paged KV cache on the CPU if the graph allows it, otherwise with stateful requests."""
    if kind == "CPU":
        options = {"INFERENCE_NUM_THREADS": request.threads}
        paged = compile_paged_model(core, folder.graph, kind, options, request.slots, context_tokens)
        if paged:
            return paged
    else:
        options = {}
    compiled = core.compile_model(core.read_model(str(folder.graph)), kind, options)
    return StatefulBatchModel(compiled, request.slots, folder.path.name)


def _kind_of(core: Any, request: LoadRequest) -> str:
    """Return OpenVINO's name of the device. Raises DeviceLost if none matches, DeviceNotReady if several do."""
    listed: list[str] = list(core.available_devices)
    if split_id(request.device)[0] == "cpu":
        return "CPU"
    detected = request.detected_device
    kind = _KINDS.get(detected.kind if detected else "cpu", "GPU")
    same_kind = [name for name in listed if name.split(".")[0] == kind]
    matching = same_kind
    if len(same_kind) > 1 or (detected and "luid" in detected.identity):
        matching = [name for name in same_kind if detected and _is_it(core, name, detected)]
    if not matching:
        raise DeviceLost(
            f"OpenVINO lists {', '.join(listed) or 'no device'}; none of them is {request.device}.",
            "Refresh the devices, which lists and proves them again; then rerun the job.",
        )
    if len(matching) > 1:
        raise DeviceNotReady(
            f"OpenVINO lists {', '.join(listed)}; more than one of them can be {request.device}.",
            "Choose the device cpu, or another engine.",
        )
    return matching[0]


def _is_it(core: Any, name: str, detected: DetectedDevice) -> bool:
    """Return whether a card of OpenVINO is the detected device, by LUID or name.

    `ov::device::LUID` is printed as its eight bytes in the order of memory, the lowest first.
    """
    if luid := detected.identity.get("luid"):
        high, low = (int(part, 16) for part in luid.split("_"))
        reported = str(core.get_property(name, "DEVICE_LUID")).strip().lower()
        return reported == (high << 32 | low).to_bytes(8, "little").hex()
    return str(core.get_property(name, "FULL_DEVICE_NAME")).startswith(detected.name)


def _placement(compiled: Any, device: str, kind: str) -> Placement:
    """Return the placement that the library reports."""
    listed: list[str] = list(compiled.get_property("EXECUTION_DEVICES"))
    on_device = [name for name in listed if name == kind]
    if not listed:
        return Placement(None, [], "OpenVINO does not report where the model runs.")
    parts = [PlacementPart(device, len(on_device) / len(listed))]
    parts += [PlacementPart(name.lower(), 1 / len(listed)) for name in listed if name != kind]
    evidence = f"OpenVINO's EXECUTION_DEVICES of the model: {', '.join(listed)}."
    return Placement(len(on_device) / len(listed), parts, evidence)


def _load_error(folder: OpenvinoFolder, error: Exception) -> TouchstoneError:
    name = folder.path.name
    if no_memory := out_of_memory_message(error):
        return does_not_fit(name, no_memory, LOWER_CONTEXT)
    message = f"{error}".strip()[-600:]
    if any(part in message.lower() for part in ("xml", "weights", "unexpected end")):
        return ModelBroken(f"{name} is damaged: {message}", "Download the complete folder again.")
    return ModelLoadFailed(f"{name} could not be loaded: {message}", "Try another device, engine or model.")
