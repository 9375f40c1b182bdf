"""What the jobs of runtimes do: resolve, make, prove, and only then switch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.common.errors import TouchstoneError, Validation
from backend.common.types import Progress
from backend.jobs.executor import cancel_on, cancelled
from backend.jobs.live_job import LiveJob
from backend.manager.runtime_service.description import About, unsupported
from backend.manager.runtime_service.verification import Proved, check, meant_for, prove, proved_by, slower
from backend.runtimes.recipes import Recipe, size
from backend.runtimes.store import InstalledRuntime
from backend.scheduling.worker_pool import LoadedModel

if TYPE_CHECKING:
    from backend.manager.core import Core
    from backend.manager.runtime_service import RuntimeService


async def do(manager: Core, upkeep: RuntimeService, job: LiveJob, recipe: Recipe) -> None:
    """Runs an `install`, `update` or `verify` to its end. Raises RuntimeFailed, DiskFull, JobCancelled and the like."""
    async with _turn(job, upkeep.lock):
        await job.set_status("running", {"runtime": recipe.name})
        upkeep.tell(recipe.name)
        try:
            current = upkeep.store.current(recipe.name)
            if job.task == "verify" or (job.task == "install" and current):
                said = await cancel_on(job.cancelling, _verify(manager, recipe.name, job), cancelled)
                upkeep.note(recipe.name, replace(upkeep.about(recipe.name), failure=None, unproved=False))
            else:
                fresh = await cancel_on(job.cancelling, _prepared(manager, upkeep, job, recipe, current), cancelled)
                said = await asyncio.shield(_count(manager, upkeep, recipe.name, fresh))
            await job.emit("token", {"text": said, "count": 0})
        except TouchstoneError:  # not for the end of the server, which cannot wait: the next start removes the rest
            await asyncio.to_thread(upkeep.store.sweep, recipe.name)
            raise
        finally:
            asyncio.get_running_loop().call_soon(upkeep.tell, recipe.name)


async def adopt(manager: Core, upkeep: RuntimeService, name: str, version: str) -> None:
    """Makes a version the current one: workers start in it from now on; those of the other one end when idle."""
    await asyncio.to_thread(upkeep.store.switch, name, version)
    made = upkeep.store.current(name)
    assert made, "it was whole a moment ago"
    manager.pythons[name] = made.python
    old = manager.pool.of_runtime(name)
    for held in old:
        if not held.users:
            await manager.pool.unload(held)
    for held in old:
        manager.in_background(_unload_later(manager, held))


async def _unload_later(manager: Core, held: LoadedModel) -> None:
    """A worker of another version serves the jobs it has, and no longer."""
    await held.unused.wait()
    await manager.pool.unload(held)


async def _verify(manager: Core, name: str, job: LiveJob) -> str:
    await _tell(job, Progress("prove", 0, None, "devices"))
    # A round that is broken off would leave devices as being checked, so a cancel leaves it to itself.
    await asyncio.shield(manager.in_background(manager.probes.probe(runtime=name)))
    proved = proved_by(manager.probes, name)
    check(name, proved, manager.hardware())
    return f"{name} works: {_devices(proved)}."


@dataclass(frozen=True)
class _Fresh:
    """A version that passed its proofs; no `made` where there is nothing newer."""

    said: str
    made: InstalledRuntime | None = None
    slower: str = ""


async def _prepared(
    manager: Core, upkeep: RuntimeService, job: LiveJob, recipe: Recipe, current: InstalledRuntime | None
) -> _Fresh:
    """Makes another version and proves it."""
    name = recipe.name

    async def tell(progress: Progress) -> None:
        await _tell(job, progress)

    rules = manager.settings.runtimes.get(name)
    await manager.probes.wait_until_idle()  # what hardware is here decides what is installed, and what has to work
    if refusal := unsupported(manager, recipe):
        raise Validation(*refusal)
    chips = [item.architecture for _, item in meant_for(name, manager.hardware()) if item.architecture]
    lock, about = await upkeep.installer.lock(recipe, tell, next(iter(chips), None), rules.index if rules else None)
    if current and current.version == lock.digest:
        return _Fresh(f"{name} is up to date: nothing newer fits together.")
    made = upkeep.store.made(name, lock.digest)  # the one that was gone back from, for instance
    if made is None:
        fetched = f", {size(lock.download_bytes)} to fetch at most" if lock.download_bytes else ""
        await tell(Progress(f"{len(lock.packages)} packages{fetched}", 0, None, "bytes"))
        made = await upkeep.installer.make(recipe, lock, about, tell)
    await tell(Progress("prove", 0, None, "devices"))
    proved = await prove(manager, name, made.python)
    check(name, proved, manager.hardware())
    words = ""
    if current:
        words = await slower(manager, name, made.python, proved, current.python, current.speeds)
    said = f"{name} is installed ({size(made.bytes)}): {_devices(proved)}." + (f" {words}" if words else "")
    return _Fresh(said, replace(made, speeds=proved.speeds), words)


async def _count(manager: Core, upkeep: RuntimeService, name: str, fresh: _Fresh) -> str:
    """From here on it counts, whatever happens."""
    if fresh.made:
        await asyncio.to_thread(upkeep.store.finish, name, fresh.made)
        await adopt(manager, upkeep, name, fresh.made.version)
        await manager.probes.probe(runtime=name)
        if not manager.pool.runtime_in_use(name):
            await asyncio.to_thread(upkeep.store.sweep, name)
    upkeep.note(name, About(slower=fresh.slower))
    return fresh.said


async def _tell(job: LiveJob, progress: Progress) -> None:
    job.progress = progress
    await job.emit("progress", vars(progress))


def _devices(proved: Proved) -> str:
    good = [device.id for device in proved.ready]
    bad = [f"{device.id} is broken: {device.reason}" for device in proved.devices if device.state == "broken"]
    return "; ".join([f"{', '.join(good)} proved", *bad]).rstrip(".")


@contextlib.asynccontextmanager
async def _turn(job: LiveJob, lock: asyncio.Lock) -> AsyncIterator[None]:
    """Waits for the one place; a cancel gives the wait up."""
    await cancel_on(job.cancelling, lock.acquire(), cancelled)
    try:
        yield
    finally:
        lock.release()
