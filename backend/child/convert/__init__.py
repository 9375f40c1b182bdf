"""Makes another engine's form of a model: of a GGUF file or of safetensors an ONNX Runtime GenAI folder, or of a GGUF
file a folder for OpenVINO GenAI.

GGUF → weights at full precision by transformers, with a tokenizer made from the GGUF's vocabulary (the one that
transformers makes of it cuts words wrongly). Either then goes through GenAI's own builder, and both forms are compared.
OpenVINO GenAI reads a GGUF file itself (see `offsets.py` for what it rounds).
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MANIFEST = "touchstone.json"  # in a form: what it was made of, and how far it agrees with that
OWN_RUNTIME = "convert"  # the environment that is there for conversions alone
FOLDER = "converted"  # in the models' folder: converted/ID/FORM


@dataclass(frozen=True)
class Form:
    """What a model can be made into."""

    name: str
    engine: str
    precision: str | None = None  # None: as the source has it
    options: dict[str, str] = field(default_factory=dict)
    runtime: str = OWN_RUNTIME  # in which it is made
    room: int = 16  # times the source, meanwhile: the weights at 32 bits, the builder's copy, the result

    @property
    def of_safetensors(self) -> bool:
        """Whether it can be made of them as well as of a GGUF file."""
        return self.runtime == OWN_RUNTIME


FORMS = {
    form.name: form
    for form in (
        # Of SmolLM2-135M's greedy texts at full precision (8 prompts, 159 tokens), int8 says 111 before the first
        # difference, llama.cpp with the very GGUF 121, int4 by any of the builder's ways 11 to 14: it quantizes anew
        # what was quantized otherwise. Where both are there, int8 is used.
        Form("onnx-int8", "onnx-genai", "int8"),
        # The weights of the GGUF file as they are: 125 of llama.cpp's 176 tokens.
        Form("openvino", "openvino-genai", runtime="openvino", room=4),
        Form("onnx-int4", "onnx-genai", "int4", {"algo_config": "rtn", "matmul_mixed_precision": "last_matmul:int8"}),
    )
}


def place_of(models_dir: Path, model: str, form: str) -> Path:
    """Where a form of a model lies."""
    return models_dir / FOLDER / model / form


def source_bytes(source: Path) -> int:
    """The weights of what a form is made of, by which it is known again. Raises OSError."""
    files = source.glob("*.safetensors") if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files)
