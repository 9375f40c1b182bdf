"""The survey program: `survey hardware` lists the machine's hardware, `survey system` also facts for the doctor.

`survey sensors` reads free memory, energy and power of cards on request, until its stdin ends. Every command that it
runs and every file that it reads has a timeout, and a read that never returns does not keep it from ending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from backend.child.wire_protocol import Channel
from backend.common.hardware import hardware
from backend.common.hardware.energy import card_j, card_w
from backend.common.hardware.free_memory import card_free_bytes
from backend.common.hardware.host import Host, remembered, run_command
from backend.common.hardware.system import system
from backend.common.types import Hardware

SENSORS: Mapping[str, Callable[[str], float | None]] = {
    "free_bytes": card_free_bytes,
    "energy_j": card_j,
    "power_w": card_w,
}


def main(channel: Channel, arguments: list[str]) -> int:
    """Send the hardware after each step, so that the parent has the last result if a step hangs."""
    if arguments == ["sensors"]:
        return _read_sensors(channel)
    host = Host(run=remembered(run_command))
    items: list[Hardware] = []
    for items in hardware(host):
        channel.send({"op": "hardware", "hardware": [asdict(item) for item in items]})
    if arguments == ["system"]:
        channel.send({"op": "system", "system": asdict(system(host, items))})
    channel.send({"op": "end"})
    return 0


def _read_sensors(channel: Channel) -> int:
    while received := channel.receive():
        request = received[0]
        channel.send({"op": "reading", "value": SENSORS[request["quantity"]](request["hardware"])})
    return 0
