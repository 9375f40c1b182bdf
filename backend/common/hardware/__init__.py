"""The hardware inventory of this machine, without any machine-learning library.

`hardware(host)` yields it in steps, each more complete: first from files, which cannot hang, then with the output of
the vendors' tools. `system(host)` returns the facts about the system for the doctor. Both run in a child process; the
server calls them through `backend.scheduling.probing.inventory`.
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
    """Yield lists of all hardware, the last one the most complete. Ids do not change between them."""
    host = host or Host()
    for items in _steps(host):
        hidden = hidden_by(items, host.environment)
        yield by_address(replace(item, hidden_by=hidden.get(item.id, [])) for item in items)


def _steps(host: Host) -> Iterator[list[Hardware]]:
    if host.platform == "win32":
        yield [processor(host, "", None, None, None, [])]
        facts = windows.query_windows(host, powershell(host) or "powershell.exe")
        yield [windows.windows_cpu(host, facts), *windows.adapters(facts, nvidia.from_tool(host).cards)]
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
        if tool.cards or tool.error:
            both = {id_: _merge_facts(card, files.cards.get(id_)) for id_, card in tool.cards.items()}
            yield [*others, *cards_of(host, nvidia.Driver({**files.cards, **both}, error=tool.error))]


def _merge_facts(from_tool: nvidia.CardFacts, from_file: nvidia.CardFacts | None) -> nvidia.CardFacts:
    return replace(from_tool, minor=from_file.minor) if from_file else from_tool
