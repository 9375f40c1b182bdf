"""Failed checks of the system, and findings that combine them with other facts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Level, Step

# NVIDIA's CUDA on WSL user guide: at least 4.19.121; 5.10.16.3 or later is what it recommends.
WSL_KERNEL, WSL_KERNEL_RECOMMENDED = (4, 19, 121), (5, 10, 16)


def checks(facts: Facts) -> Iterator[Finding]:
    """A check of the system that failed; the same problem of several devices is reported once."""
    reported = set()
    for check in facts.checks:
        if check.verdict == "ok" or (check.code, check.detail) in reported:
            continue
        reported.add((check.code, check.detail))
        steps = (Step(check.remedy, where=check.side),) if check.remedy else ()
        level: Level = "broken" if check.verdict == "problem" else "advice"
        yield Finding(check.code, level, check.layer, check.hardware_id or check.layer, check.detail, steps)


def unusable_cards(facts: Facts) -> Iterator[Finding]:
    """A card that cannot be used, for a reason that no check reported."""
    reported = {check.detail for check in facts.checks}
    other = any(device.state == "ready" and device.kind not in ("cpu", "emulated") for device in facts.devices)
    for card in facts.hardware:
        if card.reason and card.kind != "emulated" and card.reason not in reported:
            steps = (
                (Step(card.remedy, where="windows" if "On Windows" in card.remedy else "here"),) if card.remedy else ()
            )
            detail = f"{card.name}: {card.reason}"
            yield Finding("card-unusable", "advice" if other else "broken", "hardware", card.id, detail, steps)


def group_of_the_next_session(facts: Facts) -> Iterator[Finding]:
    """The user was added to the group that a device node requires, but this session started before.

    A report: R0rschach02 in ROCm/legacy-rocm-build#2232, where only a restart helped.
    """
    pending = set(facts.platform.joined) - set(facts.platform.groups)
    if not facts.platform.groups:
        return
    for group in sorted(pending):
        refused = [
            check for check in facts.checks if check.code == "node-refused" and f"group is {group})" in check.detail
        ]
        if refused:
            detail = f"This user is in the group {group} now, but this session started before and lacks it."
            how = "Log out and in again" if not facts.platform.wsl else "Close WSL (`wsl --shutdown` on Windows)"
            step = Step(f"{how}, then start the server from the new session.", f"newgrp {group}  # for this shell only")
            yield Finding("group-not-in-session", "broken", "permission", "permission", detail, (step,))


def old_wsl_kernel(facts: Facts) -> Iterator[Finding]:
    """A WSL 2 kernel that is too old for GPUs."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", facts.platform.release)
    if facts.platform.wsl != 2 or match is None:
        return
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version < WSL_KERNEL_RECOMMENDED:
        is_unusable = version < WSL_KERNEL
        what = "supports no GPU" if is_unusable else "supports GPUs slowly or not at all"
        detail = f"WSL's kernel {facts.platform.release} is old: it {what}."
        step = Step("Update WSL in a Windows terminal.", "wsl --update; wsl --shutdown", "windows")
        yield Finding("wsl-kernel-old", "broken" if is_unusable else "advice", "system", "system", detail, (step,))


FINDINGS = (checks, unusable_cards, group_of_the_next_session, old_wsl_kernel)
