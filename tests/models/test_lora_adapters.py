"""LoRA adapters: named in the configuration, checked before a load, applied by llama.cpp, part of the stamp."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.child.model_files import OpenedFiles
from backend.common.config.settings import load_settings
from backend.common.engine_api import LoraAdapter
from backend.common.errors import Configuration, ModelBroken
from backend.common.formats.gguf import read_adapter
from backend.engines import LoadRequest
from backend.models import Catalogue
from tests.models.test_stores import put, put_checkpoint
from tests.test_gguf import TEXT, gguf, text, value

TINY = Path(__file__).parents[1] / "cases" / "gguf" / "tiny_no_template.gguf"
F32 = 0
FACTS: list[tuple[str, int, Any]] = [
    ("general.type", TEXT, "adapter"),
    ("general.architecture", TEXT, "llama"),
    ("adapter.type", TEXT, "lora"),
]


def lora(tensors: dict[str, np.ndarray[Any, Any]], facts: list[tuple[str, int, Any]] = FACTS) -> bytes:
    """Return an adapter as llama.cpp's converter writes it, with matrices of 32-bit numbers."""
    alpha = text("adapter.lora.alpha", "<") + struct.pack("<If", 6, 2.0)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts) + 1)
    for key, kind, item in facts:
        head += text(key, "<") + struct.pack("<I", kind) + value(kind, item, "<")
    head, data = head + alpha, b""
    for name, numbers in tensors.items():
        shape = numbers.shape[::-1]
        head += text(name, "<") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32, len(data))
        raw = numbers.astype("<f4").tobytes()
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def pair(name: str, width: int, rows: int, strength: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(3)
    return {
        f"{name}.lora_a": chance.normal(size=(2, width)),
        f"{name}.lora_b": strength * chance.normal(size=(rows, 2)),
    }


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Catalogue]:
    def make(models: str) -> Catalogue:
        (tmp_path / "config.yaml").write_text(f"models: {models}\n")
        return Catalogue(load_settings({}, {}, tmp_path), environ={"HF_HOME": str(tmp_path / "hf")})

    return make


def test_an_adapter_makes_another_model_of_its_base(tmp_path: Path, build: Callable[[str], Catalogue]) -> None:
    base = put(tmp_path / "data" / "models" / "stone.gguf")
    first = put(tmp_path / "first.gguf", lora(pair("blk.0.attn_q.weight", 64, 64)))
    put(tmp_path / "second.gguf", lora(pair("blk.1.attn_q.weight", 64, 64)))
    adapters = "adapters: [{path: first.gguf, scale: 0.5}, {path: second.gguf}]"
    catalogue = build(f"{{tuned: {{base: stone, {adapters}}}, direct: {{path: data/models/stone.gguf, {adapters}}}}}")
    models = {model.id: model for model in catalogue.models()}
    for id_ in ("tuned", "direct"):
        model, entry = models[id_], catalogue.resolve(id_)
        assert (model.state, model.engines, entry.target) == ("ready", ["llama.cpp"], base)
        assert model.details["adapters"][0] == {"path": str(first), "scale": 0.5}
        assert model.name == "stone + first, second" and catalogue.is_own(id_) and not model.removable
    first.write_bytes(b"GGUF")
    assert {model.id: model.state for model in catalogue.models()}["tuned"] == "broken"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "File not found"),
        (gguf(), "is not a LoRA adapter"),
        (lora(pair("x", 8, 8))[:-80], "is truncated"),
        (lora({"x.lora_a": np.ones((2, 8))}), "its matrices do not come in pairs"),
        (lora(pair("x", 8, 8), [*FACTS[:1], ("general.architecture", TEXT, "qwen2"), FACTS[2]]), "is for qwen2 models"),
    ],
)
def test_an_adapter_that_cannot_be_applied_is_named_before_a_load(
    tmp_path: Path, build: Callable[[str], Catalogue], content: bytes | None, reason: str
) -> None:
    put(tmp_path / "data" / "models" / "stone.gguf")
    if content is not None:
        put(tmp_path / "a.gguf", content)
    catalogue = build("{tuned: {base: stone, adapters: [{path: a.gguf}]}}")
    model = {model.id: model for model in catalogue.models()}["tuned"]
    assert model.state == "broken" and model.reason and reason in model.reason and model.remedy
    with pytest.raises(ModelBroken, match=reason):
        catalogue.path_of(catalogue.resolve("tuned"))
    assert {model.id: model.state for model in catalogue.models()}["stone"] == "ready"


def test_an_adapter_as_safetensors_is_refused_with_a_way_out(tmp_path: Path, build: Callable[[str], Catalogue]) -> None:
    put_checkpoint(tmp_path / "llama")
    put(tmp_path / "a.safetensors", b"x")
    catalogue = build("{tuned: {path: llama, adapters: [{path: a.safetensors}]}}")
    model = {model.id: model for model in catalogue.models()}["tuned"]
    assert (
        model.state == "broken" and model.reason == "No engine of this version applies .safetensors adapters to llama."
    )
    assert model.remedy and "convert_lora_to_gguf.py" in model.remedy


def test_a_base_that_does_not_exist_breaks_this_model_alone(build: Callable[[str], Catalogue]) -> None:
    catalogue = build("{tuned: {base: nope, adapters: [{path: a.gguf}]}}")
    model = {model.id: model for model in catalogue.models()}["tuned"]
    assert model.state == "broken" and model.reason and "Its base nope does not exist" in model.reason


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ("{x: {}}", "needs either `path` or `base`"),
        ("{x: {path: a.gguf, base: stone}}", "needs either `path` or `base`"),
        ("{x: {base: stone}}", "has a `base` but no `adapters`"),
        ("{x: {base: stone, task: text, adapters: [{path: a.gguf}]}}", "has its task and engine from its base"),
        ("{x: {base: stone, adapters: [{path: a.gguf, scale: .inf}]}}", "scale"),
        ("{x: {base: stone, adapters: [{path: a.gguf, weight: 1}]}}", "weight"),
        ("{x: {base: stone, adapters: [{scale: 1}]}}", "path"),
    ],
)
def test_settings_that_make_no_model_are_refused(build: Callable[[str], Catalogue], models: str, reason: str) -> None:
    with pytest.raises(Configuration, match=reason):
        build(models)


def test_the_stamp_covers_the_adapters(tmp_path: Path) -> None:
    base, adapter = put(tmp_path / "stone.gguf"), put(tmp_path / "a.gguf", lora(pair("x", 8, 8)))
    files, stamp = OpenedFiles(base, [adapter]).describe(10)
    assert [file.path for file in files] == [str(base), str(adapter)]
    adapter.write_bytes(lora(pair("x", 8, 8, 2.0)))
    _, changed = OpenedFiles(base, [adapter]).describe(10)
    assert stamp and changed and stamp.digest != changed.digest


def test_the_facts_of_an_adapter(tmp_path: Path) -> None:
    adapter = read_adapter(put(tmp_path / "a.gguf", lora({**pair("y", 8, 8), **pair("x", 8, 8)})))
    assert (adapter.architecture, adapter.weights) == ("llama", ("x", "y"))


def test_llama_cpp_applies_an_adapter_with_its_scale(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    from backend.common.formats.gguf import read_header
    from backend.engines._llama.library import open_library
    from backend.engines._llama.loaded_model import load_model

    width = read_header(TINY).sizes["embedding_length"]
    path = put(tmp_path / "a.gguf", lora(pair("blk.0.attn_q.weight", width, width, 4.0)))
    library = open_library()

    def logits(*scales: float) -> np.ndarray[Any, Any]:
        adapters = [LoraAdapter(str(path), scale) for scale in scales]
        return last_logits(load_model(library, LoadRequest("cpu", str(TINY), 64, 1, adapters=adapters)))

    plain, without, full, half = logits(), logits(0.0), logits(1.0), logits(0.5)
    assert np.array_equal(plain, without)
    assert not np.allclose(plain, full) and not np.allclose(half, full) and not np.allclose(half, plain)
    assert np.allclose(logits(0.5, 0.5), full, atol=1e-4), "two adapters of half the strength are one"
    wrong = put(tmp_path / "wrong.gguf", lora(pair("blk.0.attn_q.weight", width + 32, width)))
    with pytest.raises(ModelBroken, match=f"adapter wrong.gguf does not fit {TINY.name}"):
        load_model(library, LoadRequest("cpu", str(TINY), 64, 1, adapters=[LoraAdapter(str(wrong))]))


def last_logits(loaded: Any) -> np.ndarray[Any, Any]:
    """Return the logits after a short prompt."""
    from backend.engines._text.batch_decoder import TextSequence
    from backend.tasks.options import parse_options

    ids = [5, 7, 9, 11]
    options = parse_options("text", {"temperature": 0.0, "raw": True, "max_tokens": 2})
    rows, sequence = loaded.rows(), TextSequence(ids, options, 1, 9, frozenset())
    rows.assign_row(0, sequence)
    rows.prefill(0, sequence, ids, True)
    llama = loaded.library.llama
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(loaded.model))
    at = llama.llama_get_logits_ith(loaded.context, -1)
    return np.array((ctypes.c_float * size).from_address(at))
