"""The service that manages runtimes: it lists them and accepts the jobs that change them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict

from backend.child.handle import Spawn
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.errors import JobActive, JobCancelled, NotFound, TouchstoneError, Validation
from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob, new_row
from backend.jobs.registry import JobRegistry
from backend.manager.job_dispatcher import JobWork, StartJob
from backend.manager.runtime_service import recommendation
from backend.manager.runtime_service.description import BASE, RuntimeDescriber
from backend.manager.runtime_service.jobs import RuntimeJobs
from backend.manager.runtime_service.state import RuntimeState, RuntimeStates
from backend.manager.runtime_service.verification import RuntimeVerifier
from backend.runtimes.installer import RuntimeInstaller, buildable
from backend.runtimes.recipes import Recipe, recipes
from backend.runtimes.store import RuntimeStore
from backend.runtimes.types import Runtime
from backend.scheduling.device_directory import DeviceDirectory, StartTask
from backend.scheduling.worker_pool import WorkerPool

log = logging.getLogger(__name__)


class RuntimeService:
    """Lists, installs, verifies, updates, rolls back and removes runtimes."""

    def __init__(
        self,
        settings: Settings,
        store: RuntimeStore,
        pythons: dict[str, str],
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        *,
        spawn: Spawn,
        start: StartJob,
        start_task: StartTask,
        publish: Callable[[str, JsonObject], None],
    ) -> None:
        """`pythons` are the interpreters in use by runtime; installs and removals change it."""
        self.store = store
        self._pythons = pythons
        self._directory = directory
        self._pool = pool
        self._registry = registry
        self._start = start
        self._start_task = start_task
        self._publish_event = publish
        self._states = RuntimeStates(registry)
        self._describer = RuntimeDescriber(settings, pythons, store, directory)
        self._accept_lock = asyncio.Lock()  # without it two requests at once could both find no active job
        self._jobs = RuntimeJobs(
            settings,
            store,
            RuntimeInstaller(store, settings.data_dir / "tools", spawn),
            pythons,
            directory,
            pool,
            self._describer,
            RuntimeVerifier(settings.supervision.probe_s, spawn, directory),
            self._states,
            start_task,
            self._publish,
        )

    @property
    def lock(self) -> asyncio.Lock:
        """The lock held while an environment is installed or proved."""
        return self._jobs.lock

    def sweep(self) -> None:
        """Delete what a killed server left behind. Called before any runtime is in use."""
        for name, recipe in recipes().items():
            self.store.sweep(name)
            for former in recipe.replaces if self.store.current(name) else ():
                self.store.remove(former)

    def runtimes(self) -> list[Runtime]:
        """Return all runtimes."""
        described = [self._describer.describe(recipe, self._states.get(recipe.name)) for recipe in recipes().values()]
        return [*self._describer.describe_others(recipes()), *described]

    def runtime(self, name: str) -> Runtime:
        """Return one runtime. Raises NotFound."""
        runtime = next((runtime for runtime in self.runtimes() if runtime.name == name), None)
        if runtime is None:
            successor = next((recipe.name for recipe in recipes().values() if name in recipe.replaces), None)
            install = f"`{command(f'runtimes install {successor}')}` installs its successor. " if successor else ""
            raise NotFound(f"Unknown runtime {name[:100]!r}.", f"{install}Runtimes: {', '.join(recipes())}.")
        return runtime

    def overview(self) -> JsonObject:
        """Return all runtimes, and the `best` one to install first (None if none is missing) with its reason."""
        runtimes = self.runtimes()
        name, reason = recommendation.best(recipes().values(), runtimes, self._directory.hardware())
        return {"runtimes": [asdict(runtime) for runtime in runtimes], "best": name, "best_reason": reason}

    async def submit(self, task: str, name: str, caller: str) -> LiveJob:
        """Accept an `install`, `update` or `verify` job. Returns the active job if it does the same.

        Raises NotFound, Validation, JobActive, DiskFull.
        """
        async with self._accept_lock:
            recipe = self._recipe(name)
            active = self._states.active_job(name)
            if active and active.task == task:
                return active
            self._require_no_job(name)
            self._check(task, recipe)
            job = await self._registry.add(new_row(task, None, {"runtime": name}, caller))
            self._start(job, runtime=name)
            return job

    def handle(self, job: LiveJob) -> JobWork:
        """Return the work of an `install`, `update` or `verify` job."""
        return JobWork(self._run(job))

    async def rollback(self, name: str) -> Runtime:
        """Switch to the previous version. Raises NotFound, Validation, JobActive."""
        self._recipe(name)
        self._require_no_job(name)
        previous = self.store.previous(name)
        if previous is None:
            raise Validation(f"The runtime {name} has no previous version.", "Only an update keeps a previous version.")
        await self._jobs.adopt(name, previous.version)
        # In the background: the version passed its proofs when it was installed.
        self._start_task(self._directory.probes.probe(runtime=name))
        self._states.set(name, RuntimeState())
        return self.runtime(name)

    async def remove(self, name: str) -> int:
        """Remove a runtime and log it. Returns the bytes freed. Raises NotFound, Validation, JobActive."""
        self._check_removable(name)
        await self._directory.probes.wait_until_idle()  # a probe that ends later would list its devices again
        async with self._accept_lock:  # no job is accepted for it meanwhile
            self._check_removable(name)  # a job may have started during the wait
            self._pythons.pop(name, None)
            for loaded in self._pool.of_runtime(name):
                await self._pool.unload(loaded, f"runtime {name} removed")
            self._directory.probes.table.forget(name)
            self._states.set(name, RuntimeState())
            freed_bytes = await asyncio.to_thread(self.store.remove, name)
        log.info("runtime removed", extra={"runtime": name, "bytes": freed_bytes})
        return freed_bytes

    def problems(self) -> list[dict[str, str | None]]:
        """Return the runtimes whose last proof failed, as problems of `GET /api/health`."""
        troubles = self._directory.probes.table.runtime_problems
        return [
            {"subject": f"runtime:{name}", "code": "runtime_broken", "detail": error.detail, "remedy": error.remedy}
            for name, error in self._states.failed_proofs().items()
            if name not in troubles
        ]

    def _publish(self, name: str) -> None:
        """Publish a runtime on the event bus."""
        self._publish_event("runtime", asdict(self.runtime(name)))

    async def _run(self, job: LiveJob) -> None:
        name = str(job.parameters["runtime"])
        try:
            recipe = self._recipe(name)
            self._check(job.task, recipe)
            await self._jobs.run(job, recipe)
        except JobCancelled:
            raise
        except TouchstoneError as error:
            is_unproved = job.task != "update" and self.store.current(name) is not None
            self._states.set(name, RuntimeState(failure=error, is_unproved=is_unproved))
            raise

    def _recipe(self, name: str) -> Recipe:
        """Return the recipe of a runtime that Touchstone manages. Raises NotFound, Validation."""
        runtime = self.runtime(name)
        if name == BASE:
            raise Validation("`base` is the service's own environment.", "The launcher installs and updates it.")
        if self._describer.is_user_runtime(name):
            raise Validation(
                f"The runtime {name} is your own environment ({runtime.python}), which Touchstone never changes.",
                "Change it yourself, or remove it from `runtimes` in config.yaml and restart.",
            )
        return recipes()[name]

    def _check(self, task: str, recipe: Recipe) -> None:
        """Check that a job could succeed. Raises Validation."""
        runtime = self.runtime(recipe.name)
        if task == "install":
            buildable(recipe)
            if runtime.state == "unsupported":
                raise Validation(f"{recipe.name}: {runtime.reason}", str(runtime.remedy))
        elif runtime.version is None:
            raise Validation(
                f"The runtime {recipe.name} is not installed.",
                f"Install it: `{command(f'runtimes install {recipe.name}')}`.",
            )

    def _check_removable(self, name: str) -> None:
        self._recipe(name)
        self._require_no_job(name)
        if self.store.current(name) is None and not self.store.broken(name):
            raise Validation(
                f"The runtime {name} is not installed.", f"Run `{command('runtimes')}` to list the installed ones."
            )
        if self._pool.runtime_in_use(name):
            raise JobActive(f"Jobs run in the runtime {name}.", "Wait for them or cancel them first.")

    def _require_no_job(self, name: str) -> None:
        if active := self._states.active_job(name):
            raise JobActive(f"The job {active.id} ({active.task}) uses {name}.", "Wait for it or cancel it first.")
