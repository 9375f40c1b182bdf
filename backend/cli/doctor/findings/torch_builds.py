"""A torch that was built for something else than what is in the machine, or for a newer driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.cli.doctor.facts import Facts, RuntimeFacts, TorchBuild
from backend.cli.doctor.finding import Finding, Step
from backend.cli.doctor.pip_commands import pip
from backend.common.types import Hardware

NVIDIA, AMD, INTEL = "10de", "1002", "8086"  # PCI vendor ids
_NAMES = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}
# The oldest driver for a major version of CUDA, on Linux and on Windows: NVIDIA's CUDA Compatibility, "Minor Version
# Compatibility", and the CUDA Toolkit Release Notes. Within a major version older drivers of that range will do.
OLDEST_DRIVER = {11: ((450, 80), (452, 39)), 12: ((525, 60), (528, 33)), 13: ((580, 0), (580, 0))}
_WHEELS = {13: "https://download.pytorch.org/whl/cu130", 12: "https://download.pytorch.org/whl/cu126"}


def wrong_build(facts: Facts) -> Iterator[Finding]:
    """The machine has a GPU, and this torch was built without what reaches it.

    `torch.cuda.is_available()` says no more than False then. A report: ace-step/ACE-Step-1.5#294.
    """
    cards = [one for one in facts.hardware if one.kind in ("gpu", "integrated")]
    for runtime in facts.runtimes:
        build = runtime.torch
        if build is None or runtime.kept or facts.platform.system == "darwin" or not cards:
            continue  # (a kept one was made for what it says, and the devices name the one that fits the card)
        fitting = [card for card in cards if vendor(card) in _served(build)]
        for card in [] if fitting else cards[:1]:
            detail = f"{card.name} is here, and the torch of this environment ({build.version}) {_made_for(build)}: "
            detail += "it will never see that card."
            steps = _other_build(facts, runtime, card)
            yield Finding("torch-build", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def driver_too_old(facts: Facts) -> Iterator[Finding]:
    """A torch built for a newer CUDA than the driver can serve.

    It says "The NVIDIA driver on your system is too old (found version 11040)": lllyasviel/Fooocus#1313.
    """
    served = served_cuda(facts)
    for card in (one for one in facts.hardware if vendor(one) == NVIDIA):
        have = driver_version(card.driver)
        for runtime in facts.runtimes:
            build, wanted = runtime.torch, _major(runtime.torch)
            if build is None or wanted not in OLDEST_DRIVER:
                continue
            oldest = OLDEST_DRIVER[wanted][_on_windows(facts)]
            if wanted <= served[0] if served else have is None or have >= oldest:
                continue
            now = f"{card.name} has {_dotted(have) if have else 'an older one'}"
            now += f", which serves CUDA {served[0]}.{served[1]}." if served else "."
            detail = f"torch {build.version} was built for CUDA {build.cuda}, which needs NVIDIA's driver "
            detail += f"{_dotted(oldest)} or newer; {now}"
            words = f"Install NVIDIA's driver {oldest[0]} or newer and restart."
            update = Step(words, where="windows" if facts.platform.wsl else "here")
            steps = (update, *_older_wheel(facts, runtime, have))
            yield Finding("driver-too-old", "broken", "driver", f"runtime:{runtime.name}", detail, steps)


def served_cuda(facts: Facts) -> tuple[int, int] | None:
    """The newest CUDA that the driver's library says it serves (cuDriverGetVersion), where it could be asked."""
    for check in facts.checks:
        if check.code.startswith("libcuda") and (found := re.search(r"for CUDA (\d+)\.(\d+)", check.detail)):
            return int(found[1]), int(found[2])
    return None


def vendor(card: Hardware) -> str | None:
    """The PCI vendor id, or None for a maker that is not known here."""
    if card.pci_ids:
        return card.pci_ids.partition(":")[0].lower()
    words = f"{card.vendor or ''} {card.name}".lower()
    return next((id_ for id_, name in _NAMES.items() if re.search(rf"\b{name}\b", words)), None)


def driver_version(text: str | None) -> tuple[int, int] | None:
    """NVIDIA's driver version: of "nvidia 535.183.01" (535, 183), and of Windows' own "31.0.15.3623" (536, 23)."""
    numbers = re.search(r"\d+(?:\.\d+)+", text or "")
    if numbers is None:
        return None
    parts = numbers[0].split(".")
    if len(parts) == 4:
        digits = (parts[2] + parts[3].zfill(4))[-5:]
        return int(digits[:3]), int(digits[3:])
    return int(parts[0]), int(parts[1])


def _served(build: TorchBuild) -> set[str]:
    """The vendors whose cards the build can reach."""
    return {id_ for id_, built in ((NVIDIA, build.cuda), (AMD, build.hip), (INTEL, build.xpu)) if built}


def _made_for(build: TorchBuild) -> str:
    if build.hip:
        return f"was built for AMD's HIP {build.hip}, though it answers to CUDA's name"
    if build.cuda:
        return f"was built for NVIDIA's CUDA {build.cuda}"
    return "was built for Intel's XPU" if build.xpu else "is a CPU build"


def _major(build: TorchBuild | None) -> int | None:
    found = re.match(r"\d+", build.cuda or "") if build else None
    return int(found[0]) if found else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]:02d}"


def _other_build(facts: Facts, runtime: RuntimeFacts, card: Hardware) -> tuple[Step, ...]:
    """A build for the card: what the card's own device says it lacks, or for NVIDIA the index that fits its driver."""
    if vendor(card) == NVIDIA:
        have = driver_version(card.driver)
        return _older_wheel(facts, runtime, have) if have else (_wheel(facts, runtime, max(_WHEELS)),)
    offers = (one for one in facts.devices if one.hardware_id == card.id and one.state == "installable")
    said = next((one.remedy for one in offers), None)
    return (Step(said or "Install a torch that was built for this card, in an environment of its own."),)


def _older_wheel(facts: Facts, runtime: RuntimeFacts, have: tuple[int, int] | None) -> tuple[Step, ...]:
    """The newest build that the driver serves, if there is one."""
    if runtime.kept:
        return ()
    fitting = [major for major in _WHEELS if have and have >= OLDEST_DRIVER[major][_on_windows(facts)]]
    return (_wheel(facts, runtime, max(fitting)),) if fitting else ()


def _on_windows(facts: Facts) -> bool:
    """Whether the driver is Windows' one, as it is under WSL."""
    return facts.platform.system == "win32" or facts.platform.wsl is not None


def _wheel(facts: Facts, runtime: RuntimeFacts, major: int) -> Step:
    command = pip(facts, runtime, f"install --force-reinstall torch --index-url {_WHEELS[major]}")
    return Step(f"Install torch for CUDA {major} (gigabytes).", command)


FINDINGS = (wrong_build, driver_too_old)
