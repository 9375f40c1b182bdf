"""System libraries that a package requires but the loader does not find, and the system packages that contain them."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.common.system.shared_libraries import command_for, missing_glibc, missing_library, package_providing


def missing_libraries(facts: Facts) -> Iterator[Finding]:
    """A system library that is missing, with all devices that require it."""
    lacking: dict[str, list[str]] = {}
    for device in facts.devices:
        if device.reason and (library := missing_library(device.reason)):
            lacking.setdefault(library, []).append(device.id)
    for library, devices in lacking.items():
        detail = f"{library} is missing, but {', '.join(devices)} requires it."
        step = _install_step(facts, library)
        yield Finding("missing-library", "broken", "library load", devices[0], detail, (step,))


def old_glibc(facts: Facts) -> Iterator[Finding]:
    """A package that was built for a newer C library than the system has."""
    for device in facts.devices:
        if device.reason and (wanted := missing_glibc(device.reason)):
            detail = f"A package of {device.id} requires glibc {wanted} or newer; this Linux has an older one."
            step = Step("Use a newer release of the distribution, or the container image.")
            yield Finding("old-glibc", "broken", "library load", device.id, detail, (step,))


def _install_step(facts: Facts, library: str) -> Step:
    if command := command_for(library, facts.platform.distribution):
        return Step("Install it, then refresh the devices.", command)
    if who := package_providing(library):
        return Step(f"Install {who}, which contains it.", where="windows" if facts.platform.wsl else "here")
    return Step(f"Install your system's package that contains {library}, then refresh the devices.")


FINDINGS = (missing_libraries, old_glibc)
