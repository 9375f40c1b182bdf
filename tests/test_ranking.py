"""The order of devices and engines: by measured speed beyond the noise, else documented, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.common.types import Device, DeviceKind, Speed
from backend.scheduling.device_resolution import Resolution, resolve
from backend.scheduling.ranking import (
    NOISE,
    RankingQuery,
    SpeedFigure,
    by_preference,
    by_speed,
    engine_reason,
    engines_by_speed,
    equal,
)

AT = "2026-01-01T00:00:00.000Z"
WISH = RankingQuery("stone", ("llama.cpp", "onnx-genai"))


def speed(value: float, engine: str = "llama.cpp", model: str = "stone", spread: float = 0.0, **more: float) -> Speed:
    return Speed(model, engine, value, "tokens/s", AT, value - spread, value + spread, **more)  # type: ignore[arg-type]


def device(id_: str, *speeds: Speed, kind: DeviceKind = "gpu", note: str | None = None) -> Device:
    backend = id_.partition(":")[0]
    served = {"base": ["llama.cpp", "onnx-genai"]}
    return Device(
        id_, f"Card {id_}", backend, "cpu" if id_ == "cpu" else kind, "ready", tasks=["text"], speed=list(speeds),
        note=note, served_by=served,
    )  # fmt: skip


def auto(*devices: Device, query: RankingQuery = WISH) -> Resolution:
    return resolve("auto", {d.id: d for d in devices}, [], task="text", engine=None, query=query)


def order(*devices: Device, query: RankingQuery = WISH) -> list[str]:
    return [found.id for found in by_preference(devices, "text", query)]


def test_the_fastest_measured_device_leads_and_the_reason_has_the_figures() -> None:
    found = auto(device("cuda:0", speed(50)), device("cpu", speed(154, "onnx-genai"), speed(106)))
    assert found.resolved == "cpu"
    for words in ("fastest measured with stone", "154 tokens/s", "onnx-genai", "106 tokens/s"):
        assert words in found.reason


def test_before_anything_was_measured_the_documented_order_holds_and_is_said() -> None:
    found = auto(device("cpu"), device("vulkan:0"), device("cuda:0"))
    assert found.resolved == "cuda:0"
    assert "documented order" in found.reason and "nothing was measured with stone" in found.reason
    other = auto(device("cuda:0", speed(1, model="pebble")), device("cpu", speed(99, model="pebble")))
    assert other.resolved == "cuda:0", "what another model did says nothing"


def test_a_device_that_was_not_measured_keeps_the_place_that_it_has() -> None:
    devices = (device("vulkan:0", speed(20)), device("cuda:0"), device("cpu", speed(90)))
    assert order(*devices) == ["cuda:0", "cpu", "vulkan:0"]
    assert "cpu (90 tokens/s)" in auto(*devices).reason
    assert order(device("cuda:0", speed(80)), device("vulkan:0"), device("cpu", speed(90))) == [
        "cpu", "vulkan:0", "cuda:0",
    ]  # fmt: skip


@pytest.mark.parametrize(("cuda", "cpu"), [(100.0, 104.0), (90.0, 97.0)])
def test_within_the_noise_nothing_is_ranked(cuda: float, cpu: float) -> None:
    found = auto(device("cuda:0", speed(cuda, spread=4)), device("cpu", speed(cpu, spread=4)))
    assert found.resolved == "cuda:0"
    assert "equally fast within the noise" in found.reason and f"{cpu:.0f} tokens/s" in found.reason
    assert auto(device("cuda:0", speed(cuda)), device("cpu", speed(cpu * 1.2))).resolved == "cpu"


def test_equal_is_a_meeting_of_spreads_or_less_than_a_machine_s_pace() -> None:
    one = SpeedFigure("a", "e", 100, 99, 101, "tokens/s", 1)
    assert equal(one, replace(one, value=100 / (1 - NOISE) - 0.1, low=104, high=106))
    assert not equal(one, replace(one, value=110, low=108, high=112))
    assert equal(one, replace(one, value=110, low=100.5, high=112))
    assert not equal(one, replace(one, unit="× real time"))


def test_no_cycle_of_almost_equals_hides_the_fastest() -> None:
    row = [
        SpeedFigure(name, "e", value, value, value, "t", 1) for name, value in (("c", 96.0), ("b", 100.0), ("a", 104.0))
    ]
    assert [one.device for one in by_speed(row)] == ["b", "a", "c"], "of a's equals b stands first"


def test_an_emulated_device_never_leads_however_fast_it_seems() -> None:
    assert auto(device("vulkan:0", speed(500), kind="emulated"), device("cpu", speed(5))).resolved == "cpu"


def test_tensorrt_leads_only_once_it_was_measured() -> None:
    assert auto(device("onnx-tensorrt:0"), device("cpu")).resolved == "cpu"
    assert auto(device("onnx-tensorrt:0", speed(9, model="pebble")), device("cpu")).resolved == "cpu"
    assert auto(device("onnx-tensorrt:0", speed(90)), device("cpu", speed(10))).resolved == "onnx-tensorrt:0"
    assert auto(device("onnx-tensorrt:0", speed(90)), device("cpu")).resolved == "onnx-tensorrt:0"


def test_what_multiplies_slowly_may_still_lead_with_a_model_that_it_was_measured_with() -> None:
    slow = device("vulkan:0", note="It is slower than the processor.")
    assert auto(slow, device("cpu")).resolved == "cpu"
    assert auto(replace(slow, speed=[speed(90)]), device("cpu", speed(10))).resolved == "vulkan:0"
    assert auto(replace(slow, speed=[speed(90)]), device("cpu")).resolved == "cpu", "of the processor nothing is known"


def test_several_streams_have_an_order_of_their_own() -> None:
    alone = device("cuda:0", speed(100, streams=4, together=110))
    many = device("cpu", speed(60, streams=4, together=240))
    assert auto(alone, many).resolved == "cuda:0"
    found = auto(alone, many, query=replace(WISH, several=True))
    assert found.resolved == "cpu" and "240 tokens/s in 4 streams" in found.reason
    without = device("cpu", speed(120))
    assert auto(alone, without, query=replace(WISH, several=True)).resolved == "cpu", "one that runs but one at a time"


def test_the_faster_engine_is_taken_also_where_the_device_was_named() -> None:
    cpu = device("cpu", speed(106), speed(154, "onnx-genai"))
    assert engines_by_speed(cpu, WISH) == ["onnx-genai", "llama.cpp"]
    assert engines_by_speed(cpu, replace(WISH, engines=("llama.cpp",))) == ["llama.cpp"], "the other was not asked for"
    assert engines_by_speed(device("cpu", speed(154, "onnx-genai")), WISH) == ["llama.cpp", "onnx-genai"]
    assert engines_by_speed(device("cpu", speed(106), speed(108, "onnx-genai")), WISH)[0] == "llama.cpp", "the noise"
    named = resolve("cpu", {"cpu": cpu}, [], task="text", engine=None, query=WISH)
    assert "onnx-genai is the fastest measured there: 154 tokens/s, against 106 tokens/s by llama.cpp" in named.reason
    alias = resolve("onnx", {"cpu": cpu}, [], task="text", engine=None, query=WISH)
    assert alias.engine == "onnx-genai" and "fastest" not in alias.reason


def test_the_only_device_is_said_to_be_the_only_one() -> None:
    assert "only device that is ready" in auto(device("cpu")).reason
    assert "only device that is ready with stone: 106 tokens/s" in auto(device("cpu", speed(106))).reason


def test_the_engine_on_a_device_has_a_reason() -> None:
    named = device("cuda:0", speed(9), speed(90, "onnx-genai"))
    assert engine_reason(named, RankingQuery("stone", ("llama.cpp",))) == (
        "It is the only engine that cuda:0 offers for this model."
    )
    assert engine_reason(device("cuda:0"), WISH) == (
        "It comes first in the documented order; `bench` measures it against onnx-genai."
    )
    assert engine_reason(named, WISH).startswith("The engine onnx-genai is the fastest measured there: 90 tokens/s")
    equal_engines = device("cuda:0", speed(90), speed(91, "onnx-genai"))
    assert engine_reason(equal_engines, WISH).endswith("noise: llama.cpp 90 tokens/s, onnx-genai 91 tokens/s.")
