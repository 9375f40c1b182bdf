"""Whether a version of a runtime works: its devices, proved apart from those in use, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backend.child.handle import Spawn
from backend.common.errors import RuntimeFailed
from backend.common.types import Device, Hardware
from backend.devices import backends
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.device_table import Trouble
from backend.scheduling.probing.installable import fitting, offer_for

if TYPE_CHECKING:
    from backend.manager.core import Core

SLOWER = 0.8  # of the speed before: worth a word
ROUNDS = 3


@dataclass(frozen=True)
class Proved:
    """What came of the proofs of one version."""

    devices: list[Device] = field(default_factory=list)
    trouble: Trouble | None = None

    @property
    def ready(self) -> list[Device]:
        """Those that computed rightly."""
        return [device for device in self.devices if device.state == "ready"]

    @property
    def speeds(self) -> dict[str, float | None]:
        """GFLOP/s by device."""
        return {device.id: device.proof.gflops for device in self.ready if device.proof}


async def prove(manager: Core, name: str, python: str) -> Proved:
    """Lists and proves the devices of an interpreter; what the service knows of its devices stays as it is."""

    async def known(_: Spawn) -> list[Hardware]:
        return list(manager.probes.table.surveyed.values())

    limit_s = manager.settings.supervision.probe_s
    probes = ProbeService({name: python}, limit_s, manager.spawn, manager.queue, inventory=known)
    await probes.probe()
    return proved_by(probes, name)


def proved_by(probes: ProbeService, name: str) -> Proved:
    """What a runtime's own word on devices is, after a round."""
    said = (probes.table.by(name, id_) for id_ in probes.devices)
    return Proved([device for device in said if device], probes.table.troubles.get(name))


def check(name: str, proved: Proved, hardware: Iterable[Hardware]) -> None:
    """Raises RuntimeFailed unless a device works; one that the runtime is for, if there is hardware for it."""
    wanted = {backend for backend, _ in meant_for(name, hardware)}
    bad = [device for device in proved.devices if device.state != "ready"]
    if not wanted:  # what it finds all the same must not be broken
        own = _backends_of(name)
        wanted = {device.backend for device in bad if device.backend in own and device.state == "broken"}
    if any(not wanted or device.backend in wanted for device in proved.ready):
        return
    first = next((device for device in bad if device.backend in wanted), bad[0] if bad else None)
    if first is not None:
        layer = f" ({first.layer})" if first.layer else ""
        raise RuntimeFailed(
            f"The proof of {first.id} failed{layer}: {first.reason}",
            first.remedy or "Run `doctor` for the details.",
        )
    detail = proved.trouble.detail if proved.trouble else "It lists no device at all."
    raise RuntimeFailed(f"The proofs of {name} failed: {detail}", "Update Touchstone, or report what `doctor` says.")


def meant_for(name: str, hardware: Iterable[Hardware]) -> list[tuple[str, Hardware]]:
    """The backends that a runtime is made for, each with hardware here that it would drive."""
    found = []
    for item in hardware:
        for backend in backends().values():
            offer = offer_for(backend, item)
            alike = (item.kind == "npu") == (backend.kind == "npu")
            bare = not backend.offers and backend.runtimes[0] == name and alike and fitting(backend, [item])
            if bare or (offer and offer.runtime == name):
                found.append((backend.name, item))
    return found


def _backends_of(name: str) -> set[str]:
    """The backends that a runtime is there for."""
    return {
        backend.name
        for backend in backends().values()
        if backend.runtimes[0] == name or any(offer.runtime == name for offer in backend.offers)
    }


async def slower(manager: Core, name: str, new: str, fresh: Proved, old: str, before: dict[str, float | None]) -> str:
    """In words which devices are slower under the new interpreter than under the old one; empty if none is.

    What seems so by the earlier figures is measured again, old and new in turns: only what is slower every time counts,
    since other programs slow down now the one and now the other.
    """
    behind = _behind(before, fresh.speeds)
    for _ in range(ROUNDS):
        if not behind:
            return ""
        pair = _behind((await prove(manager, name, old)).speeds, (await prove(manager, name, new)).speeds)
        behind = {id_: figures for id_, figures in pair.items() if id_ in behind}
    words = [
        f"{id_} computes {1 - after / earlier:.0%} slower than before ({earlier:.3g} → {after:.3g} GFLOP/s)"
        for id_, (earlier, after) in behind.items()
    ]
    return "; ".join(words) + f", in each of {ROUNDS} rounds. `runtimes rollback {name}` goes back." if words else ""


def _behind(old: dict[str, float | None], new: dict[str, float | None]) -> dict[str, tuple[float, float]]:
    pairs = {id_: (old.get(id_), after) for id_, after in new.items()}
    return {id_: (was, now) for id_, (was, now) in pairs.items() if was and now and now < SLOWER * was}
