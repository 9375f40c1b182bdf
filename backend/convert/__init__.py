"""Makes another engine's form of a model in an environment of its own: of a GGUF file an ONNX Runtime GenAI folder.

GGUF → weights at full precision by transformers → GenAI's own builder, with a tokenizer made from the GGUF's vocabulary
(the one that transformers makes of it cuts words wrongly), and then both forms are compared. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

# torch for processors; newer ones of each need not agree with each other.
REQUIREMENTS = (
    "torch==2.13.0",
    "transformers==5.24.0",
    "accelerate==1.15.0",
    "gguf==0.19.0",
    "onnx==1.23.2",
    "onnx-ir==1.1.0",
    "onnxruntime==1.32.0",
    "onnxruntime-genai==0.18.0",
)
ENVIRONMENT_BYTES = 1_400_000_000  # with torch for processors; the one with CUDA takes over 5 GB
MANIFEST = "touchstone.json"  # in a form: what it was made of, and how far it agrees with that
FOLDER = "converted"  # in the models' folder: converted/ID/FORM


@dataclass(frozen=True)
class Form:
    """What a model can be made into."""

    name: str
    engine: str
    precision: str
    options: dict[str, str] = field(default_factory=dict)


FORMS = {
    form.name: form
    for form in (
        # Of SmolLM2-135M's greedy texts at full precision (8 prompts, 159 tokens), int8 says 111 before the first
        # difference, llama.cpp with the very GGUF 121, int4 by any of the builder's ways 11 to 14: it quantizes anew
        # what was quantized otherwise. Where both are there, int8 is used.
        Form("onnx-int8", "onnx-genai", "int8"),
        Form("onnx-int4", "onnx-genai", "int4", {"algo_config": "rtn", "matmul_mixed_precision": "last_matmul:int8"}),
    )
}


def place_of(models_dir: Path, model: str, form: str) -> Path:
    """Where a form of a model lies."""
    return models_dir / FOLDER / model / form


def work_bytes(source_bytes: int) -> int:
    """Room that is needed meanwhile: the weights at 32 bits, the builder's copy, the result."""
    return source_bytes * 16
