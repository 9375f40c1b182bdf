"""The engine openvino-genai on fakes: single texts and batches, the device by name, evidence, errors."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.common.device_api import DetectedDevice
from backend.common.errors import (
    DeviceLost,
    DeviceNotReady,
    DeviceWrong,
    ModelBroken,
    ModelIncompatible,
    ModelLoadFailed,
    OutOfMemory,
)
from backend.engines import LoadRequest, RunRequest, load_engine
from backend.engines._openvino.model_files import open_folder
from backend.engines._openvino.paged_model import PagedBatchModel
from backend.engines._openvino.stateful_model import StatefulBatchModel
from backend.engines._text.session import TextSession
from backend.tasks.options import parse_options
from tests.faulty_stacks.environments import PACKAGES
from tests.tiny_genai import write_tokenizer

SIZES = {"num_attention_heads": 1, "num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 258, "eos_token_id": 257}
PROMPTS = ["a", "Tell me of rivers and mills. " * 5, "Why?", "b" * 150]
CARD = DetectedDevice(
    "Intel Arc B580", "gpu", "pci:0000:03:00.0", None, None, identity={"luid": "0x00000000_0x0000d98b"}
)
STAND_INS = ("openvino", "openvino._offline_transformations", "openvino.opset13", "tokenizers", "tokenizers.decoders")
CARDS = {
    "CPU": {},
    "GPU.0": {"DEVICE_LUID": "aaaa000000000000", "FULL_DEVICE_NAME": "Intel Arc A380 (dGPU)"},
    "GPU.1": {"DEVICE_LUID": "8bd9000000000000", "FULL_DEVICE_NAME": "Intel Arc B580 (dGPU)"},
}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the stand-in does."""
    monkeypatch.syspath_prepend(str(PACKAGES))
    for name in STAND_INS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(load_engine("openvino-genai"), "check", dict)
    yield importlib.import_module("openvino").PLAN
    for name in STAND_INS:
        sys.modules.pop(name, None)


def write_model(folder: Path) -> Path:
    """A folder as optimum-intel names its files."""
    folder.mkdir()
    (folder / "openvino_model.xml").write_text("<net/>")
    (folder / "openvino_model.bin").write_bytes(b"0" * 1000)
    (folder / "config.json").write_text(json.dumps({**SIZES, "max_position_embeddings": 512}))
    write_tokenizer(folder)
    return folder


def opened(folder: Path, device: str = "cpu", found: DetectedDevice | None = None) -> TextSession:
    session = load_engine("openvino-genai").load(LoadRequest(device, str(folder), 300, 1, 3, detected_device=found))
    assert isinstance(session, TextSession)
    return session


def said(session: TextSession, prompt: str, **options: Any) -> str:
    texts: list[str] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        texts.extend([data["text"]] if event == "token" else [])
        return False

    chosen = parse_options("text", {"temperature": 0, "max_tokens": 40, **options})
    session.run(RunRequest(None, prompt, chosen, 1, False), emit)
    return "".join(texts)


def test_a_text_among_others_is_the_text_alone(plan: dict[str, Any], tmp_path: Path) -> None:
    session = opened(write_model(tmp_path / "m"))
    alone = [said(session, prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: said(session, prompt), PROMPTS)) == alone
    assert len(set(alone)) == len(PROMPTS)
    assert said(session, "a", logit_bias={str(ord("q")): 100}, max_tokens=5) == "qqqqq"


def test_in_one_pass_over_a_cache_of_blocks_texts_are_those_of_a_request_each(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m")
    prompts = [*PROMPTS, "Ünïcödé", "of mills"]
    alone = [said(opened(folder), prompt) for prompt in prompts]
    plan["rewritten"] = True
    session = opened(folder)
    assert isinstance(session._decoder._model, PagedBatchModel)
    assert [said(session, prompt) for prompt in prompts] == alone
    with ThreadPoolExecutor(len(prompts)) as pool:  # of three rows: those that end early free theirs, and others move
        lengths = [7, 40, 12, 40, 3, 25]
        found = list(pool.map(lambda prompt, length: said(session, prompt, max_tokens=length), prompts, lengths))
    assert all(text.startswith(short) for text, short in zip(alone, found, strict=True))
    assert sum(map(bool, found)) > 3  # a few tokens may show nothing


@pytest.mark.parametrize(("other", "device"), [({"own_state": True}, "cpu"), ({"listed": CARDS}, "onnx-openvino:1")])
def test_what_cannot_be_rewritten_and_what_is_on_a_card_has_a_request_each(
    plan: dict[str, Any], tmp_path: Path, other: dict[str, Any], device: str
) -> None:
    plan |= {"rewritten": True, **other}
    session = opened(write_model(tmp_path / "m"), device, None if device == "cpu" else CARD)
    assert isinstance(session._decoder._model, StatefulBatchModel) and said(session, PROMPTS[1])


def test_the_card_is_found_by_its_luid_and_the_evidence_is_the_library_s_word(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    plan["listed"] = CARDS
    placement = opened(write_model(tmp_path / "m"), "onnx-openvino:1", CARD).placement
    assert placement.on_device == 1.0
    assert placement.evidence.startswith("OpenVINO's EXECUTION_DEVICES of the model: GPU.1. Its next-token")


@pytest.mark.parametrize("least", [1, 40])
def test_a_card_that_computes_wrongly_is_found_beside_the_processor(
    plan: dict[str, Any], tmp_path: Path, least: int
) -> None:
    plan |= {"listed": CARDS, "wrong_from": least}
    request = LoadRequest("onnx-openvino:1", str(write_model(tmp_path / "m")), 400, 1, 2, detected_device=CARD)
    request = replace(request, check_bytes=10**9)
    evidence = load_engine("openvino-genai").load(request).placement.evidence
    assert "Over 18 tokens its log probabilities were within" in evidence
    plan["wrong_on"] = "GPU.1"
    with pytest.raises(DeviceWrong, match="onnx-openvino:1 computes m wrongly"):
        load_engine("openvino-genai").load(request)


def test_what_runs_elsewhere_is_not_called_the_card(plan: dict[str, Any], tmp_path: Path) -> None:
    plan |= {"listed": CARDS, "runs": ["CPU"]}
    placement = opened(write_model(tmp_path / "m"), "onnx-openvino:1", CARD).placement
    assert placement.on_device == 0 and placement.parts[1].where == "cpu"


def test_a_card_that_cannot_be_told_is_not_guessed(plan: dict[str, Any], tmp_path: Path) -> None:
    plan["listed"] = {"GPU.0": CARDS["GPU.1"], "GPU.1": CARDS["GPU.1"]}
    with pytest.raises(DeviceNotReady, match="GPU.0, GPU.1; more than one of them can be onnx-openvino:1"):
        opened(write_model(tmp_path / "m"), "onnx-openvino:1", CARD)


@pytest.mark.parametrize("listed", [["GPU.0"], ["GPU.0", "GPU.0"]])
def test_a_card_that_is_gone_is_not_replaced_by_another(
    plan: dict[str, Any], tmp_path: Path, listed: list[str]
) -> None:
    plan["listed"] = {f"GPU.{place}": CARDS[name] for place, name in enumerate(listed)}
    with pytest.raises(DeviceLost, match="none of them is onnx-openvino:1"):
        opened(write_model(tmp_path / "m"), "onnx-openvino:1", CARD)


@pytest.mark.parametrize(
    ("broken", "kind", "words"),
    [
        ({"no_state": True}, ModelIncompatible, "keeps no state"),
        ({"inputs": ["input_ids", "pixel_values"]}, ModelIncompatible, "its graph has pixel_values"),
        ({"shift": 3}, ModelIncompatible, "does not match a full forward pass"),
        ({"fails": "Check failed: Incorrect weights in bin file!"}, ModelBroken, "damaged"),
        ({"fails": "[GPU] clCreateBuffer: out of memory"}, OutOfMemory, "does not fit"),
        ({"fails": "[NPU] unsupported"}, ModelLoadFailed, "could not be loaded"),
    ],
)
def test_what_does_not_load_is_said(
    plan: dict[str, Any], tmp_path: Path, broken: dict[str, Any], kind: type[Exception], words: str
) -> None:
    plan |= broken
    with pytest.raises(kind, match=words):
        opened(write_model(tmp_path / "m"))


@pytest.mark.parametrize("name", ["openvino_model.bin", "tokenizer.json", "config.json"])
def test_a_folder_that_lacks_a_file_is_damaged(tmp_path: Path, name: str) -> None:
    (write_model(tmp_path / "m") / name).unlink()
    with pytest.raises(ModelBroken, match=f"has no {name}"):
        open_folder(tmp_path / "m")


def test_the_estimate_has_the_cache_of_all_slots(tmp_path: Path) -> None:
    engine, folder = load_engine("openvino-genai"), str(write_model(tmp_path / "m"))
    one, four = (engine.estimate_bytes(folder, 300, slots) for slots in (1, 4))
    assert one and four and four - one == 3 * 300 * 32 * 2 * 2
