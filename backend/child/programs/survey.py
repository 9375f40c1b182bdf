"""The survey program: `survey hardware` lists the machine's hardware, `survey system` the facts for the doctor.

Child → parent: `hardware {hardware}` for each step, the last one the fullest; or `system {system}` after them. Every
command of a vendor that it runs has a limit of its own; a file that never answers is the parent's to end.
"""

from __future__ import annotations

from dataclasses import asdict

from backend.child.wire_protocol import Channel
from backend.common.hardware import hardware
from backend.common.hardware.host import Host, remembered, run_command
from backend.common.hardware.system import system
from backend.common.types import Hardware


def main(channel: Channel, arguments: list[str]) -> int:
    """Sends what is found as soon as it is."""
    host = Host(run=remembered(run_command))
    found: list[Hardware] = []
    for found in hardware(host):
        channel.send({"op": "hardware", "hardware": [asdict(item) for item in found]})
    if arguments == ["system"]:
        channel.send({"op": "system", "system": asdict(system(host, found))})
    return 0
