"""The runtimes of this machine: what there is, installing, proving, updating, going back, removing.

A version counts only when its proofs passed; until the pointer names it, the one before serves. Jobs of workers that
still run on an older version end in peace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from backend.common.errors import JobActive, NotFound, TouchstoneError, Validation
from backend.jobs.live_job import LiveJob, new_row
from backend.manager.runtime_service import jobs as work
from backend.manager.runtime_service import recommendation
from backend.manager.runtime_service.description import BASE, About, others, own_pythons, view
from backend.runtimes.installer import RuntimeInstaller, buildable
from backend.runtimes.recipes import Recipe, recipes
from backend.runtimes.store import RUNTIMES, RuntimeStore
from backend.runtimes.types import Runtime

if TYPE_CHECKING:
    from backend.manager.core import Core

TASKS = ("install", "update", "verify")


class RuntimeService:
    """Keeps the runtimes. One job at a time works on any of them, since they share disk and line."""

    def __init__(self, manager: Core) -> None:
        self._manager = manager
        self.store = RuntimeStore(manager.settings.data_dir / RUNTIMES)
        self.installer = RuntimeInstaller(self.store, manager.settings.data_dir / "tools", manager.spawn)
        self.lock = asyncio.Lock()
        self._asking = asyncio.Lock()  # between looking for a job and accepting one, another may be accepted
        self._about: dict[str, About] = {}

    def pythons(self) -> dict[str, str]:
        """The interpreters of what is installed, the user's own apart."""
        return self.store.pythons(recipes())

    def sweep(self) -> None:
        """Removes what a server left that was killed, before any of it can be in use."""
        for name in recipes():
            self.store.sweep(name)

    def runtimes(self) -> list[Runtime]:
        """All of them."""
        return [
            *others(self._manager, recipes()),
            *(view(self._manager, self.store, recipe, self.about(recipe.name)) for recipe in recipes().values()),
        ]

    def runtime(self, name: str) -> Runtime:
        """One of them. Raises NotFound."""
        found = next((runtime for runtime in self.runtimes() if runtime.name == name), None)
        if found is None:
            raise NotFound(f"There is no runtime {name[:100]!r}.", f"There are {', '.join(recipes())}.")
        return found

    def overview(self) -> dict[str, Any]:
        """`runtimes`, all of them; `best`, the one to install first for the hardware here, or null; `best_reason`."""
        listed = self.runtimes()
        name, reason = recommendation.best(recipes().values(), listed, self._manager.hardware())
        return {"runtimes": [asdict(one) for one in listed], "best": name, "best_reason": reason}

    async def submit(self, task: str, name: str, caller: str) -> LiveJob:
        """Accepts a job of `TASKS`; one that does the same already is joined.

        Raises NotFound, Validation, JobActive, DiskFull.
        """
        async with self._asking:
            recipe = self._recipe(name)
            active = self._active(name)
            if active and active.task == task:
                return active
            self._free(name)
            self._check(task, recipe)
            job = await self._manager.registry.add(new_row(task, None, {"runtime": name}, caller))
            self._manager.registry.supervise(job, self.resume(job))
            return job

    def resume(self, job: LiveJob) -> Coroutine[Any, Any, None]:
        """The work of a job that was accepted, perhaps by an earlier server."""
        return self._worked(job)

    async def rollback(self, name: str) -> Runtime:
        """Goes back to the version before. Raises NotFound, Validation, JobActive."""
        self._recipe(name)
        self._free(name)
        previous = self.store.previous(name)
        if previous is None:
            raise Validation(f"The runtime {name} has no version to go back to.", "Only an update leaves one behind.")
        await work.adopt(self._manager, self, name, previous.version)
        self._manager.in_background(self._manager.probes.probe(runtime=name))  # it was proved when it was made
        self.note(name, About())
        return self.runtime(name)

    async def remove(self, name: str) -> int:
        """Removes a runtime; returns the bytes that frees. Raises NotFound, Validation, JobActive."""
        self._check_removable(name)
        await self._manager.probes.wait_until_idle()  # what is being proved there would be said after it was forgotten
        async with self._asking:  # no job may be accepted for it while it goes
            self._check_removable(name)  # nor have begun meanwhile
            self._manager.pythons.pop(name, None)
            for held in self._manager.pool.of_runtime(name):
                await self._manager.pool.unload(held)
            self._manager.probes.table.forget(name)
            self.note(name, About())
            return await asyncio.to_thread(self.store.remove, name)

    def about(self, name: str) -> About:
        """What is remembered of a runtime, and the job that is at work on it."""
        active = self._active(name)
        return replace(self._about.get(name, About()), job=active.id if active else None)

    def note(self, name: str, about: About) -> None:
        """Remembers it."""
        self._about[name] = about

    def problems(self) -> list[dict[str, str | None]]:
        """What health says of runtimes whose last proof failed, from memory."""
        return [
            {"subject": f"runtime:{name}", "code": "runtime_broken", "detail": known.failure.detail,
             "remedy": known.failure.remedy}
            for name, known in self._about.items()
            if known.failure and known.unproved and name not in self._manager.probes.table.troubles
        ]  # fmt: skip

    def tell(self, name: str) -> None:
        """Lets the followers of the feed know that a runtime changed."""
        self._manager.event_bus.publish("runtime", asdict(self.runtime(name)))

    async def _worked(self, job: LiveJob) -> None:
        name = str(job.parameters["runtime"])
        try:
            recipe = self._recipe(name)
            self._check(job.task, recipe)
            await work.do(self._manager, self, job, recipe)
        except TouchstoneError as error:
            if error.code != "job_cancelled":
                proving = job.task != "update" and self.store.current(name) is not None
                self.note(name, About(failure=error, unproved=proving))
            raise

    def _recipe(self, name: str) -> Recipe:
        runtime = self.runtime(name)
        if name == BASE:
            raise Validation("`base` is the service's own environment.", "The launcher makes and updates it.")
        if name in own_pythons(self._manager):
            raise Validation(
                f"The runtime {name} is your own environment ({runtime.python}), which Touchstone never changes.",
                "Change it yourself, or take it out of `runtimes` in config.yaml and start again.",
            )
        return recipes()[name]

    def _check(self, task: str, recipe: Recipe) -> None:
        """Refuses what cannot come to anything."""
        runtime = self.runtime(recipe.name)
        here = runtime.version is not None
        if task == "install":
            buildable(recipe)
            if runtime.state == "unsupported":
                raise Validation(f"{recipe.name}: {runtime.reason}", str(runtime.remedy))
        elif not here:
            raise Validation(f"The runtime {recipe.name} is not installed.", f"`runtimes install {recipe.name}`")

    def _check_removable(self, name: str) -> None:
        self._recipe(name)
        self._free(name)
        if self.store.current(name) is None and not self.store.broken(name):
            raise Validation(f"The runtime {name} is not installed.", "`runtimes` lists what is.")
        if self._manager.pool.runtime_in_use(name):
            raise JobActive(f"Jobs run in the runtime {name}.", "Wait for them or cancel them first.")

    def _active(self, name: str) -> LiveJob | None:
        jobs = self._manager.registry.live.values()
        return next((j for j in jobs if j.active and j.task in TASKS and j.parameters.get("runtime") == name), None)

    def _free(self, name: str) -> None:
        if active := self._active(name):
            raise JobActive(f"The job {active.id} ({active.task}) is at work on {name}.", "Wait for it or cancel it.")
