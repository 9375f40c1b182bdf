"""`python -m tests.pages` writes anew those parts of docs/ that are the code's own data; a test holds them equal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from backend.cli.doctor.findings import functions
from backend.cli.launcher.packages import FIRST_START
from backend.common.errors import BY_CODE
from backend.common.hardware.chips import AMD_FAMILIES
from backend.common.installer_errors import ERRORS, diagnosis_of
from backend.devices import Backend, backends, visibility_variables
from backend.engines import engines
from backend.runtimes.recipes import recipes, size
from tests.service import ROOT


def devices() -> str:
    """Every backend: its id, hardware, systems, runtimes and other names."""
    rows = [
        (
            f"`{_id(one)}`",
            one.label,
            ", ".join(one.vendors) or ("the processor" if one.kind == "cpu" else "any maker's"),
            _systems(one.systems),
            _code(one.runtimes),
            _code(name for name in one.aliases if name != _id(one)),
        )
        for one in sorted(backends().values(), key=lambda one: one.rank)
    ]
    return _table(("device", "what it is", "cards of", "systems", "runtimes", "other names"), rows)


def offers() -> str:
    """What is offered for hardware that nothing reaches yet."""
    rows = [
        (
            f"`{offer.runtime}`",
            f"`{one.name}`",
            ", ".join(offer.vendors or one.vendors) or "any",
            ", ".join(offer.kinds),
            _systems(offer.systems),
            ", ".join(f"{begin}…" for begin in offer.architectures) or "any",
            f"`runtimes install {offer.runtime}`",
        )
        for one in sorted(backends().values(), key=lambda one: one.rank)
        for offer in one.offers
    ]
    return _table(("runtime", "device", "cards of", "kinds", "systems", "chips", "remedy"), rows)


def runtimes() -> str:
    """What each runtime costs, on the first of its systems."""
    rows = []
    for name, recipe in recipes().items():
        cost, systems = "your own environment alone", "none"
        if recipe.builds:
            first = recipe.builds[0]
            cost = f"{size(first.download_bytes)} to fetch, {size(first.installed_bytes)}"
            systems = ", ".join(dict.fromkeys(platform for build in recipe.builds for platform in build.platforms))
        pythons = f"{recipe.python[0]} to {recipe.python[1]}"
        rows.append((f"`{name}`", recipe.title, pythons, systems, cost, recipe.licence))
    return _table(("runtime", "what it is", "Python", "systems", "size on disk", "licence"), rows)


def variables() -> str:
    """Variables that hide or reorder cards."""
    rows = [
        (f"`{one.name}`", _code(visibility_variables(one.name)))
        for one in backends().values()
        if visibility_variables(one.name)
    ]
    return _table(("device", "hidden or reordered by"), rows)


def engine_table() -> str:
    """What each engine runs, and where."""
    rows = [
        (
            f"`{one.name}`",
            ", ".join(one.tasks),
            ", ".join(one.suffixes) or ("a file of yours" if one.runs_user_code else "a folder"),
            _code(one.backends),
        )
        for one in engines().values()
    ]
    return _table(("engine", "tasks", "files", "devices"), rows)


def findings() -> str:
    """What the doctor looks for."""
    return _table(("finding", "what it is"), [(f"`{one.__name__}`", _first(one)) for one in functions()])


def problems() -> str:
    """The code of each problem, and what it says."""
    return _table(("code", "what it says"), [(f"`{code}`", kind.title) for code, kind in sorted(BY_CODE.items())])


def installs() -> str:
    """What an installation that failed says."""
    # Left out: those of uv alone, and those whose remedy names the Python that runs this.
    others = {"killed", "no_python", "versions", "empty_index", "no_match"}
    diagnoses = [diagnosis_of(error.kind, FIRST_START) for error in ERRORS if error.kind not in others]
    rows = [(f"{each.reason[0].upper()}{each.reason[1:]}", each.remedy) for each in diagnoses]
    return _table(("message", "what to do"), rows)


def families() -> str:
    """AMD's families of chips, and whether the runtime `rocm` is offered for them."""
    served = tuple(begin for offer in backends()["rocm"].offers for begin in offer.architectures)
    rows = [
        (
            name.replace(" [", " ("),
            target,
            "part of the processor" if integrated else "card",
            "`rocm`" if target.startswith(served) else "no ROCm",
        )
        for name, target, integrated in AMD_FAMILIES
    ]
    return _table(("family", "chip", "kind", "through torch"), rows)


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
}


def page(name: str) -> str:
    """The page with its parts as they should be."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for part, made in PAGES[name].items():
        begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise LookupError(f"docs/{name} has no place for {part}")
        text = before + begin + made() + end + after
    return text


def _id(backend: Backend) -> str:
    return f"{backend.name}:N" if backend.indexed else backend.name


def _systems(names: Iterable[str]) -> str:
    words = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}
    return ", ".join(words[name] for name in names)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _first(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / "docs" / name).write_text(page(name), encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")
