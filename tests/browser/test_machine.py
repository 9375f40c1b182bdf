"""The machine on the page: hardware, its devices, problems and remedies."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from backend.common.types import Device, Hardware, MissingDevice, Proof
from backend.runtimes.types import Runtime
from backend.scheduling.probing.missing_devices import Surroundings, missing_devices
from tests.browser.test_look import DESK, PHONE, fits, violations
from tests.browser.touchstone_page import TouchstonePage

pytestmark = pytest.mark.browser

PROOF = Proof("MatMul 96×96", "float32", 1.25e-6, 1e-4, 0.01, {}, "2026-01-01T00:00:00.000Z", 7)
CHIP = Hardware("cpu:0", "AMD Ryzen 7 5800X", "AMD", "cpu", 33_544_265_728, devices=["cpu"], cores=8, threads=16)
CARD = Hardware(
    "pci:0000:01:00.0",
    "NVIDIA GeForce RTX 3050",
    "NVIDIA",
    "gpu",
    4_294_967_296,
    "nvidia 535.183.01",
    ["cuda:0", "vulkan:0"],
    hidden_by=["CUDA_VISIBLE_DEVICES=1 hides it from CUDA."],
    pci_ids="10de:25a2",
    architecture="sm_86",
)
CLOSED = Hardware(
    "pci:0000:03:00.0",
    "AMD Radeon RX 7900 XTX",
    "AMD",
    "gpu",
    reason="This user may not open /dev/kfd (its group is render).",
    remedy="`sudo usermod -aG render $USER`, then log out and in again.",
)
CPU = Device("cpu", CHIP.name, "cpu", "cpu", "ready", "runs", ["base"], hardware_id=CHIP.id, proof=PROOF)
VULKAN = replace(CPU, id="vulkan:0", name=CARD.name, backend="vulkan", kind="gpu", hardware_id=CARD.id)
CUDA = replace(
    VULKAN, id="cuda:0", state="broken", proof=None, reason="Wrong result: off by 0.5.", remedy="Run `doctor`."
)
ABSENT = Device(
    "rocm:0", "ROCm", "rocm", "gpu", "installable", reason="Its runtime is not installed.", remedy="Install it."
)


def show(
    page: Page,
    devices: list[Device],
    hardware: list[Hardware],
    loaded: list[Any] | None = None,
    missing: list[MissingDevice] | None = None,
) -> None:
    """Lets the page see such a machine."""
    found: dict[str, Any] = {
        "devices": [asdict(device) for device in devices],
        "hardware": [asdict(item) for item in hardware],
        "missing": [asdict(item) for item in missing or ()],
        "default": "vulkan:0",
        "default_reason": "It comes first.",
        "probing": False,
        "loaded": loaded or [],
    }
    page.route("**/api/devices*", lambda route: route.fulfill(json=found))


def test_each_piece_of_hardware_has_its_facts_and_every_way_in(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    show(page, [CPU, VULKAN, CUDA, ABSENT], [CHIP, CARD, CLOSED])
    touchstone.open()
    tiles = page.get_by_role("region", name="This machine").get_by_role("article")
    expect(tiles).to_have_count(3)
    for words in ("graphics card", "4.3 GB", "driver nvidia 535.183.01", "sm_86", CARD.id, "PCI 10de:25a2"):
        expect(tiles.nth(1)).to_contain_text(words)
    expect(tiles.nth(0)).to_contain_text("8 cores, 16 threads")
    ways = tiles.nth(1).get_by_role("listitem")
    expect(ways).to_have_count(2)
    expect(ways.filter(has_text="vulkan:0")).to_contain_text("largest error 0.0000013 (allowed 0.0001)")
    expect(ways.filter(has_text="cuda:0")).to_contain_text("Wrong result: off by 0.5.")
    expect(tiles.nth(0)).not_to_contain_text("cuda:0")


def test_what_hides_or_blocks_it_is_said_with_the_command(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    show(page, [CPU, VULKAN], [CHIP, CARD, CLOSED])
    touchstone.open()
    tiles = page.get_by_role("region", name="This machine").get_by_role("article")
    expect(tiles.nth(1).locator(".hint")).to_have_text("CUDA_VISIBLE_DEVICES=1 hides it from CUDA.")
    expect(tiles.nth(2).locator(".hint")).to_contain_text("This user may not open /dev/kfd (its group is render).")
    expect(tiles.nth(2).locator("code")).to_have_text("sudo usermod -aG render $USER")
    expect(tiles.nth(2)).to_contain_text("No device uses it.")
    expect(tiles.nth(0).locator(".hint")).to_have_count(0)


def test_why_a_device_is_missing_is_answered_on_request(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    show(page, [CPU], [CHIP, CLOSED], missing=missing_devices([CHIP, CLOSED], [CPU], here=Surroundings("linux")))
    touchstone.open()
    answer = page.get_by_role("article", name=f"Why {CLOSED.name} is missing")
    expect(answer).to_have_count(0)
    page.get_by_text("Why is my device missing?").press("Enter")
    expect(answer.get_by_role("definition")).to_have_count(3)
    expect(answer.get_by_role("definition").first).to_contain_text("The PCI bus shows AMD Radeon RX 7900 XTX")
    expect(answer.locator(".hint code")).to_have_text("sudo usermod -aG render $USER")
    assert violations(page) == [] and fits(page)
    show(page, [CPU, VULKAN], [CHIP, CARD])
    page.reload()
    expect(page.locator("#hardware-items article")).to_have_count(2)
    expect(page.get_by_text("Why is my device missing?")).to_be_hidden()


def test_what_is_not_known_is_left_out(touchstone: TouchstonePage) -> None:
    show(touchstone.page, [CPU], [Hardware("pci:1", "Something", None, "npu")])
    touchstone.open()
    expect(touchstone.page.locator("#hardware-items .quiet").first).to_have_text("neural processor · pci:1")


def test_what_can_be_done_is_a_button(touchstone: TouchstonePage) -> None:
    page, sent = touchstone.page, list[tuple[str, Any]]()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    banned = replace(CUDA, state="quarantined", reason="Its workers died three times.")
    loaded = {"device": "cpu", "model": "stone", "engine": "llama.cpp", "runtime": "base"}
    show(page, [replace(CPU, quarantined_models=["pebble"]), VULKAN, banned], [CHIP, CARD, CLOSED],
         [{**loaded, "memory_bytes": 264_000_000, "jobs": 0, "pid": 7, "cpu_s": 1.0}])  # fmt: skip

    def note(route: Route) -> None:
        sent.append((urlsplit(route.request.url).path, route.request.post_data_json))
        route.fulfill(status=202, json={})

    for path in ("refresh", "*/release"):
        page.route(f"**/api/devices/{path}", note)
    page.route("**/api/models/*/unload", note)
    touchstone.open()
    machine = page.get_by_role("region", name="This machine")
    machine.get_by_role("button", name="Copy sudo usermod").click()
    assert page.evaluate("navigator.clipboard.readText()") == "sudo usermod -aG render $USER"
    for name in ("Probe again vulkan:0", "Try pebble here again", "Lift the quarantine cuda:0"):
        machine.get_by_role("button", name=name).click()
    row = page.get_by_role("region", name="Loaded now").get_by_role("row").filter(has_text="stone")
    expect(row).to_contain_text("264 MB")
    row.get_by_role("button", name="Unload").click()
    expect(row).to_be_visible()
    assert sent == [
        ("/api/devices/refresh", {"device": "vulkan:0"}),
        ("/api/devices/cpu/release", {"model": "pebble"}),
        ("/api/devices/cuda%3A0/release", {}),
        ("/api/models/stone/unload", {}),
    ]
    machine.get_by_text("Proof of vulkan:0").click()
    expect(machine.get_by_role("region", name="Proof of vulkan:0")).to_be_visible()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_it_is_accessible_and_fits(touchstone: TouchstonePage, size: Any, colours: Any) -> None:
    page = touchstone.page
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=colours, reduced_motion="reduce")
    long = replace(CARD, id="pci:2", name="GPU" * 60, hidden_by=["x" * 200])
    show(page, [CPU, VULKAN, CUDA, ABSENT], [CHIP, CARD, CLOSED, long])
    touchstone.open()
    expect(page.locator("#hardware-items article")).to_have_count(4)
    assert violations(page) == [] and fits(page)


def test_while_a_card_s_runtime_is_installed_the_form_says_how_long_the_cpu_serves(touchstone: TouchstonePage) -> None:
    page = touchstone.page
    show(page, [CPU], [CHIP, replace(CLOSED, reason=None, remedy=None)])
    rocm = Runtime("rocm", "installing", title="PyTorch for AMD cards", install_s=200.0, hardware=[CLOSED.id], job="j1")
    found = {"runtimes": [asdict(rocm)], "best": None, "best_reason": "No hardware of this machine lacks a runtime."}
    page.route("**/api/runtimes", lambda route: route.fulfill(json=found))
    touchstone.open()
    expect(page.locator("#device-coming")).to_have_text("CPU for now; AMD Radeon RX 7900 XTX in about 4 min.")
    found["runtimes"] = [asdict(replace(rocm, state="installed", job=None))]
    page.reload()
    expect(page.locator("#runtimes")).to_contain_text("installed")
    expect(page.locator("#device-coming")).to_be_empty()
