"""Any DirectX 12 card on Windows and WSL2 through torch-directml, as of version 0.2.5.dev240914.

The package lists cards in DXCore's order with only a name: no address, no LUID, no memory. So the name identifies a
card, and among cards of one name the rank. Software adapters, such as Windows' Basic Render Driver, are emulated.
`is_available` has ended the process; `default_device` is always 0. It supports neither bfloat16
(github.com/microsoft/DirectML, issue 688) nor cumulative sums of integers (343), and users report that single
operations run on the processor.
"""

from __future__ import annotations

import importlib
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import (
    Backend,
    DetectedDevice,
    DeviceAbsent,
    InstallOffer,
    TorchAccess,
    TorchSupport,
    Visibility,
)
from backend.devices._mechanisms.card_list import describe_all
from backend.devices._mechanisms.identity import match_device
from backend.devices._mechanisms.software_adapters import kind_and_hardware


def _environment(detected: DetectedDevice) -> dict[str, str]:
    return {"DML_VISIBLE_DEVICES": str(detected.position)}


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the cards of the package. Raises DeviceAbsent."""
    torch_directml = importlib.import_module("torch_directml")
    count = int(torch_directml.device_count())
    if not count:
        raise DeviceAbsent("it lists no DirectX 12 adapter")
    return describe_all(
        lambda position: _describe_adapter(torch_directml, position, count), count, "DirectX 12", "torch_directml"
    )


def _describe_adapter(torch_directml: Any, position: int, count: int) -> DetectedDevice:
    name = clean_name(torch_directml.device_name(position))
    kind, hardware_id = kind_and_hardware(name, "gpu")
    return DetectedDevice(name, kind, hardware_id, None, None, "torch_directml", position, count)


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open a card. Raises DeviceAbsent."""
    torch_directml = importlib.import_module("torch_directml")
    device = torch_directml.device(match_device(detected, _list_devices(torch)).position)
    probe = torch.tensor([[0.0]]).to(device)  # the package cannot synchronize; reading a value back waits
    return TorchAccess(torch, device, "privateuseone", probe.cpu, None, dtype="float16", plain_only=True)


BACKEND = Backend(
    name="directml",
    label="DirectML",
    kind="gpu",
    rank=160,
    runtimes=("directml",),
    aliases=("dml",),
    systems=("linux", "win32"),
    offers=(InstallOffer("directml", systems=("win32",)),),
    torch=TorchSupport(_list_devices, _open_device, library="torch_directml"),
    visibility=Visibility(variables=("DML_VISIBLE_DEVICES",), environment=_environment),
)
