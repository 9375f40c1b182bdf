"""The work of `install`, `update` and `verify` jobs: resolve, install, prove, and only then switch versions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from backend.common.config.settings import Settings
from backend.common.errors import TouchstoneError, Validation
from backend.common.types import Progress
from backend.jobs.executor import cancel_on, cancelled
from backend.jobs.live_job import LiveJob
from backend.manager.job_progress import hold_lock, report_progress
from backend.manager.runtime_service.description import RuntimeDescriber
from backend.manager.runtime_service.state import RuntimeState, RuntimeStates
from backend.manager.runtime_service.verification import ProofResult, RuntimeVerifier, check, meant_for, result_of
from backend.runtimes.installer import RuntimeInstaller
from backend.runtimes.recipes import Recipe, size
from backend.runtimes.store import InstalledRuntime, RuntimeStore
from backend.scheduling.device_directory import DeviceDirectory, StartTask
from backend.scheduling.worker_pool import LoadedModel, WorkerPool

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Version:
    """A version that passed its proofs. `installed` is None if the current one is up to date."""

    summary: str
    installed: InstalledRuntime | None = None
    slowdown: str = ""


class RuntimeJobs:
    """Runs the jobs of runtimes, one at a time: they share disk and network."""

    def __init__(
        self,
        settings: Settings,
        store: RuntimeStore,
        installer: RuntimeInstaller,
        pythons: dict[str, str],
        directory: DeviceDirectory,
        pool: WorkerPool,
        describer: RuntimeDescriber,
        verifier: RuntimeVerifier,
        states: RuntimeStates,
        start_task: StartTask,
        publish: Callable[[str], None],
    ) -> None:
        """`pythons` is changed when a version is switched. `publish` is called with a runtime whose state changed."""
        self._settings = settings
        self._store = store
        self._installer = installer
        self._pythons = pythons
        self._directory = directory
        self._pool = pool
        self._describer = describer
        self._verifier = verifier
        self._states = states
        self._start_task = start_task
        self._publish = publish
        self.lock = asyncio.Lock()

    async def run(self, job: LiveJob, recipe: Recipe) -> None:
        """Run a job to its end, and log its start and end. Raises RuntimeFailed, DiskFull, JobCancelled, Validation."""
        name, fields = recipe.name, {"job": job.id, "runtime": recipe.name, "task": job.task}
        async with hold_lock(job, self.lock):
            await job.set_status("running", {"runtime": name})
            log.info("%s of a runtime started", job.task, extra=fields)
            self._publish(name)
            try:
                current = self._store.current(name)
                if job.task == "verify" or (job.task == "install" and current):
                    summary = await cancel_on(job.cancelling, self._verify(name, job), cancelled)
                    self._states.clear_failure(name)
                else:
                    version = await cancel_on(job.cancelling, self._prepare(job, recipe, current), cancelled)
                    summary = await asyncio.shield(self._finish(name, version))
                log.info("%s of a runtime finished", job.task, extra=fields)
                await job.emit("token", {"text": summary, "count": 0})
            except TouchstoneError as error:
                log.warning(
                    "%s of a runtime failed", job.task, extra={**fields, "code": error.code, "detail": error.detail}
                )
                # Not at the end of the server, which cannot wait: the next start removes the leftovers.
                await asyncio.to_thread(self._store.sweep, name)
                raise
            finally:
                asyncio.get_running_loop().call_soon(self._publish, name)

    async def adopt(self, name: str, version: str) -> None:
        """Make a version the current one. New workers start in it; those of the other version end when idle."""
        await asyncio.to_thread(self._store.switch, name, version)
        installed = self._store.current(name)
        assert installed, "its files were complete a moment ago"
        self._pythons[name] = installed.python
        log.info("runtime version switched", extra={"runtime": name, "version": version})
        outdated = self._pool.of_runtime(name)
        cause = f"runtime {name} switched to {version}"
        for loaded in outdated:
            if not loaded.users:
                await self._pool.unload(loaded, cause)
        for loaded in outdated:
            self._start_task(self._unload_when_idle(loaded, cause))

    async def _unload_when_idle(self, loaded: LoadedModel, cause: str) -> None:
        """Unload a model of an older version after its running jobs."""
        await loaded.unused.wait()
        await self._pool.unload(loaded, cause)

    async def _verify(self, name: str, job: LiveJob) -> str:
        await report_progress(job)(Progress("prove", 0, None, "devices"))
        # Shielded: a cancelled round of probes would leave devices in the state `probing`.
        await asyncio.shield(self._start_task(self._directory.probes.probe(runtime=name)))
        result = result_of(self._directory.probes, name)
        check(name, result, self._directory.hardware())
        return f"{name} works: {_summary(result)}."

    async def _prepare(self, job: LiveJob, recipe: Recipe, current: InstalledRuntime | None) -> _Version:
        """Install another version next to the current one and prove it."""
        name, report = recipe.name, report_progress(job)
        rules = self._settings.runtimes.get(name)
        # The hardware decides what is installed, and which devices have to pass.
        await self._directory.probes.wait_until_idle()
        if refusal := self._describer.refusal_of(recipe):
            raise Validation(*refusal)
        hardware = self._directory.hardware()
        chips = [item.architecture for _, item in meant_for(name, hardware) if item.architecture]
        index = rules.index if rules else None
        lock, about = await self._installer.lock(recipe, report, next(iter(chips), None), index)
        if current and current.version == lock.digest:
            return _Version(f"{name} is up to date: no newer versions fit together.")
        installed = self._store.made(name, lock.digest)  # for instance the version that was rolled back
        if installed is None:
            download = f", {size(lock.download_bytes)} to download at most" if lock.download_bytes else ""
            await report(Progress(f"{len(lock.packages)} packages{download}", 0, None, "bytes"))
            installed = await self._installer.make(recipe, lock, about, report)
        await report(Progress("prove", 0, None, "devices"))
        result = await self._verifier.prove(name, installed.python)
        check(name, result, hardware)
        slowdown = ""
        if current:
            slowdown = await self._verifier.describe_slowdown(
                name, installed.python, result, current.python, current.speeds
            )
        summary = f"{name} is installed ({size(installed.bytes)}): {_summary(result)}."
        summary += f" {slowdown}" if slowdown else ""
        return _Version(summary, replace(installed, speeds=result.speeds), slowdown)

    async def _finish(self, name: str, version: _Version) -> str:
        """Switch to a proved version. Shielded from a cancel: a switch is not interrupted."""
        if version.installed:
            await asyncio.to_thread(self._store.finish, name, version.installed)
            await self.adopt(name, version.installed.version)
            await self._directory.probes.probe(runtime=name)
            if not self._pool.runtime_in_use(name):
                await asyncio.to_thread(self._store.sweep, name)
        self._states.set(name, RuntimeState(slowdown=version.slowdown))
        return version.summary


def _summary(result: ProofResult) -> str:
    passed = [device.id for device in result.ready]
    broken = [f"{device.id} is broken: {device.reason}" for device in result.devices if device.state == "broken"]
    return "; ".join([f"{', '.join(passed)} proved", *broken]).rstrip(".")
