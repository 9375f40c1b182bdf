"""Why a Linux card cannot compute: reason and remedy, in sentences."""

from __future__ import annotations

from backend.common.hardware.access import refused
from backend.common.hardware.chips import AMD, AMD_CPU, INTEL, NVIDIA, cannot_compute, emulated_by
from backend.common.hardware.container import container
from backend.common.hardware.host import Host, names_in
from backend.common.hardware.pci import Card

Obstacle = tuple[str, str]
_USE_CPU = "Use the CPU, or another card."
_FOR_GUESTS = ("vfio-pci", "pci-stub", "pciback", "xen-pciback")
_NOUVEAU = "nouveau"
_WITHOUT_DRIVER = {
    NVIDIA: "Install NVIDIA's driver (Ubuntu: `sudo ubuntu-drivers install`; Debian: package nvidia-driver), restart.",
    AMD: "Load the kernel's driver (`sudo modprobe amdgpu`); a new card needs a new kernel and linux-firmware.",
    INTEL: "Load the kernel's driver (`sudo modprobe xe` or `i915`); a new card needs a new kernel and linux-firmware.",
}
_NPU_WITHOUT_DRIVER = {
    INTEL: "Load the kernel's driver (`sudo modprobe intel_vpu`, Linux 6.6 or newer) and install its firmware.",
    AMD_CPU: "Load the kernel's driver (`sudo modprobe amdxdna`, Linux 6.14 or newer) and install its firmware.",
}


def obstacle(host: Host, card: Card, minor: int | None) -> Obstacle | None:
    """Return the first reason why the card is unusable, with its remedy, or None.

    `minor`: optional, number of an NVIDIA card's node.
    """
    return _by_nature(card) or _by_driver(card) or _by_node(host, card, minor)


def _by_nature(card: Card) -> Obstacle | None:
    if emulator := emulated_by(card.vendor, card.device):
        return f"It is {emulator} and cannot compute.", "Pass a physical card through to this machine, or use the CPU."
    if cannot_compute(card.vendor):
        return "It is the display chip of a server's management controller and cannot compute.", _USE_CPU
    if card.virtual_of:
        return (
            f"It is a virtual function of the card {card.virtual_of}, for virtual machines.",
            f"Use {card.virtual_of} itself.",
        )
    return None


def _by_driver(card: Card) -> Obstacle | None:
    if card.driver in _FOR_GUESTS:
        return (
            f"It is reserved for virtual machines (driver {card.driver}).",
            "Bind it to its normal driver again, or run Touchstone in the virtual machine that uses it.",
        )
    if card.driver is None:
        remedies = _NPU_WITHOUT_DRIVER if card.is_npu else _WITHOUT_DRIVER
        return "No driver is loaded for it.", remedies.get(card.vendor, "Install its vendor's driver and restart.")
    if card.driver == _NOUVEAU:
        return f"It uses the driver {_NOUVEAU}, which does not support CUDA.", _WITHOUT_DRIVER[NVIDIA]
    return None


def _by_node(host: Host, card: Card, minor: int | None) -> Obstacle | None:
    if card.vendor == NVIDIA:
        return _nvidia_node(host, minor)
    nodes = [host.path("dev/accel", card.accel_node)] if card.accel_node else []
    nodes += [host.path("dev/dri", card.render_node)] if card.render_node else []
    if card.vendor == AMD and names_in(host.path("sys/class/kfd")):
        nodes.append(host.path("dev/kfd"))
    return next(filter(None, (refused(host, node) for node in nodes)), None)


def _nvidia_node(host: Host, minor: int | None) -> Obstacle | None:
    """Check NVIDIA's node. NVIDIA's tools create it, not udev, and a container has only the nodes of its cards."""
    if minor is None:
        return None
    node = host.path("dev", f"nvidia{minor}")
    if node.exists():
        return refused(host, node)
    if runner := container(host):
        return (
            f"{host.shown(node)} is missing: this {runner} container was started without the card.",
            "Start the container with `--gpus all` (requires NVIDIA's container toolkit).",
        )
    return f"{host.shown(node)} is missing.", "Run `sudo nvidia-modprobe -u -c 0`, or `nvidia-smi` once as root."
