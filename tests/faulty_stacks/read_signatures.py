"""Print the names and parameters of a real package, for `signatures/`.

    PYTHON read_signatures.py torch > signatures/torch.json

Run it manually with an interpreter that has the package. `torch_directml` is read from the files of its wheel, because
it cannot be imported without an adapter: `python read_signatures.py torch_directml FOLDER`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

# Where names are read: the packages themselves, and the types whose methods are called.
PLACES = {
    "torch": ("", "version", "cuda", "xpu", "backends", "backends.mps", "nn", "nn.functional", "Tensor", "device"),
    "transformers": ("Cache", "AutoModelForCausalLM", "LlamaForCausalLM", "utils.logging"),
    "diffusers": (
        "AceStepPipeline",
        "StableAudioPipeline",
        "StableAudio3Pipeline",
        "AudioLDM2Pipeline",
        "LongCatAudioDiTPipeline",
    ),
    "tokenizers": ("", "Tokenizer", "decoders", "decoders.DecodeStream"),
    "openvino": (
        "Core",
        "Model",
        "Node",
        "Dimension",
        "CompiledModel",
        "InferRequest",
        "opset13",
        "_offline_transformations",
    ),
    "onnxruntime": (
        "",
        "SessionOptions",
        "InferenceSession",
        "OrtEpDevice",
        "OrtHardwareDevice",
        "OrtEpAssignedSubgraph",
    ),
}


def of_module(name: str) -> dict[str, Any]:
    """Return names with their parameters, null if Python does not know them."""
    module = importlib.import_module(name)
    for place in PLACES[name]:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"{name}.{place}" if place else name)
    found: dict[str, list[str] | None] = {}
    for place in PLACES[name]:
        here = module
        for part in filter(None, place.split(".")):
            here = getattr(here, part)
        for entry in dir(here):
            if entry.startswith("_") and (name, entry) != ("diffusers", "__call__"):
                continue
            found[".".join(filter(None, (place, entry)))] = parameters(getattr(here, entry, None))
    return {"package": name, "version": str(module.__version__), "names": dict(sorted(found.items()))}


def parameters(function: Any) -> list[str] | None:
    """Return the parameter names of a function, None if Python does not know them."""
    try:
        return list(inspect.signature(function).parameters) if callable(function) else None
    except (TypeError, ValueError):
        return None


def of_files(name: str, folder: Path) -> dict[str, Any]:
    """Return the module-level functions of a package's files."""
    found: dict[str, list[str] | None] = {}
    for path in sorted((folder / name).glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = [argument.arg for argument in node.args.args]
    version = next(folder.glob(f"{name}-*.dist-info")).name.removesuffix(".dist-info").partition("-")[2]
    return {"package": name, "version": version, "names": dict(sorted(found.items()))}


if __name__ == "__main__":
    read = of_files(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 2 else of_module(sys.argv[1])
    print(json.dumps(read, separators=(",", ":")))
