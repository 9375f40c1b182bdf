"""Proofs of one version of a runtime: its devices, apart from those in use, and their speed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.child.handle import Spawn
from backend.common.commands import command
from backend.common.errors import RuntimeFailed
from backend.common.types import Device, Hardware
from backend.devices import backends
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.device_table import RuntimeProblem
from backend.scheduling.probing.installable import fitting, offers_for

SLOWER = 0.8  # share of the earlier speed below which a device is reported as slower
ROUNDS = 3


@dataclass(frozen=True)
class ProofResult:
    """The outcome of the proofs of one version. `trouble` is set if the runtime could not list its devices."""

    devices: list[Device] = field(default_factory=list)
    trouble: RuntimeProblem | None = None

    @property
    def ready(self) -> list[Device]:
        """The devices that passed."""
        return [device for device in self.devices if device.state == "ready"]

    @property
    def speeds(self) -> dict[str, float | None]:
        """GFLOP/s by device id."""
        return {device.id: device.proof.gflops for device in self.ready if device.proof}


class RuntimeVerifier:
    """Proves interpreters that are not in use yet."""

    def __init__(self, limit_s: float, spawn: Spawn, directory: DeviceDirectory) -> None:
        """`limit_s` is the timeout of one proof."""
        self._limit_s = limit_s
        self._spawn = spawn
        self._directory = directory

    async def prove(self, name: str, python: str) -> ProofResult:
        """List and prove the devices of an interpreter. The devices of the service stay as they are."""

        async def surveyed(_: Spawn) -> list[Hardware]:
            return list(self._directory.probes.table.surveyed.values())

        probes = ProbeService({name: python}, self._limit_s, self._spawn, self._directory.queue, inventory=surveyed)
        await probes.probe()
        return result_of(probes, name)

    async def describe_slowdown(
        self, name: str, new: str, result: ProofResult, old: str, before: dict[str, float | None]
    ) -> str:
        """Return which devices are slower under the interpreter `new` than under `old`; empty if none is.

        `before` are the speeds when the old version was installed. A device that looks slower is measured again, old
        and new in turns. It counts only if it is slower in every round, since other programs disturb single rounds.
        """
        slower = _slower(before, result.speeds)
        for _ in range(ROUNDS):
            if not slower:
                return ""
            pair = _slower((await self.prove(name, old)).speeds, (await self.prove(name, new)).speeds)
            slower = {device_id: speeds for device_id, speeds in pair.items() if device_id in slower}
        clauses = [
            f"{device_id} computes {1 - after / earlier:.0%} slower than before ({earlier:.3g} → {after:.3g} GFLOP/s)"
            for device_id, (earlier, after) in slower.items()
        ]
        if not clauses:
            return ""
        return (
            f"{'; '.join(clauses)}, in each of {ROUNDS} rounds. To go back: `{command(f'runtimes rollback {name}')}`."
        )


def result_of(probes: ProbeService, name: str) -> ProofResult:
    """Return what a runtime reported of its devices in the last round of probes."""
    reported = (probes.table.report(name, device_id) for device_id in probes.devices)
    return ProofResult([device for device in reported if device], probes.table.runtime_problems.get(name))


def check(name: str, result: ProofResult, hardware: Iterable[Hardware]) -> None:
    """Check that a device works: one that the runtime is made for, if its hardware is here. Raises RuntimeFailed."""
    wanted = {backend for backend, _ in meant_for(name, hardware)}
    failed = [device for device in result.devices if device.state != "ready"]
    if not wanted:  # without hardware for it, devices that it finds all the same must not be broken
        own = _backends_of(name)
        wanted = {device.backend for device in failed if device.backend in own and device.state == "broken"}
    if any(not wanted or device.backend in wanted for device in result.ready):
        return
    first = next((device for device in failed if device.backend in wanted), failed[0] if failed else None)
    if first is not None:
        layer = f" ({first.layer})" if first.layer else ""
        raise RuntimeFailed(
            f"The proof of {first.id} failed{layer}: {first.reason}",
            first.remedy or f"Run `{command('doctor')}` for the details.",
        )
    detail = result.trouble.detail if result.trouble else "It lists no devices."
    raise RuntimeFailed(
        f"The proofs of {name} failed: {detail}", f"Update Touchstone or report the output of `{command('doctor')}`."
    )


def meant_for(name: str, hardware: Iterable[Hardware]) -> list[tuple[str, Hardware]]:
    """Return the backends that a runtime is made for, each with hardware of this machine that it would use."""
    pairs = []
    for item in hardware:
        for backend in backends().values():
            offered = [offer.runtime for offer in offers_for(backend, item)]
            same_kind = (item.kind == "npu") == (backend.kind == "npu")
            is_default = not backend.offers and backend.runtimes[0] == name and same_kind and fitting(backend, [item])
            if is_default or name in offered:
                pairs.append((backend.name, item))
    return pairs


def _backends_of(name: str) -> set[str]:
    """Return the backends that a runtime is made for."""
    return {
        backend.name
        for backend in backends().values()
        if backend.runtimes[0] == name or any(offer.runtime == name for offer in backend.offers)
    }


def _slower(old: dict[str, float | None], new: dict[str, float | None]) -> dict[str, tuple[float, float]]:
    """Return the (old, new) speeds of the devices that are slower."""
    pairs = {device_id: (old.get(device_id), after) for device_id, after in new.items()}
    return {
        device_id: (before, after)
        for device_id, (before, after) in pairs.items()
        if before and after and after < SLOWER * before
    }
