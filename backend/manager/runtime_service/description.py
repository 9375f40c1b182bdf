"""Descriptions of the runtimes: installed or not, possible or not, what an install costs, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.manager.runtime_service.state import RuntimeState
from backend.manager.runtime_service.verification import meant_for
from backend.runtimes.recipes import LINE_BYTES_PER_S, Recipe, costs, this_platform
from backend.runtimes.store import InstalledRuntime, RuntimeStore
from backend.runtimes.types import Runtime
from backend.runtimes.user_environments import user_pythons
from backend.scheduling.device_directory import DeviceDirectory

BASE = "base"


class RuntimeDescriber:
    """Describes runtimes as the API returns them."""

    def __init__(
        self, settings: Settings, pythons: Mapping[str, str], store: RuntimeStore, directory: DeviceDirectory
    ) -> None:
        self._user_pythons = user_pythons(settings)
        self._pythons = pythons
        self._store = store
        self._directory = directory

    def is_user_runtime(self, name: str) -> bool:
        """Return whether a runtime is the user's own environment."""
        return name in self._user_pythons

    def describe(self, recipe: Recipe, state: RuntimeState) -> Runtime:
        """Describe a runtime that has a recipe."""
        user_python = self._user_pythons.get(recipe.name)
        build = recipe.build()
        hardware = {item.id: item for _, item in meant_for(recipe.name, self._directory.hardware())}
        installed = self._store.current(recipe.name) if user_python is None else None
        runtime = Runtime(
            name=recipe.name,
            state="installable",
            title=recipe.title,
            licence=recipe.licence,
            install_bytes=build.installed_bytes if build else None,
            download_bytes=build.download_bytes if build else None,
            install_s=round(build.download_bytes / LINE_BYTES_PER_S, 1) if build else None,
            note=recipe.note,
            hardware=sorted(hardware),
            job=state.job_id,
        )
        if user_python is not None or installed is not None:
            return self._describe_installed(runtime, user_python, installed, state)
        if state.job_id:
            return replace(runtime, state="installing")
        if self._store.broken(recipe.name):
            reason, remedy = (
                "Its files are incomplete.",
                f"Install it again: `{command(f'runtimes install {recipe.name}')}`.",
            )
            return replace(runtime, state="broken", reason=reason, remedy=remedy)
        if refusal := self.refusal_of(recipe):
            return replace(runtime, state="unsupported", reason=refusal[0], remedy=refusal[1])
        assert build
        if state.failure:
            reason, remedy = f"The last install failed. {state.failure.detail}", state.failure.remedy
            return replace(runtime, reason=reason, remedy=remedy)
        names = ", ".join(item.name for item in hardware.values())
        reason = f"It is not installed; {names} could use it." if names else "It is not installed."
        for former in recipe.replaces:
            if self._store.current(former):
                reason += f" It replaces the runtime {former}, which is installed and no longer used."
        return replace(
            runtime, reason=reason, remedy=f"`{command(f'runtimes install {recipe.name}')}` ({costs(build)})."
        )

    def describe_others(self, recipes: Mapping[str, Recipe]) -> list[Runtime]:
        """Describe the runtimes without a recipe: `.venv`, and environments that the user named."""
        pythons = {BASE: self._pythons[BASE], **self._user_pythons}
        return [
            self._with_trouble(
                Runtime(
                    name=name,
                    state="installed",
                    title="The service's own environment" if name == BASE else "Your own environment",
                    python=python,
                    devices=self._devices(name),
                ),
            )
            for name, python in pythons.items()
            if name not in recipes
        ]

    def refusal_of(self, recipe: Recipe) -> tuple[str, str] | None:
        """Return why a runtime is not supported here, and what to do instead; None if it may be installed."""
        remedy = f"To use your own environment, name it in config.yaml: `runtimes: {{{recipe.name}: {{python: …}}}}`."
        if recipe.own:
            return recipe.own, remedy
        if recipe.build() is None:
            return f"It is not available for {this_platform()}.", remedy
        usable = recipe.processor or meant_for(recipe.name, self._directory.hardware())
        if not usable and self._directory.probes.started:  # before the first probe the hardware is unknown
            return (
                "This machine has no hardware for it.",
                f"You do not need it. Run `{command('devices')}` to list the hardware.",
            )
        return None

    def _describe_installed(
        self, runtime: Runtime, user_python: str | None, installed: InstalledRuntime | None, state: RuntimeState
    ) -> Runtime:
        runtime = replace(runtime, state="installed", devices=self._devices(runtime.name), python=user_python)
        if installed is not None:
            previous = self._store.previous(runtime.name)
            runtime = replace(
                runtime,
                version=installed.version,
                previous=previous.version if previous else None,
                python=installed.python,
                bytes=installed.bytes,
                packages=installed.packages,
            )
            if state.failure and state.is_unproved:
                runtime = replace(runtime, state="broken", reason=state.failure.detail, remedy=state.failure.remedy)
            elif state.failure:
                reason, remedy = f"The last change failed. {state.failure.detail}", state.failure.remedy
                runtime = replace(runtime, reason=reason, remedy=remedy)
            elif state.slowdown:
                remedy = f"Run `{command(f'runtimes rollback {runtime.name}')}` to go back, or keep this version."
                runtime = replace(runtime, reason=state.slowdown, remedy=remedy)
        runtime = self._with_trouble(runtime)
        if installed is None or runtime.state != "broken":
            return runtime
        reinstall = f"If that does not help: `{command(f'runtimes remove {runtime.name}')}`, then install it again."
        return replace(runtime, remedy=f"{runtime.remedy} {reinstall}")

    def _with_trouble(self, runtime: Runtime) -> Runtime:
        """Mark a runtime as broken if its last probe failed before any device was listed."""
        trouble = self._directory.probes.table.runtime_problems.get(runtime.name)
        return replace(runtime, state="broken", reason=trouble.detail, remedy=trouble.remedy) if trouble else runtime

    def _devices(self, name: str) -> list[str]:
        return sorted(device.id for device in self._directory.known_devices() if name in device.served_by)
