"""The text page and the JSON report have the same content, no names, and the verdict at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.cli.doctor.facts import Facts, ServerFacts
from backend.cli.doctor.finding import Finding, Step
from backend.cli.doctor.findings import examine
from backend.cli.doctor.report import report, verdict
from backend.cli.doctor.text_page import missing_page, page
from backend.common.config.settings import Settings
from backend.common.config.settings.schema import DeviceRules, Server, Storage
from backend.common.types import Device, Model
from tests.doctor.samples import CPU, LINUX, PROOF, WSL2, amd, flavours, machine, nvidia, storage, torch, unavailable

GPU = Device("cuda:0", "RTX 3050", "cuda", "gpu", "ready", "runs", ["torch"], proof=PROOF, note="No half precision.")
BROKEN = replace(
    GPU,
    id="cuda:1",
    state="broken",
    proof=None,
    layer="computation",
    reason="Wrong result: off by 7.",
    remedy="Update the driver.",
)
EMULATED = replace(GPU, id="onnx-webgpu:0", kind="emulated", name="llvmpipe")


def finding(level: Any) -> Finding:
    return Finding("x", level, "system", "system", "Something.", (Step("Do it.", "do it"),))


@pytest.mark.parametrize(
    ("devices", "findings", "code", "words"),
    [
        ([], [], 1, "no device works"),
        ([replace(CPU, state="broken")], [], 1, "no device works"),
        ([CPU], [], 3, "Only the CPU works"),
        ([CPU, EMULATED], [], 3, "Only the CPU works"),
        ([CPU], [finding("advice")], 3, "Only the CPU works"),
        ([CPU], [finding("broken")], 3, "a fix"),
        ([CPU, BROKEN], [], 3, "broken: cuda:1"),
        ([CPU], [finding("stops")], 1, "keeps it from working"),
        ([CPU, GPU], [], 0, "Fine: cuda:0 works"),
        ([CPU, GPU], [finding("advice")], 0, "Fine"),
        ([CPU, GPU], [finding("broken")], 1, "1 of the findings above needs a fix"),
        ([CPU, GPU, BROKEN], [], 1, "broken: cuda:1"),
        ([CPU, GPU], [finding("stops")], 1, "keeps it from working"),
    ],
)
def test_the_verdict_and_its_exit_code(devices: list[Device], findings: list[Finding], code: int, words: str) -> None:
    found = verdict(Facts(LINUX, devices=devices), findings)
    assert found[0] == code and words in found[1]


def sick() -> Facts:
    """A machine with something in every section."""
    card = replace(
        nvidia("nvidia 470.86"), devices=["cuda:0"], hidden_by=["CUDA_VISIBLE_DEVICES=1 hides it from CUDA."]
    )
    return machine(
        LINUX,
        card,
        replace(amd(), reason="No driver is in charge of it.", remedy="Load amdgpu."),
        devices=[GPU, BROKEN, unavailable("vulkan:0", "libvulkan.so.1: cannot open shared object file")],
        runtimes=[torch("2.1.0+cu121", cuda="12.1"), flavours(("onnxruntime", "1.7.0"), ("onnxruntime-gpu", "1.7.0"))],
        models=[Model("m", "M", "text", [], "broken", reason="m.gguf is short.", remedy="Fetch m again.")],
        storage=storage(filesystem="nfs4", free_bytes=1_000_000_000),
        server=ServerFacts(port_state="taken", free_port=8001),
    )


MORE = {
    "default": "cpu",
    "default_reason": "It is the only one that is ready.",
    "missing": [
        {
            "name": "RX 6800",
            "hardware_id": None,
            "bus": "The PCI bus shows none.",
            "driver": "It was not asked.",
            "runtimes": "No runtime lists it.",
            "remedy": "Seat it.",
        }
    ],
    "notices": [("/srv/a.part1", "This is one piece of a model.", "cat a.part* > a.gguf")],
}


def document(facts: Facts, environ: dict[str, str] | None = None, settings: Settings | None = None) -> dict[str, Any]:
    return report(facts, examine(facts), MORE, settings or Settings(), environ or {})


def told(value: Any) -> Iterator[str]:
    """The texts of the document that a reader of the page must find there."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from told(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from told(inner)


def test_the_page_holds_what_the_data_hold() -> None:
    facts = document(sick(), {"CUDA_VISIBLE_DEVICES": "1"}, Settings(device="cuda:0"))
    shown = page(facts)
    for one in facts["findings"]:
        for text in (
            one["level"],
            one["layer"],
            one["subject"],
            one["detail"],
            *told([s["command"] for s in one["steps"]]),
        ):
            assert text in shown
    for device in facts["devices"]:
        assert f"{device['id']}: {device['state']}" in shown
        assert all(device[key] in shown for key in ("name", "reason", "remedy", "layer", "note") if device[key])
        assert not device["proof"] or device["proof"]["evidence"] in shown
    for item in facts["hardware"]:
        for text in told([item[key] for key in ("id", "name", "driver", "reason", "remedy", "hidden_by", "devices")]):
            assert text in shown
    for runtime in facts["runtimes"]:
        assert all(f"{name} {version}" in shown for name, version in runtime["packages"].items())
    for section in ("models", "notices", "missing"):
        assert all(text in shown for text in told(facts[section]))
    assert "CUDA_VISIBLE_DEVICES=1" in shown and "device=cuda:0" in shown and "port 8000 of 127.0.0.1 is taken" in shown
    assert shown.splitlines()[-1] == f"Verdict: {facts['verdict']['sentence']}"
    assert len(facts["findings"]) >= 7


def test_the_section_on_missing_devices_also_stands_alone() -> None:
    shown = missing_page(document(sick()))
    assert shown.splitlines() == [
        "Why is my device missing? (1)",
        "  RX 6800",
        "      Bus:      The PCI bus shows none.",
        "      Driver:   It was not asked.",
        "      Runtimes: No runtime lists it.",
        "      First:    Seat it.",
    ]
    assert shown in page(document(sick()))
    assert missing_page({"missing": []}) == "Each card has a ready device."


def test_under_wsl_windows_and_linux_have_lists_of_their_own() -> None:
    facts = machine(WSL2, nvidia("NVIDIA 470.86"), runtimes=[torch("2.1.0", cuda="12.1")],
                    storage=storage(data_dir="/mnt/c/touchstone", filesystem="9p"))  # fmt: skip
    lines = page(document(facts)).splitlines()
    windows = lines.index("What to do in Windows (1)")
    linux = lines.index("What to do in this Linux (1)")
    assert "NVIDIA's driver 528" in lines[windows + 1] and "finding 1" in lines[windows + 1]
    assert "inside Linux" in lines[linux + 1] and "finding 2" in lines[linux + 1]
    assert not any("→" in line for line in lines)


def test_elsewhere_each_finding_has_its_steps_below_it() -> None:
    shown = page(document(machine(LINUX, nvidia("nvidia 470.86"), runtimes=[torch("2.1.0", cuda="12.1")])))
    assert "→ Install NVIDIA's driver 525" in shown and "What to do in Windows" not in shown


def test_secrets_names_and_home_do_not_get_onto_the_page() -> None:
    environ = {"HOME": "/home/ada", "USER": "ada", "HF_TOKEN": "tooth-fairy", "PYTHONPATH": "/home/ada/lib",
               "CUDA_HOME_PASSWORD": "hunter2"}  # fmt: skip
    settings = Settings(server=Server(token="s3same-open"))
    leaky = unavailable("cuda:0", "ada may not read /home/ada/x (token=tooth-fairy, s3same-open, hunter2)")
    facts = document(machine(LINUX, devices=[leaky]), environ, settings)
    shown = page(facts) + repr(facts)
    for word in ("ada", "tooth-fairy", "s3same-open", "hunter2"):
        assert word not in shown.replace("Ada", "")
    assert "server.token=<secret>" in shown and "PYTHONPATH=~/lib" in shown


def test_the_settings_in_force_are_those_that_differ() -> None:
    settings = Settings(device="gpu", devices={"cuda:0": DeviceRules(enabled=False)})
    assert document(machine(), settings=settings)["settings"]["device"] == "gpu"
    assert "devices.cuda:0.enabled=False" in page(document(machine(), settings=settings))
    assert "all at their defaults" in page(document(machine()))
    elsewhere = Settings(storage=Storage(data_dir=Path("/srv/ts")))
    assert document(machine(), settings=elsewhere)["settings"] == {}, "the folder has a line of its own"


def test_an_endless_variable_is_cut_and_others_are_left_out() -> None:
    environ = {
        "NVIDIA_REQUIRE_CUDA": "cuda>=13.0 " + "brand=tesla,driver>=535 " * 50,
        "EDITOR": "vi",
        "ZE_AFFINITY_MASK": "1",
    }
    told = document(machine(), environ)["variables"]
    leaky = {"LD_PRELOAD": "x" * 115 + "tooth-fairy", "HF_TOKEN": "tooth-fairy"}
    assert "tooth" not in repr(document(machine(), leaky)), "cut off, it would not be recognised"
    assert len(told["NVIDIA_REQUIRE_CUDA"]) == 121 and told["ZE_AFFINITY_MASK"] == "1" and "EDITOR" not in told


def test_nothing_on_the_page_steers_a_terminal() -> None:
    shown = page(document(machine(LINUX, devices=[unavailable("cuda:0", "\x1b[2J\u202eevil")])))
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[2J" in shown


def test_gaps_are_told_as_such() -> None:
    shown = page(document(Facts(LINUX)))
    assert "Devices (0)" in shown and "Broken: no device works." in shown and "Findings: none." in shown
