"""Several runtimes, hidden cards, stored proofs, and hardware that no runtime reaches yet."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.child import handle
from backend.child.handle import Spawn
from backend.common.device_api import DetectedDevice
from backend.common.types import Device, Hardware
from backend.devices import show_only, visibility_variables
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.proof_cache import ProofCache
from tests.faulty_stacks.cases.case import CARD, PCI, TWIN, TWIN_PCI
from tests.faulty_stacks.environments import make
from tests.service import Server, furnished, start_server, wait_for

HIDDEN = "The server was started with CUDA_VISIBLE_DEVICES="


async def nothing(spawn: Spawn) -> list[Hardware]:
    """Return an inventory without hardware."""
    return []


def having(*items: Hardware) -> Callable[[Spawn], Awaitable[list[Hardware]]]:
    """Return an inventory with that hardware."""

    async def inventory(spawn: Spawn) -> list[Hardware]:
        return list(items)

    return inventory


def probes(pythons: dict[str, Path], **more: Any) -> ProbeService:
    """Return a probe service for these interpreters only."""
    names = {name: str(python) for name, python in pythons.items()}
    more.setdefault("inventory", nothing)
    return ProbeService(names, 60, handle.spawn, DeviceQueue, **more)


def rounds(subject: ProbeService, *between: Callable[[], object]) -> list[dict[str, Device]]:
    """Return the devices after each round, without the processor, and run the actions between rounds."""
    found = []

    async def play() -> None:
        for act in (lambda: None, *between):
            act()
            await subject.probe()
            found.append({id_: device for id_, device in subject.devices.items() if device.kind != "cpu"})

    asyncio.run(play())
    return found


def once(subject: ProbeService) -> dict[str, Device]:
    """Return the devices after one round."""
    return rounds(subject)[0]


@pytest.fixture(scope="module")
def two_cards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A torch that lists the card at the higher address first."""
    return make(tmp_path_factory.mktemp("two") / "env", {"cards": [TWIN, CARD]})


def test_an_index_is_the_rank_of_the_address_and_each_probe_sees_its_card_alone(two_cards: Path) -> None:
    devices = once(probes({"mine": two_cards}))
    assert {id_: device.hardware_id for id_, device in devices.items()} == {"cuda:0": PCI, "cuda:1": TWIN_PCI}
    assert {device.state for device in devices.values()} == {"ready"}
    pids = {device.proof.pid for device in devices.values() if device.proof}
    assert len(pids) == 2, "a child each"


@pytest.mark.parametrize("value", ["0,1", "1,0", f"GPU-{CARD['uuid']},GPU-{TWIN['uuid']}"])
def test_a_variable_that_reorders_changes_no_index(
    two_cards: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    devices = once(probes({"mine": two_cards}))
    assert {id_: (device.hardware_id, device.state) for id_, device in devices.items()} == {
        "cuda:0": (PCI, "ready"),
        "cuda:1": (TWIN_PCI, "ready"),
    }


def test_a_hidden_card_is_said_to_be_hidden_and_not_touched(two_cards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # the library's own first, which is the second by address
    devices = once(probes({"mine": two_cards}))
    assert (devices["cuda:1"].state, devices["cuda:0"].state) == ("ready", "unavailable")
    assert devices["cuda:0"].reason == f"{HIDDEN}0, which hides it." and devices["cuda:0"].proof is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    devices = once(probes({"mine": two_cards}))
    assert [device.reason for device in devices.values()] == [f"{HIDDEN}, which hides it."] * 2


def test_a_worker_sees_its_card_alone_and_the_processor_s_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(backend: str, **identity: str) -> dict[str, str]:
        monkeypatch.setattr("os.environ", {"CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/bin"})
        selectors = [identity["uuid"]] if identity else []
        show_only(backend, DetectedDevice("A card", "gpu", None, None, None, position=1, count=2, selectors=selectors))
        return {name: os.environ[name] for name in visibility_variables() if name in os.environ}

    assert seen("cuda", uuid="GPU-1") | {"GGML_VK_VISIBLE_DEVICES": ""} == {
        "CUDA_VISIBLE_DEVICES": "GPU-1", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": "",
    }  # fmt: skip
    assert seen("cuda")["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen("rocm") == {"HIP_VISIBLE_DEVICES": "1", "GGML_VK_VISIBLE_DEVICES": ""}
    assert seen("vulkan")["GGML_VK_VISIBLE_DEVICES"] == "1"
    assert set(seen("cpu").values()) == {"-1", ""}


def test_one_device_served_by_two_runtimes_is_one(two_cards: Path, tmp_path: Path) -> None:
    broken = make(tmp_path / "broken", {"cards": [CARD], "spoil": {"matmul": ["scale", 2, None]}})
    again = make(tmp_path / "again", {"cards": [CARD, TWIN]})
    subject = probes({"first": two_cards, "wrong": broken, "again": again})
    devices = once(subject)
    assert set(devices) == {"cuda:0", "cuda:1"}
    assert devices["cuda:0"].runtimes == ["first", "again"] and devices["cuda:0"].state == "ready"
    assert list(devices["cuda:0"].served_by) == ["first", "again"]
    assert subject.hardware[PCI].devices == ["cuda:0"]
    assert subject.detected_device("cuda:0", "again") != subject.detected_device("cuda:0", "first"), (
        "each has its own place in its library"
    )


def test_the_crash_of_one_backend_takes_no_other_along(tmp_path: Path) -> None:
    plan = {"cards": [CARD], "at": {"mps.is_built": [["signal", "SIGSEGV"]]}}
    subject = probes({"mine": make(tmp_path / "env", plan)})
    devices = once(subject)
    assert devices["cuda:0"].state == "ready"
    assert devices["mps"].state == "broken" and "listing mps devices: it was killed by SIGSEGV" in str(
        devices["mps"].reason
    )
    assert "SIGSEGV" in subject.table.runtime_problems["mine"].detail


def test_a_proof_of_an_earlier_start_shows_until_the_new_one_is_there(two_cards: Path, tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    before = once(probes({"mine": two_cards}, proofs=ProofCache(file)))["cuda:0"]
    heard: list[Device] = []
    after = once(probes({"mine": two_cards}, proofs=ProofCache(file), on_change=heard.append))["cuda:0"]
    words = [device for device in heard if device.id == "cuda:0"]
    assert {device.state for device in words} == {"ready"}, "never `probing`"
    assert words[0].proof == before.proof and words[-1].proof == after.proof != before.proof


def test_a_proof_counts_for_its_driver_alone(two_cards: Path, tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    card = Hardware(PCI, "A card", "NVIDIA", "gpu", driver="nvidia 550.54")
    once(probes({"mine": two_cards}, proofs=ProofCache(file), inventory=having(card)))
    heard: list[Device] = []
    newer = Hardware(PCI, "A card", "NVIDIA", "gpu", driver="nvidia 560.10")
    once(probes({"mine": two_cards}, proofs=ProofCache(file), inventory=having(newer), on_change=heard.append))
    assert next(device for device in heard if device.id == "cuda:0").state == "probing"


def test_a_damaged_book_of_proofs_is_none(two_cards: Path, tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    for text in ("", "[]", '{"format": 1}', '{"format": 99, "devices": {}}', '{"format": 1, "devices": {"x": 3}}'):
        file.write_text(text)
        assert ProofCache(file).get("x") is None


def test_a_device_with_a_worker_is_not_probed_from_outside(two_cards: Path) -> None:
    subject = probes({"mine": two_cards}, is_occupied=lambda device: device == "cuda:0")
    first, second = rounds(subject, lambda: None)
    assert second["cuda:0"].proof == first["cuda:0"].proof, "it was proved once, when nothing was known of it"
    assert second["cuda:1"].proof != first["cuda:1"].proof


def test_a_refresh_of_one_card_leaves_the_other_s_proof(two_cards: Path) -> None:
    subject = probes({"mine": two_cards})
    found = []

    async def play() -> None:
        for only in (None, "cuda:1"):
            await subject.probe(only)
            found.append({id_: subject.devices[id_].proof for id_ in ("cuda:0", "cuda:1")})

    asyncio.run(play())
    before, after = found
    assert before["cuda:0"] and after["cuda:0"] == before["cuda:0"]
    assert before["cuda:1"] and after["cuda:1"] and after["cuda:1"].pid != before["cuda:1"].pid


def test_a_card_that_is_listed_no_more_is_gone(tmp_path: Path) -> None:
    python = make(tmp_path / "env", {"cards": [CARD, TWIN]})
    subject = probes({"mine": python})
    plan = next((tmp_path / "env").rglob("plan.json"))
    before, devices = rounds(subject, lambda: plan.write_text(json.dumps({"cards": [CARD]})))
    assert before["cuda:1"].state == devices["cuda:0"].state == "ready"
    assert (devices["cuda:1"].state, devices["cuda:1"].layer) == ("unavailable", "hardware")
    assert "no longer does" in str(devices["cuda:1"].reason)


def test_hardware_that_nothing_reaches_shows_what_to_install() -> None:
    nvidia = Hardware(PCI, "NVIDIA GeForce RTX 3060", "NVIDIA", "gpu", 12 << 30, "nvidia 550.54")
    amd = Hardware(TWIN_PCI, "Radeon RX 7900 XTX", "AMD", "gpu", architecture="gfx1100")
    emulated = Hardware("pci:0000:05:00.0", "Microsoft Basic Render Driver", "Microsoft", "emulated")
    devices = once(probes({}, inventory=having(nvidia, amd, emulated)))
    assert {device.state for device in devices.values()} == {"installable"}
    cuda, rocm = devices["cuda:0"], devices["rocm:0"]
    assert (cuda.hardware_id, rocm.hardware_id) == (PCI, TWIN_PCI)
    assert "NVIDIA GeForce RTX 3060 is here" in str(cuda.reason)
    assert re.search(r"`python -m backend runtimes install llama-cuda` \(.*MB to download, .* min", str(cuda.remedy))
    assert "`python -m backend runtimes install rocm`" in str(rocm.remedy) and cuda.layer == "runtime package"
    assert devices["vulkan:1"].hardware_id == TWIN_PCI
    assert not any(device.hardware_id == emulated.id for device in devices.values())


def test_an_offer_goes_with_its_hardware() -> None:
    cards = [Hardware(PCI, "NVIDIA GeForce RTX 3060", "NVIDIA", "gpu")]

    async def inventory(spawn: Spawn) -> list[Hardware]:
        return list(cards)

    told: list[Device] = []
    before, after = rounds(probes({}, inventory=inventory, on_change=told.append), cards.clear)
    assert before["cuda:0"].state == "installable" and after == {}
    last = {device.id: device.state for device in told}
    assert last["cuda:0"] == "unavailable", "who follows the changes hears of it"


def test_a_runtime_removed_while_it_is_looked_at_ends_no_round_and_comes_to_no_word(two_cards: Path) -> None:
    pythons = {"mine": str(two_cards)}

    def told(device: Device) -> None:
        if device.state == "probing" and device.backend == "cuda":
            pythons.pop("mine", None)
            told_of.append(device.id)

    told_of: list[str] = []
    subject = ProbeService(pythons, 60, handle.spawn, DeviceQueue, told, inventory=nothing)

    async def play() -> None:
        await subject.probe()
        subject.table.forget("mine")
        await subject.probe(runtime="mine")

    asyncio.run(play())
    assert told_of and not [id_ for id_ in subject.devices if id_.startswith("cuda")]
    assert not subject.probing


def test_a_round_that_is_cut_off_leaves_nothing_that_is_being_checked(two_cards: Path) -> None:
    subject = probes({"mine": two_cards})

    async def play() -> None:
        task = asyncio.create_task(subject.probe())
        while "cuda:0" not in subject.devices:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
    cut = subject.devices["cuda:0"]
    assert cut.state == "broken" and cut.reason == "Its check was interrupted."


def test_hardware_that_lacks_a_driver_says_that_first() -> None:
    card = Hardware(
        PCI, "Radeon RX 6800", "AMD", "gpu",
        reason="You have no permission for its render node, which belongs to the group render.",
        remedy="Join the group: sudo usermod -aG render you; log in again.",
    )  # fmt: skip
    device = once(probes({}, inventory=having(card)))["rocm:0"]
    assert (device.state, device.layer) == ("unavailable", "permission")
    assert device.reason == card.reason and device.remedy == card.remedy


@pytest.mark.parametrize(("vendor", "device"), [("NVIDIA", "cuda:0"), ("AMD", "rocm:0"), ("Intel", "xpu:0")])
def test_a_torch_for_the_processor_beside_a_card_says_so(vendor: str, device: str, tmp_path: Path) -> None:
    python = make(tmp_path / "env", {"cards": [], "cuda": None, "version": "2.13.0+cpu"})
    card = Hardware(PCI, f"{vendor} card", vendor, "gpu")
    found = once(probes({"torch": python}, inventory=having(card)))[device]
    assert (found.state, found.layer, found.hardware_id) == ("unavailable", "runtime package", PCI)
    assert str(found.reason).startswith(
        f"{vendor} card is here. This is torch 2.13.0+cpu, built for the processor alone"
    )


def test_a_library_that_lists_nothing_where_the_card_has_no_permission(tmp_path: Path) -> None:
    python = make(tmp_path / "env", {"cards": [], "cuda": None, "hip": "7.2"})
    why, remedy = "You have no permission for /dev/kfd, of the group render.", "Join the group render."
    card = Hardware(PCI, "Radeon RX 6800", "AMD", "gpu", reason=why, remedy=remedy)
    found = once(probes({"torch": python}, inventory=having(card)))["rocm:0"]
    assert (found.state, found.layer, found.remedy) == ("unavailable", "permission", remedy)
    assert str(found.reason).startswith(f"Radeon RX 6800 is here. {why} No such device: it lists no card")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Server]:
    """Start a real server with one working runtime among broken ones."""
    folder = tmp_path_factory.mktemp("crowd")
    plans: dict[str, dict[str, Any]] = {
        "stuck": {"cards": [], "at": {"import": [["hang", 3600]]}},
        "slow": {"cuda": None, "xpu": "1", "xpu_cards": [{}], "at": {"matmul": [["hang", 3600]]}},
        "crash": {"at": {"import": [["signal", "SIGSEGV"]]}},
        "good": {"cards": [CARD, TWIN]},
    }
    pythons = {name: {"python": str(make(folder / name, plan))} for name, plan in plans.items()}
    pythons["missing"] = {"python": str(folder / "nowhere" / "python")}
    config = folder / "config.json"
    config.write_text(json.dumps({"runtimes": pythons, "supervision": {"probe_s": 12}}))
    server = start_server(furnished(folder / "data", model_file), "--config", str(config))
    yield server
    assert server.stop() == 0


def states(server: Server) -> dict[str, str]:
    return {device["id"]: device["state"] for device in server.http.get("/api/devices").json()["devices"]}


def test_who_hangs_delays_nobody(crowd: Server) -> None:
    wait_for(lambda: (found := states(crowd)).get("cuda:1") == found["cpu"] == "ready" == found.get("cuda:0"))
    assert crowd.http.get("/api/devices").json()["probing"] is True, "those that hang are still within their limit"
    assert crowd.http.get("/api/health").json()["status"] == "starting"
    assert crowd.generate(prompt="Hi", options={"max_tokens": 2}, device="cpu", fallback="never")["status"] == "done"


def test_every_runtime_that_does_not_work_is_a_problem_in_words(crowd: Server) -> None:
    found = crowd.http.get("/api/devices", params={"wait_s": 100}).json()
    assert found["probing"] is False
    health = crowd.http.get("/api/health").json()
    problems = {problem["subject"]: problem for problem in health["problems"]}
    assert {"runtime:stuck", "runtime:crash", "runtime:missing", "xpu:0"} <= set(problems)
    assert "importing torch: it hung" in problems["runtime:stuck"]["detail"]
    assert "SIGSEGV" in problems["runtime:crash"]["detail"]
    assert "cannot be started" in problems["runtime:missing"]["detail"]
    assert all(problem["remedy"] for problem in problems.values())
    assert (health["status"], states(crowd)["xpu:0"]) == ("degraded", "broken")
    assert "runtime:good" not in problems
