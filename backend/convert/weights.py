"""The step that needs torch: runs in the converting environment alone, started by `child weights`.

GGUF → full precision by transformers' `gguf_file` → a plain checkpoint → the builder of ONNX Runtime GenAI.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """`weights read SOURCE CHECKPOINT` or `weights build CHECKPOINT OUTPUT PRECISION [KEY=VALUE …]`."""
    step, *rest = arguments
    if step == "read":
        _read(Path(rest[0]), Path(rest[1]))
    else:
        _build(Path(rest[0]), Path(rest[1]), rest[2], rest[3:])
    return 0


def _read(source: Path, checkpoint: Path) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32
    )
    # transformers does not save what it loaded from a GGUF file: the weights move into a plain model.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(checkpoint)
    written = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    written.pop("quantization_config", None)
    (checkpoint / "config.json").write_text(json.dumps(written), encoding="utf-8")


def _build(checkpoint: Path, output: Path, precision: str, options: list[str]) -> None:
    import onnxruntime_genai

    folder = Path(onnxruntime_genai.__file__).parent / "models"
    sys.path.insert(0, str(folder))  # the builder imports its neighbours by their plain names
    sys.argv = [
        "builder",
        *("-i", str(checkpoint), "-o", str(output), "-p", precision, "-e", "cpu", "-c", str(output) + ".cache"),
        *("--extra_options", "hf_token=false", "prune_lm_head=true", *options),
    ]
    runpy.run_path(str(folder / "builder.py"), run_name="__main__")
