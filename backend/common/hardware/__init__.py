"""The physical hardware of this machine, found without any library of machine learning.

`hardware(host)` gives it in steps, each more complete than the one before: first what files tell, which nothing can
make hang, then with what the vendors' own tools say. `system(host)` gives the facts about the system for the doctor.
Both are made for a child process; the server asks for them through `backend.scheduling.probing.inventory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backend.common.hardware import nvidia, windows
from backend.common.hardware.apple import mac
from backend.common.hardware.cpu import linux_cpu, processor
from backend.common.hardware.host import Host
from backend.common.hardware.linux import by_address, cards_of
from backend.common.hardware.soc import devices_of
from backend.common.hardware.visibility import hidden_by
from backend.common.hardware.wsl import powershell, wsl
from backend.common.hardware.wsl_host_gpus import windows_cards
from backend.common.types import Hardware


def hardware(host: Host | None = None) -> Iterator[list[Hardware]]:
    """Lists of all hardware, the last one the fullest. Ids stay the same from one to the next."""
    host = host or Host()
    for found in _steps(host):
        hidden = hidden_by(found, host.environment)
        yield by_address(replace(item, hidden_by=hidden.get(item.id, [])) for item in found)


def _steps(host: Host) -> Iterator[list[Hardware]]:
    if host.platform == "win32":
        yield [processor(host, "", None, None, None, [])]
        told = windows.ask(host, powershell(host) or "powershell.exe")
        yield [windows.windows_cpu(host, told), *windows.adapters(told, nvidia.from_tool(host).cards)]
    elif host.platform == "darwin":
        yield [processor(host, "", None, None, None, [])]
        yield mac(host)
    elif wsl(host):
        yield [linux_cpu(host)]
        yield [linux_cpu(host), *windows_cards(host)]
    else:
        files = nvidia.from_files(host)
        first = [linux_cpu(host), *devices_of(host)]
        yield [*first, *cards_of(host, files)]
        tool = nvidia.from_tool(host)
        if tool.cards or tool.trouble:
            both = {id_: _joined(card, files.cards.get(id_)) for id_, card in tool.cards.items()}
            yield [*first, *cards_of(host, nvidia.Driver({**files.cards, **both}, trouble=tool.trouble))]


def _joined(told: nvidia.Told, file: nvidia.Told | None) -> nvidia.Told:
    return replace(told, minor=file.minor) if file else told
