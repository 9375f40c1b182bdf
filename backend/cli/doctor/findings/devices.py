"""Whether any device can run jobs."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.scheduling.probing.missing_devices import no_ready_device


def no_device(facts: Facts) -> Iterator[Finding]:
    """No device is ready, not even the processor. The step shows the first thing to do."""
    if not facts.devices or any(device.state in ("ready", "probing") for device in facts.devices):
        return
    detail, remedy = no_ready_device(facts.devices)
    steps = (Step(remedy, where="windows" if "On Windows" in remedy else "here"),) if remedy else ()
    yield Finding("no-device", "stops", "hardware", "hardware", detail, steps)


FINDINGS = (no_device,)
