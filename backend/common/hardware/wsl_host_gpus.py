"""The cards of the Windows host of WSL: Windows describes them, `/dev/dxg` gives access."""

from __future__ import annotations

from dataclasses import replace

from backend.common.hardware import nvidia, pci, windows
from backend.common.hardware.access import refused
from backend.common.hardware.container import container
from backend.common.hardware.host import Host
from backend.common.hardware.ids import pci_id_of
from backend.common.hardware.wsl import NODE, powershell, wsl
from backend.common.types import Hardware

_PARAVIRTUAL = ("1414", "008e")  # one for each card that Windows shares
UPDATE_WINDOWS = (
    "On Windows: install the card's newest driver, run `wsl --update` and `wsl --shutdown`, and open WSL again. "
    "Do not install a driver inside WSL."
)


def windows_cards(host: Host) -> list[Hardware]:
    """Return the cards that Windows or NVIDIA's tool reports, otherwise unnamed ones that the kernel lists."""
    driver = nvidia.from_tool(host)
    shell = powershell(host)
    answer = windows.query_windows(host, shell) if shell else windows.Windows()
    items = [item for item in windows.adapters(answer, driver) if item.kind != "emulated"]
    return [_with_wsl_access(host, item) for item in items or _unnamed(host)]


def _unnamed(host: Host) -> list[Hardware]:
    cards = [card for card in pci.cards(host) if (card.vendor, card.device) == _PARAVIRTUAL]
    ids = [id_ for card in cards if (id_ := pci_id_of(card.address))]
    return [Hardware(id_, "A card of the Windows host", None, "gpu", driver="dxgkrnl") for id_ in ids]


def _with_wsl_access(host: Host, item: Hardware) -> Hardware:
    """Add the node of a card, or why it cannot be reached from WSL."""
    if item.reason:
        return item
    if wsl(host) == 1:
        reason, remedy = (
            "This is WSL 1, which has no GPU support.",
            "On Windows: `wsl --set-version DISTRIBUTION 2`; or run Touchstone on Windows (launch.cmd).",
        )
    elif item.kind == "npu":
        reason, remedy = (
            "WSL does not support neural processors.",
            "Run Touchstone on Windows (launch.cmd) to use it.",
        )
    else:
        node = host.path(NODE)
        refusal = refused(host, node)
        if not refusal:
            return replace(item, render_node=host.shown(node))
        reason, remedy = refusal
        if not node.exists() and not container(host):
            reason, remedy = f"{host.shown(node)} is missing: Windows shares no GPU with this WSL.", UPDATE_WINDOWS
    return replace(item, reason=reason, remedy=remedy)
