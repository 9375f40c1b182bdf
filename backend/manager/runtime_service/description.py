"""What is said of each runtime: whether it is here, whether it could be, what that would cost, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.common.errors import TouchstoneError
from backend.manager.runtime_service.verification import meant_for
from backend.runtimes.recipes import LINE_BYTES_PER_S, Recipe, costs, this_platform
from backend.runtimes.store import InstalledRuntime, RuntimeStore
from backend.runtimes.types import Runtime

if TYPE_CHECKING:
    from backend.manager.core import Core

BASE = "base"


@dataclass(frozen=True)
class About:
    """What this server remembers of a runtime beside the folders: the job at work, the last failure, a slowdown.

    `unproved`: what failed was a proof of the version in use, not a change of it.
    """

    job: str | None = None
    failure: TouchstoneError | None = None
    unproved: bool = False
    slower: str = ""


def view(manager: Core, shelf: RuntimeStore, recipe: Recipe, about: About) -> Runtime:
    """One runtime that has a recipe."""
    own = own_pythons(manager).get(recipe.name)
    build = recipe.build()
    hardware = {item.id: item for _, item in meant_for(recipe.name, manager.hardware())}
    made = shelf.current(recipe.name) if own is None else None
    shown = Runtime(
        name=recipe.name,
        state="installable",
        title=recipe.title,
        licence=recipe.licence,
        install_bytes=build.installed_bytes if build else None,
        download_bytes=build.download_bytes if build else None,
        install_s=round(build.download_bytes / LINE_BYTES_PER_S, 1) if build else None,
        note=recipe.note,
        hardware=sorted(hardware),
        job=about.job,
    )
    if own is not None or made is not None:
        return _here(manager, shelf, shown, own, made, about)
    if about.job:
        return replace(shown, state="installing")
    if shelf.broken(recipe.name):
        reason, remedy = "Its files are not whole any more.", f"Install it again: `runtimes install {recipe.name}`."
        return replace(shown, state="broken", reason=reason, remedy=remedy)
    if refusal := unsupported(manager, recipe):
        return replace(shown, state="unsupported", reason=refusal[0], remedy=refusal[1])
    assert build
    if about.failure:
        reason, remedy = f"The last try failed. {about.failure.detail}", about.failure.remedy
        return replace(shown, reason=reason, remedy=remedy)
    names = ", ".join(item.name for item in hardware.values())
    reason = f"It is not installed; {names} could use it." if names else "It is not installed."
    return replace(shown, reason=reason, remedy=f"`runtimes install {recipe.name}` ({costs(build)}).")


def others(manager: Core, known: Mapping[str, Recipe]) -> list[Runtime]:
    """`.venv`, and the user's own environments that have a name of their own."""
    listed = {BASE: manager.pythons[BASE], **own_pythons(manager)}
    return [
        _troubled(
            manager,
            Runtime(
                name=name,
                state="installed",
                title="The service's own environment" if name == BASE else "Your own environment",
                python=python,
                devices=_devices(manager, name),
            ),
        )
        for name, python in listed.items()
        if name not in known
    ]


def own_pythons(manager: Core) -> dict[str, str]:
    """The interpreters that the settings name."""
    return {name: str(rules.python) for name, rules in manager.settings.runtimes.items() if rules.python}


def _here(
    manager: Core, shelf: RuntimeStore, shown: Runtime, own: str | None, made: InstalledRuntime | None, about: About
) -> Runtime:
    shown = replace(shown, state="installed", devices=_devices(manager, shown.name), python=own)
    if made is not None:
        before = shelf.previous(shown.name)
        previous = before.version if before else None
        facts = replace(shown, version=made.version, previous=previous, python=made.python)
        shown = replace(facts, bytes=made.bytes, packages=made.packages)
        if about.failure and about.unproved:
            shown = replace(shown, state="broken", reason=about.failure.detail, remedy=about.failure.remedy)
        elif about.failure:
            reason, remedy = f"The last try to change it failed. {about.failure.detail}", about.failure.remedy
            shown = replace(shown, reason=reason, remedy=remedy)
        elif about.slower:
            shown = replace(shown, reason=about.slower, remedy=f"`runtimes rollback {shown.name}`, or leave it.")
    shown = _troubled(manager, shown)
    if made is None or shown.state != "broken":
        return shown
    again = f"If that does not help: `runtimes remove {shown.name}`, then install it again."
    return replace(shown, remedy=f"{shown.remedy} {again}")


def _troubled(manager: Core, shown: Runtime) -> Runtime:
    """With what the probes found wrong with it as a whole."""
    trouble = manager.probes.table.troubles.get(shown.name)
    return replace(shown, state="broken", reason=trouble.detail, remedy=trouble.remedy) if trouble else shown


def _devices(manager: Core, name: str) -> list[str]:
    return sorted(device.id for device in manager.known_devices() if name in device.served_by)


def unsupported(manager: Core, recipe: Recipe) -> tuple[str, str] | None:
    """Why a runtime is of no use here, and what to do instead; None if it may be of use."""
    named = f"An environment of your own can be named in config.yaml: `runtimes: {{{recipe.name}: {{python: …}}}}`."
    if recipe.own:
        return recipe.own, named
    if recipe.build() is None:
        return f"It is not to be had for {this_platform()}.", named
    for_hardware = recipe.processor or meant_for(recipe.name, manager.hardware())
    if not for_hardware and manager.probes.started:  # before that nobody knows what is here
        return "No hardware here is what it is made for.", "Nothing needs to be done; `devices` lists what is here."
    return None
