"""The orders and results of the install program, see `backend/child/one_shot.py` and `programs/install.py`."""

from __future__ import annotations

from typing import TypedDict


class VendorIndex(TypedDict):
    """A package index with the builds of a vendor.

    `packages`: patterns of the names that come from it, such as `torch*`; empty: all that it has. `sources`: names that
    it has as source packages only.
    """

    url: str
    packages: list[str]
    sources: list[str]


class InstallOrder(TypedDict):
    """What both steps need.

    `name`: of the runtime. `folder`: where to write. `cache`, `tools`: folders of packages, and of uv and interpreters.
    `uv`: the requirement that installs uv. `index`: optional, the vendor's. `installed_bytes`: expected size.
    """

    name: str
    folder: str
    cache: str
    tools: str
    uv: str
    index: VendorIndex | None
    installed_bytes: int


class LockOrder(InstallOrder):
    """Resolve requirements. `python`: optional, the interpreter to use; else uv looks for the version `request`.

    `libraries`: requirements that are only unpacked, for any Python and without their dependencies.
    `local`: by package, how its local version must begin.
    """

    python: str | None
    request: str
    requirements: list[str]
    libraries: list[str]
    local: dict[str, list[str]]


class LockResult(TypedDict):
    """The texts of the lock files, the interpreter they are for, and whether the recipe's index was used.

    `libraries` is None if the recipe has none.
    """

    lock: str
    libraries: str | None
    python: str
    extra: bool


class EnvironmentFacts(TypedDict):
    """What the step `make` needs from `lock`: the interpreter, whether the index was used, and the index."""

    python: str
    extra: bool
    index: VendorIndex | None


class MakeOrder(InstallOrder):
    """Create an environment. `lock`: the path of the lock file; the one of the libraries is in the same folder."""

    python: str
    extra: bool
    lock: str


class MakeResult(TypedDict):
    """The interpreter of the new environment, and the size of its files."""

    python: str
    bytes: int
