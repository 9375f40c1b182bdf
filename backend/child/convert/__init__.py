"""Convert a model to the form of another engine: GGUF or safetensors to ONNX Runtime GenAI, GGUF to OpenVINO GenAI.

The engines declare the forms (`Engine.converted_forms`). A GGUF file is first turned into weights at full precision by
transformers, with a tokenizer made from the GGUF vocabulary (the one that transformers derives splits words wrongly).
ONNX Runtime GenAI's builder then makes the form, and the outputs of source and form are compared. OpenVINO GenAI reads
a GGUF file directly (`offsets.py` corrects what it rounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backend.engines import engines

MANIFEST = "touchstone.json"  # in a form: its source, and how far their outputs agree
OWN_RUNTIME = "convert"  # the environment for conversions
FOLDER = "converted"  # in the folder of models: converted/ID/FORM


@dataclass(frozen=True)
class Form:
    """A form that a model can be converted to."""

    name: str
    engine: str
    precision: str | None = None  # None: that of the source
    options: Mapping[str, str] = field(default_factory=dict)
    runtime: str = OWN_RUNTIME  # the environment that converts
    room: int = 16  # disk space as a multiple of the source: 32-bit weights, the builder's copy, the result

    @property
    def of_safetensors(self) -> bool:
        """Whether safetensors can be converted to it, as well as a GGUF file."""
        return self.runtime == OWN_RUNTIME


def _declared_forms() -> dict[str, Form]:
    """Return the forms of all engines by name, the preferred ones first."""
    declared = [(form, engine.name) for engine in engines().values() for form in engine.converted_forms]
    return {
        form.name: Form(
            form.name, engine, form.precision, form.options, form.runtime or OWN_RUNTIME, room=form.space_factor
        )
        for form, engine in sorted(declared, key=lambda pair: pair[0].preference)
    }


FORMS = _declared_forms()


def reference_engine(source: Path) -> str:
    """Return the engine whose output a form of a model file is compared with: it runs without an optional runtime."""
    suffix = source.suffix.lower()
    return next(name for name, engine in engines().items() if suffix in engine.suffixes and "base" in engine.runtimes)


def place_of(models_dir: Path, model: str, form: str) -> Path:
    """Return the folder of a form of a model."""
    return models_dir / FOLDER / model / form


def source_bytes(source: Path) -> int:
    """Return the size of a source's weights, which identifies it. Raises OSError."""
    files = source.glob("*.safetensors") if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files)
