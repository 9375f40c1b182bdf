"""Packages that overwrite one another's files: the flavours of ONNX Runtime, and what broken installs leave."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts, Flavour, RuntimeFacts
from backend.cli.doctor.finding import Finding, Step
from backend.cli.doctor.pip_commands import pip, remade

PLUGIN = "-ep-"  # packages such as onnxruntime-ep-webgpu sit beside any flavour and overwrite nothing


def two_flavours(facts: Facts) -> Iterator[Finding]:
    """Two distributions that bring the same import package: the one installed last has overwritten the other.

    Reports: microsoft/onnxruntime#26996, #21233; microsoft/onnxruntime-genai#983.
    """
    for runtime in facts.runtimes:
        for package, flavours in runtime.shared.items():
            if len(flavours) > 1:
                detail = f"{_named(flavours)} are in one environment, and both bring the import package {package}: "
                detail += f"the one installed last overwrote the other's files. {_who_is_there(runtime, package)}"
                detail += _beside(runtime)
                steps = _repair(facts, runtime, package, flavours)
                yield Finding("two-flavours", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def missing_files(facts: Facts) -> Iterator[Finding]:
    """A flavour whose files are gone, as after the other flavour was uninstalled.

    Reports: kijai/ComfyUI-SUPIR#170, Gourieff/comfyui-reactor-node#236.
    """
    for runtime in facts.runtimes:
        for package, flavours in runtime.shared.items():
            if len(flavours) == 1 and flavours[0].missing_files:
                only = flavours[0]
                detail = f"{only.name} {only.version} is installed, but {only.missing_files} of its files are gone, as "
                detail += (
                    "after another package with the same files was uninstalled: an import fails or finds too little."
                )
                steps = _repair(facts, runtime, package, flavours)
                yield Finding("missing-files", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def unmet_pins(facts: Facts) -> Iterator[Finding]:
    """A package that asks for exactly one version of another, and does not have it."""
    for runtime in facts.runtimes:
        for unmet in runtime.unmet:
            have = f"{unmet.found} is there" if unmet.found else "it is not there"
            detail = f"{unmet.package} needs {unmet.needs}, and {have}."
            step = Step("Install what it needs.", pip(facts, runtime, f'install "{unmet.needs}"'))
            steps = remade(facts, runtime) or (step,)
            yield Finding("unmet-pin", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def leftovers(facts: Facts) -> Iterator[Finding]:
    """Folders that pip renames while it uninstalls; they stay where a file was in use."""
    for runtime in facts.runtimes:
        if runtime.leftovers:
            detail = f"An uninstall broke off and left {', '.join(runtime.leftovers[:5])} among the packages."
            step = Step("Close all programs that use this environment and delete these folders.")
            yield Finding("leftovers", "advice", "runtime package", f"runtime:{runtime.name}", detail, (step,))


def _named(flavours: list[Flavour]) -> str:
    words = [f"{flavour.name} {flavour.version}" for flavour in flavours]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _who_is_there(runtime: RuntimeFacts, package: str) -> str:
    written = runtime.on_disk.get(package)
    return f"The files that are there now say they are {written.name} {written.version}." if written else ""


def _beside(runtime: RuntimeFacts) -> str:
    plugins = [f"{name} {version}" for name, version in runtime.packages.items() if PLUGIN in name]
    return f" ({', '.join(plugins)} may stay: plugins overwrite nothing.)" if plugins else ""


def _repair(facts: Facts, runtime: RuntimeFacts, package: str, flavours: list[Flavour]) -> tuple[Step, ...]:
    if anew := remade(facts, runtime):
        return anew
    written = runtime.on_disk.get(package)
    # Of several the special one was wanted: the plain one mostly comes along as somebody's requirement.
    special = max(flavours, key=lambda one: len(one.name))
    keep = next((one for one in flavours if written and one.name == written.name), special)
    names = " ".join(flavour.name for flavour in flavours)
    return (
        Step(
            "Uninstall all of them." if len(flavours) > 1 else "Uninstall it.",
            pip(facts, runtime, f"uninstall -y {names}"),
        ),
        Step("Install the one that you want.", pip(facts, runtime, f'install "{keep.name}=={keep.version}"')),
    )


FINDINGS = (two_flavours, missing_files, unmet_pins, leftovers)
