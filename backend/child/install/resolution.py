"""Resolve requirements into a lock file with uv: a vendor's packages from its index, all others from the user's.

Both indexes have a `torch`, for different hardware, and vendors mirror old versions of general packages. So the
packages of the vendor are resolved first, with its index before all others. Then everything is resolved, with each of
these packages fixed to that version and that index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from backend.child.download.errors import Refused
from backend.child.install.errors import explain, failed, is_unreachable
from backend.child.install.local_versions import find_other_builds
from backend.child.install.orders import LockOrder, VendorIndex
from backend.child.install.package_index import Index
from backend.child.install.uv import Uv

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGE = re.compile(r'^name = "([^"]+)"\r?\nversion = "([^"]+)"', re.MULTILINE)
_NO_EXTRA = re.compile(r"package `([^`]+)` does not have an extra named `([^`]+)`")
_VENDOR = "vendor"  # the name of the index within the project file


class Resolution(NamedTuple):
    """The text of a lock file, and whether the vendor's index was used."""

    lock: str
    is_vendor: bool


class Resolver:
    """Resolves the requirements of an order for the interpreter `python`."""

    def __init__(self, order: LockOrder, index: Index, uv: Uv, python: str) -> None:
        self._order = order
        self._index = index
        self._uv = uv
        self._options = ["--python", python, "--only-binary", ":all:"]
        self._options += [word for file in index.constraints for word in ("--constraint", file)]

    def resolve(self, lines: list[str], lock: Path, options: Sequence[str] = ()) -> Resolution:
        """Write the lock file of some requirements. Raises Refused.

        The vendor's index is left out if it cannot be reached and the user has configured an index.
        """
        vendor = self._order["index"]
        if vendor is None or "--no-index" in self._index.options:
            return Resolution(self._compile(_write(lock, lines), lock, options), False)
        if not vendor["packages"]:
            return self._with_first_index(vendor, lines, lock, options)
        own = [line for line in lines if _is_of(vendor, line)]
        if not own:
            return Resolution(self._compile(_write(lock, lines), lock, options), False)
        pins = self._pins(vendor, own, lock.with_name("pylock.vendor.toml"), options)
        if not pins:
            return Resolution(self._compile_wanted(lines, lock, options), False)
        pinned = [*lines, *(f"{name}=={version}" for name, version in pins.items())]
        code, output = self._run_project(pinned, pins, vendor, lock, options)
        if code:
            raise self._explained(output, vendor)
        return Resolution(lock.read_text(encoding="utf-8"), True)

    def _with_first_index(
        self, vendor: VendorIndex, lines: list[str], lock: Path, options: Sequence[str]
    ) -> Resolution:
        requirements = _write(lock, lines)
        code, output = self._run(requirements, lock, [*options, "--index", vendor["url"]])
        if code and self._index.own and is_unreachable(output):
            return Resolution(self._compile(requirements, lock, options), False)
        if code:
            raise self._explained(output, vendor)
        return Resolution(lock.read_text(encoding="utf-8"), True)

    def _pins(self, vendor: VendorIndex, lines: list[str], lock: Path, options: Sequence[str]) -> dict[str, str]:
        """Return the versions of the vendor's packages. Empty: its index is unreachable, and the user has another."""
        names = [match[0] for line in lines if (match := _NAME.match(line))]
        first = ["--index", vendor["url"], "--index-strategy", "first-index"]
        code, output = self._run_project(lines, names, vendor, lock, [*options, *first])
        if code and self._index.own and is_unreachable(output):
            return {}
        if code:
            raise self._explained(output, vendor)
        if missing := _NO_EXTRA.search(output):
            raise failed(
                f"{missing[1]} at {vendor['url']} has no packages for {missing[2]}.",
                "Use another runtime for this hardware (`runtimes` lists them), or your own environment: "
                f"`runtimes: {{{self._order['name']}: {{python: …}}}}` in config.yaml.",
            )
        found = _versions(lock.read_text(encoding="utf-8"))
        return {name: version for name, version in found.items() if _is_of(vendor, name) or "+" in version}

    def _compile(self, requirements: Path, lock: Path, options: Sequence[str]) -> str:
        code, output = self._run(requirements, lock, [*options, "--quiet"])
        if code:
            raise self._explained(output, self._order["index"])
        return lock.read_text(encoding="utf-8")

    def _compile_wanted(self, lines: list[str], lock: Path, options: Sequence[str]) -> str:
        """Return the text of the lock file from the user's index: the newest of the wanted builds, else the newest."""
        newest = text = self._compile(_write(lock, lines), lock, options)
        excluded: list[str] = []
        while others := find_other_builds(_versions(text), self._order["local"]):
            excluded += [f"{name}!={version}" for name, version in others.items() if version]
            code, _ = self._run(_write(lock, [*lines, *excluded]), lock, [*options, "--quiet"])
            if code or not all(others.values()):
                return newest
            text = lock.read_text(encoding="utf-8")
        return text

    def _run_project(
        self, lines: list[str], names: Iterable[str], vendor: VendorIndex, lock: Path, options: Sequence[str]
    ) -> tuple[int, str]:
        """Write a lock file for which the packages `names` come from the vendor's index and from no other."""
        project = lock.with_name("pyproject.toml")
        project.write_text(_project(lines, names, vendor["url"]), encoding="utf-8")
        sources = [word for name in vendor["sources"] for word in ("--no-binary", name)]
        try:
            return self._run(project, lock, [*options, *sources])
        finally:
            project.unlink()  # the URL may contain a password

    def _run(self, requirements: Path, lock: Path, options: Sequence[str]) -> tuple[int, str]:
        arguments = ["pip", "compile", str(requirements), "--output-file", str(lock), "--no-header"]
        arguments += ["--format", "pylock.toml", *self._options, *self._index.options, *options]
        return self._uv.run(arguments)

    def _explained(self, output: str, vendor: VendorIndex | None) -> Refused:
        return explain(output, "looking up versions", self._order["name"], vendor["url"] if vendor else "")


def _write(lock: Path, lines: list[str]) -> Path:
    requirements = lock.with_suffix(".in")
    requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return requirements


def _versions(lock: str) -> dict[str, str]:
    return dict(_PACKAGE.findall(lock))


def _is_of(vendor: VendorIndex, line: str) -> bool:
    """Return whether the package of a requirement line comes from the vendor's index."""
    name = _NAME.match(line)
    return name is not None and any(fnmatch(name[0].lower(), pattern) for pattern in vendor["packages"])


def _project(lines: list[str], names: Iterable[str], url: str) -> str:
    """Return a project file (pyproject.toml) in which the packages `names` come from the vendor's index."""
    listed = "".join(f"  {json.dumps(line)},\n" for line in lines)
    sources = "".join(f'{json.dumps(name)} = {{ index = "{_VENDOR}" }}\n' for name in names)
    # A separate workspace: uv would also read the project file of a folder above.
    return (
        f'[project]\nname = "touchstone-runtime"\nversion = "0"\nrequires-python = ">=3.10"\n'
        f"dependencies = [\n{listed}]\n[tool.uv.workspace]\n[tool.uv.sources]\n{sources}"
        f'[[tool.uv.index]]\nname = "{_VENDOR}"\nurl = {json.dumps(url)}\nexplicit = true\n'
    )
