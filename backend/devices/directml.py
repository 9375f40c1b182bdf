"""Any DirectX 12 card on Windows and WSL2 through torch-directml, whose calls were read in 0.2.5.dev240914.

It numbers cards in DXCore's order and tells a name only: no address, no LUID, so a card is known by its place alone.
`is_available` has been seen to end the process; `default_device` is always 0 and says nothing. It has no bfloat16
(github.com/microsoft/DirectML, issue 688) and no running sums of whole numbers (343), and its users report single
operations that go to the processor.
"""

from __future__ import annotations

import importlib
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, DeviceAbsent, InstallOffer

BACKEND = Backend(
    name="directml",
    label="DirectML",
    kind="gpu",
    rank=160,
    runtimes=("directml",),
    aliases=("dml",),
    systems=("linux", "win32"),
    offers=(InstallOffer("directml", systems=("win32",)),),
)
MECHANISMS = {"torch_directml": "_mechanisms.torch"}
HIDING = ("DML_VISIBLE_DEVICES",)


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone, by its place."""
    return {"DML_VISIBLE_DEVICES": str(found.position)}


def list_devices(torch: Any) -> list[DetectedDevice]:
    """Cards that the package lists. Raises Absent."""
    from backend.devices._mechanisms.identity import clean

    torch_directml = importlib.import_module("torch_directml")
    count = int(torch_directml.device_count())
    if not count:
        raise DeviceAbsent("it lists no DirectX 12 adapter")
    names = [clean(torch_directml.device_name(position)) for position in range(count)]
    return [
        DetectedDevice(name, "gpu", None, None, None, "torch_directml", position, count)
        for position, name in enumerate(names)
    ]


def take_place(torch: Any, found: DetectedDevice) -> Any:
    """A place on the card. Raises Absent."""
    from backend.devices._mechanisms.identity import chosen
    from backend.devices._mechanisms.torch import TorchAccess

    torch_directml = importlib.import_module("torch_directml")
    place = chosen(found, list_devices(torch)).position
    device = torch_directml.device(place)
    waiting = torch.tensor([[0.0]]).to(device)  # the package has no call that waits; reading a value back does
    return TorchAccess(torch, device, "privateuseone", waiting.cpu, None, number="float16", plain=True)
