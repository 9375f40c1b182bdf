"""Fills the remedy of a known error with what fits this system, this interpreter and this machine."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from backend.common.commands import command, launcher
from backend.common.known_errors.place import BASE, Place
from backend.common.known_errors.table import Found
from backend.common.system import shared_libraries

REPORT = "doctor --bundle report.zip"
# Instruction sets that builds for newer processors use, oldest first, by their name in /proc/cpuinfo.
_INSTRUCTIONS = {"avx": "AVX", "f16c": "F16C", "fma": "FMA", "bmi2": "BMI2", "avx2": "AVX2", "avx512f": "AVX-512"}
_LIBRARY_VARIABLES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH")
_SYSTEM_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/libexec/")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_UNNAMED = {"file": "FILE", "path": "see the message"}  # in place of what a message does not name
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


def remedy_for(found: Found, place: Place) -> str:
    """Return the remedy as sentences."""
    text = found.error.remedy_on(place.system).format_map(_Fields(found.match, place))
    text = re.sub(r" ?\(\)", "", text)  # a path that the message does not name
    return re.sub(r"  +", " ", text).strip()


def unknown(place: Place) -> str:
    """Return the remedy for a message that is not in the table: what is known, and how to report it."""
    return (
        f"Touchstone does not know this message of {place.library or 'the library'}: refresh the device once. If it "
        f"repeats, use another device and report it with the archive of `{command(REPORT)}`."
    )


def reinstall(place: Place) -> str:
    """Return how to install the packages of an interpreter again, as a clause."""
    if place.installation == "launcher":
        return f"delete the folder .venv and run `{launcher()}`"
    if place.installation == "image":
        return "build or pull the image again, and start a new container"
    if place.installation == "package":
        return f"`{_pip(place)} install --force-reinstall` and the folder or file that Touchstone was installed from"
    if place.installation == "made":
        name = place.runtime
        return f"`{command(f'runtimes remove {name}')}`, then `{command(f'runtimes install {name}')}`"
    return f"`{_pip(place)} install --force-reinstall {place.library or 'PACKAGE'}`"


def reinstalled(place: Place) -> str:
    """Return how to install the packages of an interpreter again, as sentences."""
    return f"Reinstall the packages: {reinstall(place)}. Then refresh."


def update(place: Place) -> str:
    """Return how to update the packages of an interpreter, as a clause."""
    if place.installation == "launcher":
        return f"`{command('update')}`"
    if place.installation == "made":
        return f"`{command(f'runtimes update {place.runtime}')}`"
    if place.installation == "own":
        return f"`{_pip(place)} install --upgrade {place.library or 'PACKAGE'}`"
    return reinstall(place)


def replacement(place: Place) -> str:
    """Return how to replace an interpreter that cannot be used, as a sentence."""
    name = place.runtime or "NAME"
    if place.installation == "own" and place.runtime not in ("", BASE):
        return (
            f"Set `runtimes.{name}.python` in config.yaml to a working interpreter, or create that environment again "
            f"(`python3 -m venv`), then restart the server."
        )
    text = reinstall(place)
    return f"{text[0].upper()}{text[1:]}, then refresh."


def loader_variable(file: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the variable that makes the loader take a library, and the entry of its value; None if none does."""
    folder = os.path.realpath(Path(file).parent)
    for name in _LIBRARY_VARIABLES:
        for entry in re.split("[: ]" if name == "LD_PRELOAD" else ":", environment.get(name, "")):
            if entry and os.path.realpath(entry) in (folder, os.path.realpath(file)):
                return name, entry
    return None


def _pip(place: Place) -> str:
    python = place.python or sys.executable
    return f'"{python}" -m pip' if " " in python else f"{python} -m pip"


class _Fields(Mapping[str, str]):
    """The fields of a remedy: groups of the match, and facts that are looked up when a remedy names them."""

    def __init__(self, match: re.Match[str], place: Place) -> None:
        self._groups = match.groupdict()
        self._place = place

    def __getitem__(self, name: str) -> str:
        if name in self._groups:
            return self._groups[name] or _UNNAMED.get(name, "")
        return _FIELDS[name](self._place, self._groups) if name in _FIELDS else ""

    def __iter__(self) -> Iterator[str]:
        return iter((*self._groups, *_FIELDS))

    def __len__(self) -> int:
        return len(self._groups) + len(_FIELDS)


_Groups = Mapping[str, "str | None"]


def _build(place: Place, _: _Groups) -> str:
    if place.installation == "own" and place.runtime not in ("", BASE):
        return f"`{_pip(place)} install` with the index of that build, see pytorch.org/get-started/locally"
    return f"`{command('runtimes')}` lists the available ones"


def _in_environment(place: Place, _: _Groups) -> str:
    return {
        "launcher": "In the folder .venv",
        "package": "In Touchstone's environment",
        "image": "In the image",
        "made": f"Update the runtime (`{command(f'runtimes update {place.runtime}')}`); or in its environment",
        "own": "In that environment",
    }[place.installation]


def _culprit(place: Place, groups: _Groups) -> str:
    """Return what to do about a library that is too old: by who chose the file that the message names."""
    file, symbol = groups.get("file") or "", groups.get("symbol") or ""
    name = Path(file).name
    if chosen := loader_variable(file):
        variable, entry = chosen
        return (
            f"{variable} makes the loader take {file}, which is incompatible with the packages ({symbol} is missing). "
            f"Remove {entry} from {variable} where the server is started (or unset {variable}), restart the server, "
            f"then refresh."
        )
    environment = str(Path(place.python).parent.parent) if place.python else ""
    if environment and file.startswith(environment + "/"):
        return (
            f"The environment's own {name} is too old for another of its packages, so they are incompatible with each "
            f"other: {reinstall(place)} (conda: `conda install -c conda-forge libstdcxx-ng`). Then refresh."
        )
    if file.startswith(_SYSTEM_FOLDERS) or "/" not in file:
        return (
            f"The packages are incompatible with the system's {name}, which is too old ({symbol} is missing): use a "
            f"newer release of the system or the container image, or an older version of the package, then refresh."
        )
    return (
        f"The loader takes {file}, which is incompatible with the packages ({symbol} is missing) and is neither the "
        f"system's nor the environment's. Unset LD_LIBRARY_PATH and LD_PRELOAD where the server is started, restart "
        f"the server, then refresh."
    )


def _foreign(_: Place, __: _Groups) -> str:
    """Return a sentence on the variables that choose other libraries, empty if none is set."""
    named = [f"{name}={os.environ[name]}" for name in _LIBRARY_VARIABLES if os.environ.get(name)]
    return f"{' and '.join(named)} may choose other libraries: start the server without it first. " if named else ""


def _lacking(_: Place, __: _Groups) -> str:
    flags = _processor_flags()
    if not flags or "sse2" not in flags:
        return "`lscpu` shows which it has"
    lacking = [name for flag, name in _INSTRUCTIONS.items() if flag not in flags]
    return "it has no " + ", ".join(lacking) if lacking else "`lscpu` shows which it has"


def _processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def _install_library(place: Place, groups: _Groups) -> str:
    library = next((text for name in ("so", "dylib", "module") if (text := groups.get(name))), "the library")
    if shell := shared_libraries.command_for(library):
        return f"Install {library} from the system's packages: {shell}; then refresh."
    if package := shared_libraries.package_providing(library):
        return f"{library} comes with {package}: install or repair that, then refresh."
    if requirement := shared_libraries.requirement_providing(library):
        install = f"`{_pip(place)} install {requirement}`, or reinstall: {reinstall(place)}"
        return f"Install {library} in the runtime's environment: {install}. Then refresh."
    foreign = _foreign(place, groups)
    return (
        f"{foreign}Install the package with {library} in the runtime's environment (CUDA's libraries are pip packages "
        f"named nvidia-…), or reinstall the packages: {reinstall(place)}. Then refresh."
    )


def _comes_with(_: Place, groups: _Groups) -> str:
    library = groups.get("library_name")
    provider = shared_libraries.package_providing(library) if library else None
    return f"{library} comes with {provider}. " if provider else ""


def _visible(_: Place, __: _Groups) -> str:
    named = [f"{name}={os.environ[name]}" for name in _VISIBLE if name in os.environ]
    return f"{' and '.join(named)} may hide it: unset it. " if named else ""


def _hsa(_: Place, __: _Groups) -> str:
    value = os.environ.get(_OVERRIDE)
    return f"{_OVERRIDE}={value} makes ROCm compute for another chip: unset it first. " if value else ""


_FIELDS: dict[str, Callable[[Place, _Groups], str]] = {
    "build": _build,
    "comes_with": _comes_with,
    "culprit": _culprit,
    "dll_name": lambda _, groups: f" {groups['dll']}" if groups.get("dll") else "",
    "environment": lambda place, _: str(Path(place.python).parent.parent) if place.python else "its folder",
    "foreign": _foreign,
    "hsa": _hsa,
    "In_environment": _in_environment,
    "install_library": _install_library,
    "interpreter": lambda place, _: replacement(place),
    "lacking": _lacking,
    "library": lambda place, _: place.library or "the library",
    "machine": lambda _, __: platform.machine(),
    "path_variable": lambda place, _: "PATH" if place.system == "win32" else "LD_LIBRARY_PATH",
    "pip": lambda place, _: _pip(place),
    "python": lambda place, _: place.python or "the interpreter",
    "reinstall": lambda place, _: reinstall(place),
    "report": lambda _, __: command(REPORT),
    "runtime": lambda place, _: place.runtime or "NAME",
    "update": lambda place, _: update(place),
    "update_both": lambda place, _: (
        f"Update the runtime ({update(place)})"
        if place.is_processor
        else f"Update the device's driver and the runtime ({update(place)})"
    ),
    "visible": _visible,
}
