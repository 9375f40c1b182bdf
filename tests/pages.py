"""Regenerate the tables of docs/ that come from the code: `python -m tests.pages`. A test compares them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable

from backend.cli.doctor.findings import functions
from backend.cli.launcher.packages import FIRST_START
from backend.common.byte_sizes import gb
from backend.common.errors import BY_CODE
from backend.common.hardware.chips import AMD_FAMILIES
from backend.common.installer_errors import ERRORS, diagnosis_of
from backend.common.known_errors.table import KNOWN_ERRORS
from backend.devices import Backend, backends, visibility_variables
from backend.engines import engines
from backend.models.entries import shipped
from backend.runtimes.recipes import recipes, size
from tests.service import ROOT


def devices() -> str:
    """Return the table of backends: id, hardware, systems, runtimes and aliases."""
    rows = [
        (
            f"`{_id(backend)}`",
            backend.label,
            ", ".join(backend.vendors) or ("the processor" if backend.kind == "cpu" else "any"),
            _systems(backend.systems),
            _code(backend.runtimes),
            _code(name for name in backend.aliases if name != _id(backend)),
        )
        for backend in _by_rank()
    ]
    return _table(("device", "name", "vendor", "systems", "runtimes", "aliases"), rows)


def offers() -> str:
    """Return the table of runtimes offered for hardware that no installed runtime reaches."""
    rows = [
        (
            f"`{offer.runtime}`",
            f"`{backend.name}`",
            ", ".join(offer.vendors or backend.vendors) or "any",
            ", ".join(offer.kinds),
            _systems(offer.systems),
            ", ".join(f"{prefix}…" for prefix in offer.architectures) or "any",
            f"`runtimes install {offer.runtime}`",
        )
        for backend in _by_rank()
        for offer in backend.offers
    ]
    return _table(("runtime", "device", "vendor", "kinds", "systems", "chips", "command"), rows)


def runtimes() -> str:
    """Return the table of runtimes; sizes are those of the first system of each."""
    rows = []
    for name, recipe in recipes().items():
        cost, systems = "your own environment only", "none"
        if recipe.builds:
            first = recipe.builds[0]
            cost = f"{size(first.download_bytes)} download, {size(first.installed_bytes)} on disk"
            systems = ", ".join(dict.fromkeys(platform for build in recipe.builds for platform in build.platforms))
        pythons = f"{recipe.python[0]} to {recipe.python[1]}"
        rows.append((f"`{name}`", recipe.title, pythons, systems, cost, recipe.licence))
    return _table(("runtime", "name", "Python", "systems", "size", "licence"), rows)


def variables() -> str:
    """Return the table of environment variables that hide or reorder cards."""
    rows = [(f"`{name}`", _code(visibility_variables(name))) for name in backends() if visibility_variables(name)]
    return _table(("device", "variables"), rows)


def engine_table() -> str:
    """Return the table of engines: tasks, files and devices."""
    rows = [
        (
            f"`{engine.name}`",
            ", ".join(engine.tasks),
            ", ".join(engine.suffixes) or ("your own file" if engine.runs_user_code else "a folder"),
            _code(engine.backends),
        )
        for engine in engines().values()
    ]
    return _table(("engine", "tasks", "files", "devices"), rows)


def findings() -> str:
    """Return the table of the doctor's checks."""
    return _table(("check", "what it reports"), [(f"`{check.__name__}`", _summary(check)) for check in functions()])


def problems() -> str:
    """Return the table of error codes."""
    rows = [(f"`{code}`", str(kind.status), kind.title) for code, kind in sorted(BY_CODE.items())]
    return _table(("code", "status", "title"), rows)


def installs() -> str:
    """Return the table of installation errors and their remedies."""
    # Omitted: errors of uv only, and those whose remedy names the running Python.
    omitted = {"killed", "no_python", "versions", "empty_index", "no_match"}
    diagnoses = [diagnosis_of(error.kind, FIRST_START) for error in ERRORS if error.kind not in omitted]
    rows = [(f"{diagnosis.reason[0].upper()}{diagnosis.reason[1:]}", diagnosis.remedy) for diagnosis in diagnoses]
    return _table(("message", "remedy"), rows)


def messages() -> str:
    """Return the table of known errors, with the remedies for Linux."""
    rows = []
    for error in KNOWN_ERRORS:
        remedy = error.remedy_on("linux").format_map(_Words())
        remedy = re.sub(r" ?\(\)|  +", lambda match: "" if "(" in match[0] else " ", remedy).strip()
        name = f"[{error.name}]({error.source})" if error.source else error.name
        rows.append((name, error.layer or "by the step", f"{remedy[0].upper()}{remedy[1:]}"))
    return _table(("meaning", "layer", "what to do"), rows)


class _Words(dict[str, str]):
    """Words for the fields of remedies that depend on the installation."""

    def __missing__(self, name: str) -> str:
        if name in ("comes_with", "foreign", "hsa", "visible", "node2", "part2", "part3", "root", "module", "dll_name"):
            return ""
        words = {
            "build": "`runtimes` lists the available ones",
            "culprit": "Remove the folder of FILE from LD_LIBRARY_PATH where the server is started. If it is the "
            "system's, use a newer release of the system or the container image; if it is the environment's, "
            "reinstall the packages. Then refresh.",
            "In_environment": "In the environment",
            "install_library": "Install LIBRARY from the system's packages, or the package with it in the runtime's "
            "environment, then refresh.",
            "interpreter": "Name another interpreter as `runtimes.NAME.python` in config.yaml, or reinstall the "
            "packages.",
            "lacking": "such as AVX2",
            "path_variable": "LD_LIBRARY_PATH",
            "pip": "PYTHON -m pip",
            "reinstall": "`PYTHON -m pip install --force-reinstall PACKAGE`",
            "report": "doctor --bundle report.zip",
            "runtime": "NAME",
            "update": "`runtimes update NAME`",
            "update_both": "Update the device's driver and the runtime",
        }
        return words.get(name, name.upper())


def families() -> str:
    """Return the table of AMD's chip families and whether the runtime `rocm` is offered for them."""
    served = tuple(prefix for offer in backends()["rocm"].offers for prefix in offer.architectures)
    rows = [
        (
            name.replace(" [", " (") + ("…)" if "[" in name else ""),  # a name is a prefix of the card's name
            target,
            "integrated" if integrated else "card",
            "`rocm`" if target.startswith(served) else "none",
        )
        for name, target, integrated in AMD_FAMILIES
    ]
    return _table(("family", "chip", "kind", "torch runtime"), rows)


def text_models() -> str:
    """Return the table of the shipped text and embedding models."""
    entries = [entry for entry in shipped(ROOT).values() if "publisher" in entry.facts]
    rows = []
    for entry in entries:
        facts = entry.facts
        terms = f": {facts['licence_terms']}" if facts["licence_terms"] else ""
        rows.append(
            (
                f"`{entry.id}`",
                facts["publisher"],
                gb(entry.size_bytes or facts["listed_bytes"]),
                f"{facts['context_tokens']:,}" if facts["context_tokens"] else "not known",
                f"{entry.licence}{terms}",
                _code(facts["recommended"]),
                facts["good_at"],
            )
        )
    return _table(("id", "publisher", "size", "context", "licence", "recommended for", "good at"), rows)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "devices.md": {
        "devices": devices,
        "offers": offers,
        "runtimes": runtimes,
        "variables": variables,
        "engines": engine_table,
    },
    "troubleshooting.md": {"findings": findings, "problems": problems, "installs": installs},
    "amd.md": {"families": families},
    "messages.md": {"messages": messages},
    "models.md": {"text models": text_models},
}


def page(name: str) -> str:
    """Return the page with its tables regenerated. Raises LookupError if the page lacks the markers of a table."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for part, table in PAGES[name].items():
        begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
        before, _, rest = text.partition(begin)
        _, end_marker, after = rest.partition(end)
        if not end_marker:
            raise LookupError(f"docs/{name} has no markers for {part}")
        text = before + begin + table() + end + after
    return text


def _by_rank() -> list[Backend]:
    return sorted(backends().values(), key=lambda backend: backend.rank)


def _id(backend: Backend) -> str:
    return f"{backend.name}:N" if backend.indexed else backend.name


def _systems(names: Iterable[str]) -> str:
    titles = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}
    return ", ".join(titles[name] for name in names)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _summary(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / "docs" / name).write_text(page(name), encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")
