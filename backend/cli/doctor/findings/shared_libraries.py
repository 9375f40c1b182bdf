"""Libraries of the system that a package does not find: the loader's own words, and the package that has them."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.common.system.shared_libraries import command_for, missing_glibc, missing_library, package_providing


def missing_libraries(facts: Facts) -> Iterator[Finding]:
    """One finding a library, with all devices that lack it."""
    lacking: dict[str, list[str]] = {}
    for device in facts.devices:
        if device.reason and (library := missing_library(device.reason)):
            lacking.setdefault(library, []).append(device.id)
    for library, devices in lacking.items():
        detail = f"{library} is not found, and {', '.join(devices)} cannot do without it."
        step = _bring(facts, library)
        yield Finding("missing-library", "broken", "library load", devices[0], detail, (step,))


def old_glibc(facts: Facts) -> Iterator[Finding]:
    """A package that was built for a newer C library than the system's."""
    for device in facts.devices:
        if device.reason and (wanted := missing_glibc(device.reason)):
            detail = f"A package of {device.id} needs glibc {wanted} or newer, and this Linux has an older one."
            step = Step("Use a newer release of the distribution, or the container image.")
            yield Finding("old-glibc", "broken", "library load", device.id, detail, (step,))


def _bring(facts: Facts, library: str) -> Step:
    if command := command_for(library, facts.platform.distribution):
        return Step("Install it, then refresh the devices.", command)
    if who := package_providing(library):
        return Step(f"Install {who}, which brings it.", where="windows" if facts.platform.wsl else "here")
    return Step(f"Install the package of your system that has {library}, then refresh the devices.")


FINDINGS = (missing_libraries, old_glibc)
