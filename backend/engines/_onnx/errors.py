"""Translate exceptions of ONNX Runtime into errors with a remedy.

The patterns match the messages of ONNX Runtime 1.32: `core/graph/model.cc`, `model_load_utils.h`, `graph.cc`,
`bfc_arena.cc`.
"""

from __future__ import annotations

import re

from backend.common import error_patterns
from backend.common.commands import command
from backend.common.errors import (
    DeviceLost,
    ModelBroken,
    ModelIncompatible,
    ModelLoadFailed,
    TouchstoneError,
    Validation,
)
from backend.engines._memory_errors import ran_out_of_memory

_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_OPSET = re.compile(r"Opset (\d+) is under development.*?domain (\S+) is till opset (\d+)", re.DOTALL)
_UNKNOWN = re.compile(
    r"([\w.]*):(\w+)\(-?\d*\) is not a registered function/op|No Op registered for (\S+) with domain_version of (\d+)"
)
_NO_KERNEL = re.compile(r"Could not find an implementation for (\S+?)\((\d+)\) node with name '([^']*)'")
_UNSUPPORTED = re.compile(r"[^\n:)]{0,300}\b(?:not supported|NOT_IMPLEMENTED|not implemented)\b[^\n.]*")
_NO_FLOAT16 = re.compile(
    r"requires f16|'?f16'? type used without|extension '?f16'? is not allowed|shader-?f16"
    r"|\b(?:fp16|float16|f16|half)\b[^\n]{0,80}?\b(?:not supported|unsupported|not available|not implemented)\b"
    r"|\bdoes not support\b[^\n]{0,60}?\b(?:fp16|float16|f16|half)\b",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(r"This session contains graph nodes that are assigned to the default CPU EP")
_SIZE = re.compile(r"requested buffer of size (\d+)")
_PREFIX = re.compile(r"^\[ONNXRuntimeError\]\s*:\s*\d+\s*:\s*\w+\s*:\s*(?:Load model from .*? failed:\s*)?", re.DOTALL)
_SOURCE = re.compile(r"/?\S*onnxruntime\S*\.(?:cc|h):\d+ .*?\) (?=[A-Z])", re.DOTALL)
_READ_CHARS = 4_000  # of a message: it may contain names from an untrusted file, and the patterns are not linear


def translate_error(error: Exception, name: str, loading: bool) -> TouchstoneError:
    """Return the error for an exception of ONNX Runtime."""
    if isinstance(error, TouchstoneError):
        return error
    text = str(error)[:_READ_CHARS]
    plain = f"{_SOURCE.sub('', _PREFIX.sub('', text)).strip()[:500].rstrip('.')}."
    translated = _incompatible(text, plain, name) or _machine_error(error, text, plain, name)
    if translated:
        return translated
    if "INVALID_PROTOBUF" in text:
        return ModelBroken(f"{name} is not an ONNX file, or is truncated.", "Download it again from its source.")
    if "escapes model directory" in text or "External data path" in text:
        return ModelBroken(
            f"{name} refers to data outside its folder, which is not loaded.", "Download it from a source you trust."
        )
    if loading:
        kind = ModelBroken if "INVALID_GRAPH" in text else ModelLoadFailed
        return kind(f"{name} cannot be loaded: {plain}", "Check the model with its exporter, or export it again.")
    return Validation(
        f"{name} could not compute these inputs: {plain}",
        "Send inputs that match the graph: `onnx inspect` lists names, types and shapes.",
        fields=["inputs"],
    )


def _incompatible(text: str, plain: str, name: str) -> ModelIncompatible | None:
    """Return the error for a valid graph that this runtime or device does not support, otherwise None."""
    if found := _IR.search(text):
        return ModelIncompatible(
            f"{name} has ONNX IR version {found[1]}; this runtime reads up to {found[2]}.",
            f"Update the runtime (`{command('runtimes update')}`), or export the model again with an older version.",
        )
    if found := _OPSET.search(text):
        return ModelIncompatible(
            f"{name} needs operator set {found[1]} of {found[2]}; this runtime supports up to {found[3]}.",
            f"Export the model again with operator set {found[3]} or less, or update the runtime.",
        )
    if found := _UNKNOWN.search(text):
        operator = f"{found[1]}::{found[2]}" if found[2] else f"{found[3]} of operator set {found[4]}"
        return ModelIncompatible(
            f"{name} uses the operator {operator.removeprefix('::')}, which this runtime does not have.",
            "If an operator library provides it, add that library to `onnx.operator_libraries` in config.yaml.",
        )
    if found := _NO_KERNEL.search(text):
        return ModelIncompatible(
            f"{name} uses {found[1]} (version {found[2]}, node {found[3]!r}) with unsupported data types.",
            "Export the model with other types, for example float32.",
        )
    if _NO_FLOAT16.search(text):
        return ModelIncompatible(
            f"{name} computes in float16, which this device cannot: {plain}",
            "Choose another device, or export the model in float32.",
        )
    if found := _UNSUPPORTED.search(text):
        return ModelIncompatible(
            f"{name} uses a feature that this runtime does not support: {found[0].strip()[:300]}.",
            "Export the model with other settings, or choose another device.",
        )
    if _ELSEWHERE.search(text):
        return ModelIncompatible(
            f"The device does not support all nodes of {name}.",
            "Choose another device, or run `onnx inspect` on the device cpu.",
        )
    return None


def _machine_error(error: Exception, text: str, plain: str, name: str) -> TouchstoneError | None:
    code = error_patterns.classify_error_text(text)
    if code == "out_of_memory" or isinstance(error, MemoryError):
        size = f" ({int(found[1]) / 1e9:.1f} GB at once)" if (found := _SIZE.search(text)) else ""
        return ran_out_of_memory(f"{name}{size}", plain, "Send smaller inputs, or choose another device.")
    if code == "device_lost":
        return DeviceLost(f"The device was lost: {plain}", "Rerun the job; if the error repeats, refresh the device.")
    return None
