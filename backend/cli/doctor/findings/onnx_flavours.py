"""Packages that overwrite each other's files: the flavours of ONNX Runtime, and remains of interrupted installs."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts, Flavour, RuntimeFacts
from backend.cli.doctor.finding import Finding, Step
from backend.cli.doctor.pip_commands import pip, recreate

PLUGIN = "-ep-"  # plugins such as onnxruntime-ep-webgpu work with any flavour and overwrite no file


def two_flavours(facts: Facts) -> Iterator[Finding]:
    """Two distributions with the same import package: the one installed last overwrote the other.

    Reports: microsoft/onnxruntime#26996, #21233; microsoft/onnxruntime-genai#983.
    """
    for runtime in facts.runtimes:
        for package, flavours in runtime.shared.items():
            if len(flavours) > 1:
                detail = f"{_named(flavours)} are in one environment, and both contain the import package {package}: "
                detail += f"the one installed last overwrote the other's files. {_current_files(runtime, package)}"
                detail += _plugins_note(runtime)
                steps = _repair(facts, runtime, package, flavours)
                yield Finding("two-flavours", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def missing_files(facts: Facts) -> Iterator[Finding]:
    """A flavour with missing files, for example after the other flavour was uninstalled.

    Reports: kijai/ComfyUI-SUPIR#170, Gourieff/comfyui-reactor-node#236.
    """
    for runtime in facts.runtimes:
        for package, flavours in runtime.shared.items():
            if len(flavours) == 1 and flavours[0].missing_files:
                only = flavours[0]
                detail = (
                    f"{only.name} {only.version} is installed, but {only.missing_files} of its files are missing, as "
                )
                detail += "after another package with the same files was uninstalled: an import fails or is incomplete."
                steps = _repair(facts, runtime, package, flavours)
                yield Finding("missing-files", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def unmet_pins(facts: Facts) -> Iterator[Finding]:
    """A package that requires exactly one version of another package, which is not installed."""
    for runtime in facts.runtimes:
        for unmet in runtime.unmet:
            installed = f"{unmet.found} is installed" if unmet.found else "it is not installed"
            detail = f"{unmet.package} requires {unmet.needs}, but {installed}."
            step = Step("Install the required version.", pip(facts, runtime, f'install "{unmet.needs}"'))
            steps = recreate(facts, runtime) or (step,)
            yield Finding("unmet-pin", "broken", "runtime package", f"runtime:{runtime.name}", detail, steps)


def leftovers(facts: Facts) -> Iterator[Finding]:
    """Folders that pip renamed during an uninstall; they remain if a file was in use."""
    for runtime in facts.runtimes:
        if runtime.leftovers:
            detail = f"An interrupted uninstall left {', '.join(runtime.leftovers[:5])} among the packages."
            step = Step("Close all programs that use this environment and delete these folders.")
            yield Finding("leftovers", "advice", "runtime package", f"runtime:{runtime.name}", detail, (step,))


def _named(flavours: list[Flavour]) -> str:
    words = [f"{flavour.name} {flavour.version}" for flavour in flavours]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _current_files(runtime: RuntimeFacts, package: str) -> str:
    written = runtime.on_disk.get(package)
    return f"The current files are {written.name} {written.version}." if written else ""


def _plugins_note(runtime: RuntimeFacts) -> str:
    plugins = [f"{name} {version}" for name, version in runtime.packages.items() if PLUGIN in name]
    return f" ({', '.join(plugins)} may stay: plugins overwrite no files.)" if plugins else ""


def _repair(facts: Facts, runtime: RuntimeFacts, package: str, flavours: list[Flavour]) -> tuple[Step, ...]:
    if steps := recreate(facts, runtime):
        return steps
    written = runtime.on_disk.get(package)
    # Of several, keep the special one: the plain one is mostly installed as a dependency.
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
