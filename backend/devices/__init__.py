"""Backends: one file per way to reach hardware. A new backend is a new file here.

A backend file defines `BACKEND` (see `common/device_api.py`): its facts, the libraries that reach its devices, and the
variables that hide them. Third-party imports belong inside functions, because the server reads the facts without the
libraries. An engine opens a device by `torch_place` or `onnx_place` and knows no provider.
"""

from __future__ import annotations

from backend.common.device_api import (
    Backend,
    DetectedDevice,
    DeviceAbsent,
    InstallOffer,
    UnusableDataType,
    WrongResult,
    detected_device_from,
)
from backend.devices._mechanisms.card_list import watched_cards
from backend.devices._mechanisms.card_processes import DriverWitness, driver_witness
from backend.devices._mechanisms.ggml import GgmlAccess
from backend.devices._mechanisms.ggml_proof import check_processor
from backend.devices._mechanisms.identity import hardware_id, is_instance, uuid_text
from backend.devices._mechanisms.llama_builds import LIBRARIES_FILE, LlamaBuild, LlamaLibraries, find_build
from backend.devices._mechanisms.openvino_proof import check_openvino
from backend.devices._mechanisms.proof_record import is_unsupported
from backend.devices._placement import ggml_place, onnx_place, torch_place
from backend.devices._registry import (
    INDEX_LIMIT,
    backends,
    backends_of,
    device_id,
    has_compile_cache,
    is_installed,
    known_options,
    libraries,
    library_of,
    llama_runtimes,
    mechanism,
    prove,
    split_id,
)
from backend.devices._visibility import show_all_devices, show_only, visibility_variables

__all__ = [
    "INDEX_LIMIT",
    "LIBRARIES_FILE",
    "Backend",
    "DetectedDevice",
    "DeviceAbsent",
    "DriverWitness",
    "GgmlAccess",
    "InstallOffer",
    "LlamaBuild",
    "LlamaLibraries",
    "UnusableDataType",
    "WrongResult",
    "backends",
    "backends_of",
    "check_openvino",
    "check_processor",
    "detected_device_from",
    "device_id",
    "driver_witness",
    "find_build",
    "ggml_place",
    "hardware_id",
    "has_compile_cache",
    "is_installed",
    "is_instance",
    "is_unsupported",
    "known_options",
    "libraries",
    "library_of",
    "llama_runtimes",
    "mechanism",
    "onnx_place",
    "prove",
    "show_all_devices",
    "show_only",
    "split_id",
    "torch_place",
    "uuid_text",
    "visibility_variables",
    "watched_cards",
]
