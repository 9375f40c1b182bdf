"""Admission: each kind of invalid request by its error code and field, and the defaults of a valid request."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import TouchstoneError
from backend.common.types import Device
from backend.devices import backends
from backend.jobs.admission import AdmissionContext, admit
from backend.jobs.generate_request import parse_request
from backend.jobs.job_request import JobRequest
from backend.jobs.uploads import UploadStore
from backend.models import Catalogue
from backend.scheduling.device_resolution import Resolution, apply_default, resolve, unreachable
from backend.tasks.options import options_schema

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
CPU = Device("cpu", "A processor", "cpu", "cpu", "ready", tasks=["text"], engines=["llama.cpp"])
CARD = Device("vulkan:0", "A card", "vulkan", "gpu", "broken", reason="It computes wrongly.", remedy="Replace it.")


class Desk:
    """An AdmissionContext with real settings, catalogue and uploads, and devices that the test names."""

    def __init__(
        self, folder: Path, *devices: Device, probing: bool = False, flags: dict[str, Any] | None = None
    ) -> None:
        config = folder / "config.yaml"
        config.write_text(f"models: {{tiny: {{path: '{TINY}'}}}}\ndefault_models: {{text: tiny}}\n")
        values = {"config": str(config), "storage.data_dir": str(folder / "data"), **(flags or {})}
        self.settings = load_settings(values, {})
        self.catalogue = Catalogue(self.settings, lambda task: options_schema(task, 100))
        self.uploads = UploadStore(folder / "files", self.settings.files)
        self.probes = SimpleNamespace(probing=probing)
        self._devices = {device.id: device for device in devices}

    def known_devices(self) -> list[Device]:
        return list(self._devices.values())

    def device(self, id_: str) -> Device:
        return self._devices.get(id_) or unreachable(id_, backends()[id_.partition(":")[0]])

    def resolve(self, asked: str, task: str, engine: str | None) -> Resolution:
        name = apply_default(asked, self.settings.device)
        return resolve(name, self._devices, [], task=task, engine=engine)

    def admit(self, **body: Any) -> JobRequest:
        return asyncio.run(admit(cast(AdmissionContext, self), parse_request(body)))[0]

    def refusal(self, **body: Any) -> TouchstoneError:
        with pytest.raises(TouchstoneError) as caught:
            self.admit(**body)
        return caught.value


HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
SONGS = "musicgen-small"
REFUSED: list[tuple[dict[str, Any], str, str, list[str] | None]] = [
    ({"prompt": "x", "task": "cooking"}, "validation_error", "cooking", None),
    ({"prompt": "x", "task": "music", "model": "tiny"}, "validation_error", "not 'music'", ["model"]),
    ({"prompt": "x", "model": "nothing"}, "unknown_model", "nothing", None),
    ({"prompt": "x", "engine": "steam"}, "validation_error", "steam", None),
    ({"prompt": "x", "device": "toaster"}, "unknown_device", "toaster", None),
    ({"prompt": "x", "devices": ["cpu", "toaster"]}, "unknown_device", "toaster", None),
    ({"prompt": "x", "device": "cuda:9999"}, "unknown_device", "cuda:9999", None),
    ({"prompt": "x", "device": "onnx", "engine": "llama.cpp"}, "validation_error", "onnx-genai", None),
    ({}, "validation_error", "neither prompt nor messages", None),
    ({"prompt": "x", "texts": ["y"]}, "validation_error", "texts", None),
    ({"messages": HI, "options": {"raw": True}}, "validation_error", "options.raw", None),
    ({"prompt": "x", "inputs": {"audio": "a" * 32}}, "validation_error", "inputs", ["inputs"]),
    ({"prompt": "x", "options": {"temprature": 1}}, "validation_error", "temprature", ["options.temprature"]),
    ({"prompt": "x", "options": {"max_tokens": 0}}, "validation_error", "max_tokens", ["options.max_tokens"]),
    ({"prompt": "x", "devices": ["cpu"], "spread": "parallel"}, "validation_error", "spread", ["spread"]),
    ({"prompt": "x", "devices": ["cpu"], "spread": "sequential"}, "validation_error", "spread", ["spread"]),
    ({"task": "music", "messages": HI}, "validation_error", "messages", None),
    ({"task": "music", "texts": ["x"]}, "validation_error", "texts", None),
    ({"task": "music", "options": {"tempo": -1}}, "validation_error", "tempo", ["options.tempo"]),
    ({"task": "music", "inputs": {"audio": "a" * 32}}, "validation_error", "inputs", ["inputs"]),
    ({"task": "stems"}, "validation_error", "inputs.audio is missing", ["inputs.audio"]),
    ({"task": "stems", "inputs": {"sound": "a"}}, "validation_error", "inputs.audio", ["inputs.audio"]),
    ({"task": "stems", "inputs": {"audio": [1, 2]}}, "validation_error", "inputs.audio", ["inputs.audio"]),
    ({"task": "stems", "inputs": {"audio": "a" * 32}, "prompt": "x"}, "validation_error", "no prompt", None),
    ({"task": "embeddings", "texts": ["x"]}, "model_not_downloaded", "Embed", None),
    ({"model": SONGS, "messages": HI}, "validation_error", "not of messages", None),
    ({"model": SONGS, "prompt": "x", "texts": ["y"]}, "validation_error", "not of messages or texts", None),
    ({"model": SONGS, "prompt": "x", "inputs": {"voice": "a"}}, "validation_error", "inputs.voice", ["inputs.voice"]),
    ({"model": SONGS, "prompt": "x"}, "model_not_downloaded", "MusicGen", None),
    ({"task": "stems", "inputs": {"audio": "a" * 32}}, "model_not_downloaded", "Spleeter", None),
]


@pytest.mark.parametrize(("body", "code", "words", "fields"), REFUSED, ids=lambda value: str(value)[:60])
def test_an_invalid_request_is_refused_with_its_code_and_field(
    tmp_path: Path, body: dict[str, Any], code: str, words: str, fields: list[str] | None
) -> None:
    error = Desk(tmp_path, CPU).refusal(**body)
    assert (error.code, error.extra.get("fields")) == (code, fields), error.detail
    assert words in error.detail and error.remedy
    assert error.problem().status in (404, 409, 422)


SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "x", "messages": HI}, "exclude each other"),
    ({"prompt": "x", "device": "cpu", "backend": "vulkan:0"}, "they mean the same"),
    ({"prompt": "x", "device": "cpu", "devices": ["vulkan:0"]}, "leave one of the two out"),
    ({"prompt": "x", "backend": "cpu", "devices": ["vulkan:0"]}, "leave one of the two out"),
    ({"prompt": "x", "spread": "parallel"}, "name them in devices"),
    ({"prompt": "x", "devices": []}, "devices"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": "x", "fallback": "gpu"}, "fallback"),
    ({"prompt": "x", "device": ""}, "device"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "null only with tool_calls"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "role tool"),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]},
        "role assistant",
    ),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "tool_calls"),
    ({"promt": "x"}, "prompt"),
]


@pytest.mark.parametrize(("body", "words"), SHAPES, ids=lambda value: str(value)[:60])
def test_a_request_that_contradicts_itself_is_refused_before_any_model_is_read(
    body: dict[str, Any], words: str
) -> None:
    with pytest.raises(TouchstoneError) as caught:
        parse_request(body)
    assert caught.value.code == "validation_error" and words in f"{caught.value.detail} {caught.value.remedy}"


def test_content_is_checked_before_the_files_of_the_model(tmp_path: Path) -> None:
    desk = Desk(tmp_path, CPU)
    assert desk.refusal(model=SONGS, prompt="x").code == "model_not_downloaded"
    assert desk.refusal(model=SONGS, prompt="x", options={"nonsense": 1}).code == "validation_error"


def test_a_valid_request_gets_all_defaults_of_its_task(tmp_path: Path) -> None:
    request = Desk(tmp_path, CPU, flags={"text.max_tokens": 77}).admit(prompt="Hi", options={"temperature": 0.5})
    assert (request.task, request.model, request.device, request.fallback) == ("text", "tiny", "auto", "cpu")
    assert request.options and (request.options["max_tokens"], request.options["temperature"]) == (77, 0.5)
    assert request.devices is None and request.spread is None and request.prompt == "Hi"


def test_lyrics_need_neither_prompt_nor_messages(tmp_path: Path) -> None:
    request = Desk(tmp_path, CPU).admit(task="lyrics")
    assert (request.task, request.model, request.prompt) == ("lyrics", "tiny", None)


def test_several_devices_are_named_once_each_and_the_first_free_one_runs_a_text(tmp_path: Path) -> None:
    request = Desk(tmp_path, CPU, CARD).admit(prompt="Hi", devices=["cpu", "vulkan:0", "cpu"])
    assert request.devices == ("cpu", "vulkan:0") and request.spread == "first_free"
    assert request.device_names == ("cpu", "vulkan:0") and not request.is_shared_out


def test_messages_keep_only_the_members_that_were_sent(tmp_path: Path) -> None:
    call = {"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}
    sent = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    request = Desk(tmp_path, CPU).admit(messages=sent)
    answered = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **call}]}
    assert request.messages == [*HI, answered]


@pytest.mark.parametrize(
    ("device", "probing", "code"),
    [
        ("cpu", False, None),
        ("auto", False, None),
        ("vulkan:0", False, "device_not_ready"),
        ("vulkan:0", True, None),
        ("cuda:0", False, "device_not_ready"),
        ("gpu", False, "device_not_ready"),
        ("gpu", True, None),
        ("toaster", True, "unknown_device"),
    ],
)
def test_the_policy_never_refuses_at_once_what_no_probe_can_change(
    tmp_path: Path, device: str, probing: bool, code: str | None
) -> None:
    desk = Desk(tmp_path, CPU, CARD, probing=probing)
    if code is None:
        assert desk.admit(prompt="Hi", device=device, fallback="never").device == device
    else:
        assert desk.refusal(prompt="Hi", device=device, fallback="never").code == code
    if code != "unknown_device":
        assert desk.admit(prompt="Hi", device=device, fallback="cpu"), "another policy falls back later"


def test_the_policy_never_accepts_several_devices_if_one_of_them_is_ready(tmp_path: Path) -> None:
    desk = Desk(tmp_path, CPU, CARD)
    assert desk.admit(prompt="Hi", devices=["vulkan:0", "cpu"], fallback="never")
    refusal = desk.refusal(prompt="Hi", devices=["vulkan:0", "cuda:1"], fallback="never")
    assert refusal.code == "device_not_ready" and "vulkan:0" in refusal.detail, "the first device gives the reason"


def test_the_policy_never_refuses_a_model_in_quarantine_on_the_device(tmp_path: Path) -> None:
    desk = Desk(tmp_path, dataclasses.replace(CPU, quarantined_models=["tiny"]))
    assert desk.refusal(prompt="Hi", device="cpu", fallback="never").code == "quarantined"


def test_the_default_device_of_the_settings_stands_for_auto(tmp_path: Path) -> None:
    desk = Desk(tmp_path, CPU, CARD, flags={"device": "vulkan:0"})
    assert desk.refusal(prompt="Hi", fallback="never").code == "device_not_ready"
    assert desk.admit(prompt="Hi", device="cpu", fallback="never").device == "cpu"
