"""Convert a model to the form of another engine: GGUF or safetensors to ONNX Runtime GenAI, GGUF to OpenVINO GenAI.

The engines declare the forms (`Engine.converted_forms`). A GGUF file is first turned into weights at full precision by
transformers, with a tokenizer made from the GGUF vocabulary (the one that transformers derives splits words wrongly).
ONNX Runtime GenAI's builder then makes the form, and the outputs of source and form are compared. OpenVINO GenAI reads
a GGUF file directly (`offsets.py` says what it rounds). Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backend.engines import engines

MANIFEST = "touchstone.json"  # in a form: what it was made of, and how far it agrees with that
OWN_RUNTIME = "convert"  # the environment that is there for conversions alone
FOLDER = "converted"  # in the models' folder: converted/ID/FORM


@dataclass(frozen=True)
class Form:
    """What a model can be made into."""

    name: str
    engine: str
    precision: str | None = None  # None: as the source has it
    options: Mapping[str, str] = field(default_factory=dict)
    runtime: str = OWN_RUNTIME  # in which it is made
    room: int = 16  # times the source, meanwhile: the weights at 32 bits, the builder's copy, the result

    @property
    def of_safetensors(self) -> bool:
        """Whether it can be made of them as well as of a GGUF file."""
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
    """Where a form of a model lies."""
    return models_dir / FOLDER / model / form


def source_bytes(source: Path) -> int:
    """The weights of what a form is made of, by which it is known again. Raises OSError."""
    files = source.glob("*.safetensors") if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files)
