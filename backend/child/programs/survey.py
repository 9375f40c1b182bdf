"""The survey program: `survey hardware` lists the machine's hardware, `survey system` also facts for the doctor.

Every vendor command that it runs has a timeout. A file whose read never returns is left to the parent's timeout.
"""

from __future__ import annotations

from dataclasses import asdict

from backend.child.wire_protocol import Channel
from backend.common.hardware import hardware
from backend.common.hardware.host import Host, remembered, run_command
from backend.common.hardware.system import system
from backend.common.types import Hardware


def main(channel: Channel, arguments: list[str]) -> int:
    """Send the hardware after each step, so that the parent has the last result if a step hangs."""
    host = Host(run=remembered(run_command))
    items: list[Hardware] = []
    for items in hardware(host):
        channel.send({"op": "hardware", "hardware": [asdict(item) for item in items]})
    if arguments == ["system"]:
        channel.send({"op": "system", "system": asdict(system(host, items))})
    return 0
