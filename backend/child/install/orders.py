"""The orders and results of the install program, see `backend/child/one_shot.py` and `programs/install.py`."""

from __future__ import annotations

from typing import TypedDict


class InstallOrder(TypedDict):
    """What both steps need.

    `name`: of the runtime. `folder`: where to write. `cache`, `tools`: folders of packages, and of uv and interpreters.
    `uv`: the requirement that installs uv. `index`: optional, a package index. `installed_bytes`: expected size.
    """

    name: str
    folder: str
    cache: str
    tools: str
    uv: str
    index: str | None
    installed_bytes: int


class LockOrder(InstallOrder):
    """Resolve requirements. `python`: optional, the interpreter to use; else uv looks for the version `request`.

    `libraries`: requirements that are only unpacked, for any Python and without their dependencies.
    """

    python: str | None
    request: str
    requirements: list[str]
    libraries: list[str]


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
    index: str | None


class MakeOrder(InstallOrder):
    """Create an environment. `lock`: the path of the lock file; the one of the libraries is in the same folder."""

    python: str
    extra: bool
    lock: str


class MakeResult(TypedDict):
    """The interpreter of the new environment, and the size of its files."""

    python: str
    bytes: int
