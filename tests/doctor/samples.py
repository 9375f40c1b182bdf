"""Facts of sample machines: shortened from public reports, and healthy ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backend.cli.doctor.facts import (
    Facts,
    Flavour,
    Interpreter,
    Platform,
    RuntimeFacts,
    StorageFacts,
    TorchBuild,
    Written,
)
from backend.common.hardware.checks import Check
from backend.common.types import Device, Hardware, Proof

LINUX = Platform("linux", "6.8.0-45-generic", ("ubuntu", "debian"))
FEDORA = Platform("linux", "6.14.0", ("fedora",))
WSL2 = Platform("linux", "5.15.153.1-microsoft-standard-WSL2", ("ubuntu", "debian"), wsl=2)
WINDOWS = Platform("win32", "10")
MAC = Platform("darwin", "24.1.0")

PROOF = Proof(
    "MatMul 96×96",
    "float32",
    0.0,
    1e-4,
    0.001,
    {},
    "2026-01-01T00:00:00.000Z",
    7,
    evidence="All nodes were assigned to it.",
)
CPU = Device("cpu", "AMD Ryzen 7 5800X", "cpu", "cpu", "ready", "runs", ["base"], proof=PROOF)
PYTHON = Interpreter("3.12.3", 64, "/home/ada/torch/bin/python", "/usr", True, "linux-x86_64")
CPU_CHIP = Hardware("cpu:0", "AMD Ryzen 7 5800X", "AMD", "cpu")


def nvidia(driver: str | None, name: str = "NVIDIA GeForce RTX 3050 Laptop GPU") -> Hardware:
    return Hardware("pci:0000:01:00.0", name, "NVIDIA", "gpu", driver=driver, pci_ids="10de:25a2")


def amd(name: str = "AMD Radeon RX 7900 XTX") -> Hardware:
    return Hardware(
        "pci:0000:03:00.0", name, "AMD", "gpu", driver="amdgpu", pci_ids="1002:744c", architecture="gfx1100"
    )


def intel() -> Hardware:
    return Hardware("pci:0000:00:02.0", "Intel Arc A770", "Intel", "gpu", driver="xe", pci_ids="8086:56a0")


def runtime(name: str = "torch", **facts: Any) -> RuntimeFacts:
    return RuntimeFacts(name, facts.pop("python", PYTHON.path), interpreter=facts.pop("interpreter", PYTHON), **facts)


def torch(version: str, **built: str) -> RuntimeFacts:
    return runtime(torch=TorchBuild(version, **built), packages={"torch": version})


def flavours(*pairs: tuple[str, str], on_disk: tuple[str, str] | None = None, name: str = "own") -> RuntimeFacts:
    return runtime(
        name,
        shared={"onnxruntime": [Flavour(*pair) for pair in pairs]},
        on_disk={"onnxruntime": Written(*on_disk)} if on_disk else {},
        packages=dict(pairs),
    )


def kfd_refused(group: str = "render") -> Check:
    """What the inventory says of a node that this user may not open."""
    detail = f"This user may not open /dev/kfd (its group is {group})."
    return Check("node-refused", "permission", "problem", detail, f"`sudo usermod -aG {group} $USER`, then log out.")


def unavailable(id_: str, reason: str) -> Device:
    backend = id_.partition(":")[0]
    return Device(id_, id_, backend, "gpu", "unavailable", reason=reason, remedy="Install it.")


def machine(platform: Platform = LINUX, *cards: Hardware, **facts: Any) -> Facts:
    """A machine whose CPU works."""
    devices = [CPU, *facts.pop("devices", [])]
    return Facts(platform, hardware=[CPU_CHIP, *cards], devices=devices, **facts)


def storage(**facts: Any) -> StorageFacts:
    healthy = StorageFacts("/srv/touchstone", True, True, "ext4", 80_000_000_000, False, None, None)
    return replace(healthy, **facts)
