"""The hardware inventory of this machine, without any machine-learning library.

`hardware(host)` yields it in steps, each more complete: first from files, then with the output of the vendors' tools.
Each file and each tool has a timeout. `system(host)` returns the facts about the system for the doctor. Both run in a
child process; the server calls them through `backend.scheduling.probing.inventory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backend.common.hardware import nvidia, windows
from backend.common.hardware.apple import mac
from backend.common.hardware.cpu import linux_cpu, processor
from backend.common.hardware.host import Host, silent_files
from backend.common.hardware.linux import by_address, cards_of
from backend.common.hardware.soc import devices_of
from backend.common.hardware.visibility import hidden_by
from backend.common.hardware.wsl import powershell, wsl
from backend.common.hardware.wsl_host_gpus import windows_cards
from backend.common.types import Hardware


def hardware(host: Host | None = None) -> Iterator[list[Hardware]]:
    """Yield lists of all hardware, the last one the most complete. Ids do not change between them."""
    host = host or Host()
    for items in _steps(host):
        hidden = hidden_by(items, host.environment)
        yield by_address(replace(_with_silent_files(host, item), hidden_by=hidden.get(item.id, [])) for item in items)


def _with_silent_files(host: Host, item: Hardware) -> Hardware:
    """Add the reason to a card whose driver does not answer the reads of its files."""
    address = item.id.removeprefix("pci:")
    path = next((path for path in silent_files(host) if address in path.parts), None)
    if item.reason or path is None:
        return item
    return replace(
        item,
        reason=f"Its driver does not answer: a read of {host.shown(path)} did not return.",
        remedy="Look for the driver's messages in `sudo dmesg`, then restart the machine.",
    )


def _steps(host: Host) -> Iterator[list[Hardware]]:
    if host.platform == "win32":
        yield [processor(host, "", None, None, None, [])]
        facts = windows.query_windows(host, powershell(host) or "powershell.exe")
        yield [windows.windows_cpu(host, facts), *windows.adapters(facts, nvidia.from_tool(host))]
    elif host.platform == "darwin":
        yield [processor(host, "", None, None, None, [])]
        yield mac(host)
    elif wsl(host):
        yield [linux_cpu(host)]
        yield [linux_cpu(host), *windows_cards(host)]
    else:
        files = nvidia.from_files(host)
        others = [linux_cpu(host), *devices_of(host)]
        yield [*others, *cards_of(host, files)]
        tool = nvidia.from_tool(host)
        if tool != nvidia.Driver({}):
            both = {id_: _merge_facts(card, files.cards.get(id_)) for id_, card in tool.cards.items()}
            yield [*others, *cards_of(host, replace(tool, cards={**files.cards, **both}))]


def _merge_facts(from_tool: nvidia.CardFacts, from_file: nvidia.CardFacts | None) -> nvidia.CardFacts:
    if from_file is None:
        return from_tool
    return replace(
        from_tool,
        name=from_tool.name or from_file.name,
        uuid=from_tool.uuid or from_file.uuid,
        minor=from_file.minor,
    )
