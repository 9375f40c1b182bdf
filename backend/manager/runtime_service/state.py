"""What the server remembers of each runtime between its jobs, and which job works on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.common.errors import TouchstoneError
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import JobRegistry

TASKS = ("install", "update", "verify")


@dataclass(frozen=True)
class RuntimeState:
    """The active job, the last failure and the last slowdown of a runtime, all optional. Kept in memory only.

    `is_unproved`: the proof of the version in use failed, not a change of it.
    """

    job_id: str | None = None
    failure: TouchstoneError | None = None
    is_unproved: bool = False
    slowdown: str = ""


class RuntimeStates:
    """The states of all runtimes by name."""

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        self._states: dict[str, RuntimeState] = {}

    def get(self, name: str) -> RuntimeState:
        """Return the state of a runtime, with the job that works on it now."""
        job = self.active_job(name)
        return replace(self._states.get(name, RuntimeState()), job_id=job.id if job else None)

    def set(self, name: str, state: RuntimeState) -> None:
        """Replace the state of a runtime."""
        self._states[name] = state

    def clear_failure(self, name: str) -> None:
        """Drop the last failure of a runtime."""
        self.set(name, replace(self.get(name), failure=None, is_unproved=False))

    def failed_proofs(self) -> dict[str, TouchstoneError]:
        """Return the failure of each runtime whose version in use failed its last proof."""
        return {name: state.failure for name, state in self._states.items() if state.failure and state.is_unproved}

    def active_job(self, name: str) -> LiveJob | None:
        """Return the job that works on a runtime, None if there is none."""
        jobs = self._registry.live.values()
        return next((j for j in jobs if j.active and j.task in TASKS and j.parameters.get("runtime") == name), None)
