"""Every recipe that names a vendor's index locks the builds that it names, or states why not; with the real uv."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backend.child.download.errors import Refused
from backend.child.install.orders import InstallOrder, LockOrder, MakeOrder
from backend.child.install.package_index import Index, environment
from backend.child.install.resolution import Resolver
from backend.child.install.uv import Uv
from backend.child.programs.install import install_lock
from backend.common.errors import RuntimeFailed
from backend.models import conversion
from backend.runtimes.installer import check_builds
from backend.runtimes.lock_files import Lock, read_lock
from backend.runtimes.recipes import Build, Recipe, read_recipes, recipes
from tests.runtimes.played_index import CHIP, GENERAL, VENDOR, PlayedIndexes, play

DEAD = "http://127.0.0.1:9/simple"
CONVERT = read_recipes(conversion.DATA)
# One of several builds with the same requirements and index stands for all.
CASES = {
    f"{recipe.name}-{build.index.url.rstrip('/').rsplit('/', 1)[-1]}": (recipe, build)
    for recipe in [*recipes().values(), *CONVERT.values()]
    for build in recipe.builds
    if build.index
}
with_each_build = pytest.mark.parametrize(("recipe", "build"), CASES.values(), ids=CASES)


class Locking:
    """Locks builds against the played indexes, as the install program does."""

    def __init__(self, played: PlayedIndexes, folder: Path) -> None:
        self.played, self.folder = played, folder
        own = {"UV_CACHE_DIR": str(folder / "cache"), "UV_NO_CONFIG": "1", "UV_HTTP_RETRIES": "0"}
        self.uv = Uv(str(Path(sys.executable).with_name("uv")), environment(Index(), own))

    def order(self, recipe: Recipe, build: Build, vendor: str, chip: str = CHIP) -> LockOrder:
        """The order of the installer. `vendor`: the address of its index."""
        assert build.index
        return {
            "name": recipe.name,
            "folder": str(self.folder),
            "cache": "",
            "tools": "",
            "uv": "",
            "index": {"url": vendor, "packages": build.index.packages, "sources": build.index.sources},
            "installed_bytes": 0,
            "python": None,
            "request": "",
            "requirements": recipe.lines(chip),
            "libraries": [],
            "local": build.local,
        }

    def lock(self, recipe: Recipe, build: Build, vendor: str, own: bool = False, chip: str = CHIP) -> Lock:
        """The checked lock. `own`: the user has configured the general index."""
        order = self.order(recipe, build, vendor, chip)
        general = Index(["--default-index", self.played.url(GENERAL)], own=own)
        resolver = Resolver(order, general, self.uv, sys.executable)
        text, is_vendor = resolver.resolve(order["requirements"], self.folder / "pylock.toml")
        assert is_vendor or own
        assert not list(self.folder.glob("pyproject.toml")), "the address may contain a password"
        lock = read_lock(text, "3.11")
        check_builds(recipe, build, lock, order["index"], is_vendor)
        return lock


@pytest.fixture(scope="module")
def locking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locking]:
    with PlayedIndexes() as played:
        yield Locking(played, tmp_path_factory.mktemp("locking"))


def local_of(build: Build) -> str:
    """A local version that the build accepts."""
    return f"{build.local['torch'][0]}1"


def test_the_cases_are_those_of_all_recipes() -> None:
    assert {"rocm", "xpu", "cuda", "torch", "directml", "convert"} <= {recipe.name for recipe, _ in CASES.values()}
    for recipe, build in CASES.values():
        assert build.index and build.local, recipe.name
        assert not build.index.url.startswith("http:")
        assert set(build.local) <= set(build.index.packages)


@with_each_build
def test_the_vendor_s_build_is_locked_although_the_general_index_is_ahead(
    locking: Locking, recipe: Recipe, build: Build
) -> None:
    assert build.index
    locking.played.serve(play(recipe, build, local_of(build)))
    lock = locking.lock(recipe, build, locking.played.url(VENDOR))
    of_vendor = {name: version for name, version in lock.packages.items() if "+" in version}
    assert set(build.local) <= set(of_vendor)
    assert len(of_vendor) > sum("*" in pattern for pattern in build.index.packages)
    assert all(version.endswith(f"+{local_of(build)}") for version in of_vendor.values())
    assert all(lock.packages[name] == "10.1" for name in build.index.sources)
    assert "0.1" not in lock.packages.values(), "general packages come from the general index"
    wheels = {path for path in locking.played.asked if path.endswith(".whl")}
    assert not wheels, "nothing is downloaded"


@with_each_build
def test_another_build_is_a_stated_failure(locking: Locking, recipe: Recipe, build: Build) -> None:
    locking.played.serve(play(recipe, build, "zz999"))
    with pytest.raises(RuntimeFailed, match=r"the package index has torch .*\+zz999. Nothing was downloaded") as caught:
        locking.lock(recipe, build, locking.played.url(VENDOR))
    assert f"runtimes: {{{recipe.name}: {{index: URL}}}}" in caught.value.remedy


@with_each_build
def test_an_index_without_the_package_is_a_stated_failure(locking: Locking, recipe: Recipe, build: Build) -> None:
    locking.played.serve(play(recipe, build, local_of(build)) | {VENDOR: {}})
    with pytest.raises(Refused, match="torch") as caught:
        locking.lock(recipe, build, locking.played.url(VENDOR))
    assert f"For a mirror of {locking.played.url(VENDOR)}" in caught.value.remedy


@with_each_build
def test_an_unreachable_index_does_not_lead_to_another_build(locking: Locking, recipe: Recipe, build: Build) -> None:
    locking.played.serve(play(recipe, build, local_of(build)))
    with pytest.raises(RuntimeFailed, match=r"be reached, and your package index has torch [\d.]+(post9)?\. Nothing"):
        locking.lock(recipe, build, DEAD, own=True)


def test_an_index_that_cannot_be_reached_is_a_stated_failure(locking: Locking) -> None:
    with pytest.raises(Refused, match="cannot be reached at http://127.0.0.1:9/simple/torch/") as caught:
        locking.lock(*CASES["torch-cpu"], DEAD)
    assert f"For a mirror of {DEAD}" in caught.value.remedy


def test_the_user_s_own_index_replaces_an_unreachable_one_if_it_has_the_build(locking: Locking) -> None:
    recipe, build = CASES["torch-cpu"]
    files = play(recipe, build, local_of(build))
    locking.played.serve({GENERAL: files[GENERAL] | {"torch": files[GENERAL]["torch"] | files[VENDOR]["torch"]}})
    assert locking.lock(recipe, build, DEAD, own=True).packages["torch"].endswith(f"+{local_of(build)}")


def test_a_card_that_the_vendor_has_no_packages_for_is_a_stated_failure(locking: Locking) -> None:
    recipe, build = CASES["rocm-whl-next"]
    locking.played.serve(play(recipe, build, local_of(build)))
    with pytest.raises(Refused, match="has no packages for device-gfx9999") as caught:
        locking.lock(recipe, build, locking.played.url(VENDOR), chip="gfx9999")
    assert "runtimes: {rocm: {python: …}}" in caught.value.remedy


def test_a_source_package_that_the_recipe_does_not_name_is_refused(locking: Locking) -> None:
    recipe, build = CASES["rocm-whl-next"]
    assert build.index
    locking.played.serve(play(recipe, build, local_of(build)))
    strict = replace(build, index=replace(build.index, sources=[]))
    with pytest.raises(Refused, match="rocm==10.1 has no usable wheels"):
        locking.lock(recipe, strict, locking.played.url(VENDOR))


def test_a_named_source_package_is_built_and_installed_with_the_rest(locking: Locking, tmp_path: Path) -> None:
    recipe, build = CASES["rocm-whl-next"]
    locking.played.serve(play(recipe, build, local_of(build)))
    lock = locking.lock(recipe, build, locking.played.url(VENDOR))
    base: InstallOrder = locking.order(recipe, build, locking.played.url(VENDOR))
    order: MakeOrder = {
        "name": base["name"],
        "folder": str(tmp_path / "environment"),
        "cache": "",
        "tools": "",
        "uv": "",
        "index": base["index"],
        "installed_bytes": 0,
        "python": sys.executable,
        "extra": True,
        "lock": str(locking.folder / "pylock.toml"),
    }
    assert locking.uv.run(["venv", order["folder"], "--python", sys.executable, "--no-project"])[0] == 0
    general = Index(["--default-index", locking.played.url(GENERAL)])
    code, output = install_lock(order, Path(order["lock"]), [], general, locking.uv)
    assert code == 0, output
    made = {path.name.partition("-")[0] for path in (tmp_path / "environment").rglob("*.dist-info")}
    assert made == {name.replace("-", "_") for name in lock.packages}
