"""The cards of the Windows around a WSL: Windows names them, `/dev/dxg` is the way to them."""

from __future__ import annotations

from dataclasses import replace

from backend.common.hardware import nvidia, pci, windows
from backend.common.hardware.access import refused
from backend.common.hardware.container import container
from backend.common.hardware.host import Host
from backend.common.hardware.ids import pci_id_of
from backend.common.hardware.wsl import NODE, powershell, wsl
from backend.common.types import Hardware

_PARAVIRTUAL = ("1414", "008e")  # one for each card that Windows lends
UPDATE_WINDOWS = (
    "On Windows: install the card's newest driver there, run `wsl --update` and `wsl --shutdown`, and open WSL again. "
    "No driver belongs into WSL itself."
)


def windows_cards(host: Host) -> list[Hardware]:
    """The cards as Windows or NVIDIA's tool names them; failing both, as the kernel shows that something is there."""
    told = nvidia.from_tool(host)
    shell = powershell(host)
    answer = windows.ask(host, shell) if shell else windows.Windows()
    found = [item for item in windows.adapters(answer, told.cards) if item.kind != "emulated"]
    known = {item.id for item in found}
    found += [_nvidia(id_, card) for id_, card in told.cards.items() if id_ not in known]
    return [_lent(host, item) for item in found or _unnamed(host)]


def _nvidia(id_: str, card: nvidia.Told) -> Hardware:
    return Hardware(
        id=id_,
        name=card.name or "NVIDIA card",
        vendor="NVIDIA",
        kind="gpu",
        memory_bytes=card.memory_bytes,
        driver=card.driver,
        architecture=card.architecture,
        uuid=card.uuid,
    )


def _unnamed(host: Host) -> list[Hardware]:
    cards = [card for card in pci.cards(host) if (card.vendor, card.device) == _PARAVIRTUAL]
    ids = [id_ for card in cards if (id_ := pci_id_of(card.address))]
    return [Hardware(id_, "A card of Windows, through WSL", None, "gpu", driver="dxgkrnl") for id_ in ids]


def _lent(host: Host, item: Hardware) -> Hardware:
    """With what stands in its way here, beside what Windows says of it."""
    if item.reason:
        return item
    if wsl(host) == 1:
        reason, remedy = (
            "This is WSL 1, which has no way to a card.",
            "On Windows: `wsl --set-version DISTRIBUTION 2`; or run Touchstone on Windows itself (launch.ps1).",
        )
    elif item.kind == "npu":
        reason, remedy = (
            "WSL has no way to a neural processor.",
            "Run Touchstone on Windows itself (launch.ps1) to use it.",
        )
    else:
        node = host.path(NODE)
        obstacle = refused(host, node)
        if not obstacle:
            return replace(item, render_node=host.shown(node))
        reason, remedy = obstacle
        if not node.exists() and not container(host):
            reason, remedy = f"{host.shown(node)} is not there: Windows lends no card to this WSL.", UPDATE_WINDOWS
    return replace(item, reason=reason, remedy=remedy)
