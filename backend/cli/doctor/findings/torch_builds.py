"""A torch that was built for other hardware than the machine has, or for a newer driver."""

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
# Compatibility", and the CUDA Toolkit Release Notes. Within a major version, older drivers of that range work.
OLDEST_DRIVER = {11: ((450, 80), (452, 39)), 12: ((525, 60), (528, 33)), 13: ((580, 0), (580, 0))}
_WHEELS = {13: "https://download.pytorch.org/whl/cu130", 12: "https://download.pytorch.org/whl/cu126"}


def wrong_build(facts: Facts) -> Iterator[Finding]:
    """The machine has a GPU, but this torch was built without support for it.

    `torch.cuda.is_available()` only returns False then. A report: ace-step/ACE-Step-1.5#294.
    """
    cards = [card for card in facts.hardware if card.kind in ("gpu", "integrated")]
    for runtime in facts.runtimes:
        build = runtime.torch
        if build is None or runtime.kept or facts.platform.system == "darwin" or not cards:
            continue  # an installed runtime is for the hardware that it names; the devices recommend the right one
        fitting = [card for card in cards if vendor(card) in _served(build)]
        for card in [] if fitting else cards[:1]:
            detail = f"{card.name} is present, but the torch of this environment ({build.version}) {_made_for(build)}: "
            detail += "it cannot use that card."
            steps = _other_build(facts, runtime, card)
            yield Finding("torch-build", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def driver_too_old(facts: Facts) -> Iterator[Finding]:
    """A torch that was built for a newer CUDA than the driver supports.

    Its message is "The NVIDIA driver on your system is too old (found version 11040)": lllyasviel/Fooocus#1313.
    """
    served = served_cuda(facts)
    for card in (item for item in facts.hardware if vendor(item) == NVIDIA):
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
            detail = f"torch {build.version} was built for CUDA {build.cuda}, which requires NVIDIA's driver "
            detail += f"{_dotted(oldest)} or newer; {now}"
            sentence = f"Install NVIDIA's driver {oldest[0]} or newer and restart."
            update = Step(sentence, where="windows" if facts.platform.wsl else "here")
            steps = (update, *_older_wheel(facts, runtime, have))
            yield Finding("driver-too-old", "broken", "driver", f"runtime:{runtime.name}", detail, steps)


def served_cuda(facts: Facts) -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports (cuDriverGetVersion). Optional: None if unknown."""
    for check in facts.checks:
        if check.code.startswith("libcuda") and (match := re.search(r"for CUDA (\d+)\.(\d+)", check.detail)):
            return int(match[1]), int(match[2])
    return None


def vendor(card: Hardware) -> str | None:
    """Return the PCI vendor id. Optional: None for an unknown vendor."""
    if card.pci_ids:
        return card.pci_ids.partition(":")[0].lower()
    text = f"{card.vendor or ''} {card.name}".lower()
    return next((id_ for id_, name in _NAMES.items() if re.search(rf"\b{name}\b", text)), None)


def driver_version(text: str | None) -> tuple[int, int] | None:
    """Parse NVIDIA's driver version: "nvidia 535.183.01" → (535, 183), Windows' "31.0.15.3623" → (536, 23)."""
    numbers = re.search(r"\d+(?:\.\d+)+", text or "")
    if numbers is None:
        return None
    parts = numbers[0].split(".")
    if len(parts) == 4:
        digits = (parts[2] + parts[3].zfill(4))[-5:]
        return int(digits[:3]), int(digits[3:])
    return int(parts[0]), int(parts[1])


def _served(build: TorchBuild) -> set[str]:
    """Return the vendors whose cards the build supports."""
    return {id_ for id_, built in ((NVIDIA, build.cuda), (AMD, build.hip), (INTEL, build.xpu)) if built}


def _made_for(build: TorchBuild) -> str:
    if build.hip:
        return f"was built for AMD's HIP {build.hip}, although it uses CUDA's names"
    if build.cuda:
        return f"was built for NVIDIA's CUDA {build.cuda}"
    return "was built for Intel's XPU" if build.xpu else "is a CPU build"


def _major(build: TorchBuild | None) -> int | None:
    match = re.match(r"\d+", build.cuda or "") if build else None
    return int(match[0]) if match else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]:02d}"


def _other_build(facts: Facts, runtime: RuntimeFacts, card: Hardware) -> tuple[Step, ...]:
    """Return the step that installs a build for the card: the device's remedy, or for NVIDIA a wheel for its driver."""
    if vendor(card) == NVIDIA:
        have = driver_version(card.driver)
        return _older_wheel(facts, runtime, have) if have else (_wheel(facts, runtime, max(_WHEELS)),)
    offers = (each for each in facts.devices if each.hardware_id == card.id and each.state == "installable")
    remedy = next((device.remedy for device in offers), None)
    return (Step(remedy or "Install a torch that was built for this card, in a separate environment."),)


def _older_wheel(facts: Facts, runtime: RuntimeFacts, have: tuple[int, int] | None) -> tuple[Step, ...]:
    """Return the step that installs the newest build that the driver supports, if there is one."""
    if runtime.kept:
        return ()
    fitting = [major for major in _WHEELS if have and have >= OLDEST_DRIVER[major][_on_windows(facts)]]
    return (_wheel(facts, runtime, max(fitting)),) if fitting else ()


def _on_windows(facts: Facts) -> bool:
    """Return whether the driver is a Windows driver, also under WSL."""
    return facts.platform.system == "win32" or facts.platform.wsl is not None


def _wheel(facts: Facts, runtime: RuntimeFacts, major: int) -> Step:
    command = pip(facts, runtime, f"install --force-reinstall torch --index-url {_WHEELS[major]}")
    return Step(f"Install torch for CUDA {major} (gigabytes).", command)


FINDINGS = (wrong_build, driver_too_old)
