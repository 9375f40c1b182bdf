"""Failing installs: each has a reason and a remedy, and leaves no files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backend.child import handle
from backend.common.errors import DiskFull, RuntimeFailed, TouchstoneError, Validation
from backend.common.types import Progress
from backend.runtimes import recipes
from backend.runtimes.__main__ import install
from backend.runtimes.installer import MARGIN_BYTES, RuntimeInstaller
from backend.runtimes.recipes import BuildIndex, Recipe, read_recipes
from backend.runtimes.store import InstalledRuntime, RuntimeStore
from tests.faulty import faulty
from tests.runtimes.stacks import NAME, Index, make_library, make_wheel, recipe_folder

LIMIT_S = 90
DEAD = "http://127.0.0.1:9/simple"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return read_recipes(recipe_folder(tmp_path_factory.mktemp("recipes")))[NAME]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def maker(tmp_path: Path, tools: Path) -> RuntimeInstaller:
    return RuntimeInstaller(RuntimeStore(tmp_path / "runtimes"), tools, handle.spawn)


async def ignore(_: Progress) -> None:
    """Nobody looks."""


def make(maker: RuntimeInstaller, recipe: Recipe) -> InstalledRuntime:
    """A version, made to its end."""

    async def both() -> InstalledRuntime:
        async with asyncio.timeout(LIMIT_S):
            lock, about = await maker.lock(recipe, ignore)
            return await maker.make(recipe, lock, about, ignore)

    return asyncio.run(both())


def refusal(maker: RuntimeInstaller, recipe: Recipe) -> TouchstoneError:
    """What it says instead."""
    with pytest.raises(TouchstoneError) as caught:
        make(maker, recipe)
    error = caught.value
    assert error.detail.endswith(".") and error.remedy.endswith((".", "again."))
    return error


def test_the_same_versions_get_the_same_folder_and_others_another(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, wheels: Path, tmp_path: Path
) -> None:
    async def locked() -> tuple[str, int | None]:
        lock, _ = await maker.lock(recipe, ignore)
        return lock.digest, lock.download_bytes

    first, _ = asyncio.run(locked())
    assert asyncio.run(locked())[0] == first
    newer = make_wheel(wheels, "9.0")
    try:
        assert asyncio.run(locked())[0] != first
    finally:
        newer.unlink()
    assert len(first) == 10, "paths may not be long on Windows"


def test_libraries_are_unpacked_for_any_python_and_without_their_dependencies(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, wheels: Path
) -> None:
    with_libraries = replace(recipe, libraries=["tinylibs>=1"])
    older, plain = make_library(wheels, "1.0"), make(maker, recipe)
    try:
        first = make(maker, with_libraries)
        newer = make_library(wheels, "2.0")
        second = make(maker, with_libraries)
        newer.unlink()
    finally:
        older.unlink()
    assert first.packages == {"tinystack": "1.0", "tinylibs": "1.0"} and plain.packages == {"tinystack": "1.0"}
    assert len({plain.version, first.version, second.version}) == 3
    (library,) = Path(second.python).parents[1].rglob("libtiny.so")
    assert library.read_text() == "2.0" and "tinylibs" in second.packages


def test_an_index_that_cannot_be_reached(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", DEAD)
    error = refusal(maker, recipe)
    assert isinstance(error, RuntimeFailed) and "cannot be reached at http://127.0.0.1:9" in error.detail
    assert "HTTPS_PROXY" in error.remedy


def test_a_proxy_that_is_not_there(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("UV_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    error = refusal(maker, recipe)
    assert "the proxy did not connect to the package index" in error.detail and "HTTPS_PROXY" in error.remedy


def test_an_extra_index_that_cannot_be_reached_is_left_out_only_where_the_user_has_an_own_one(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = replace(recipe, builds=[replace(recipe.builds[0], index=BuildIndex(DEAD, ["tinystack"]))])
    made = make(maker, apart)
    assert made.packages == {"tinystack": "1.0"} and not made.extra
    monkeypatch.delenv("PIP_INDEX_URL")
    assert DEAD in refusal(maker, apart).detail


def test_a_package_that_no_index_has(index: Index, maker: RuntimeInstaller, recipe: Recipe, wheels: Path) -> None:
    error = refusal(maker, replace(recipe, requirements=["tinystack>=77"]))
    assert "tinystack>=77" in error.detail and "pip config list" in error.remedy


def test_a_wheel_that_is_listed_and_not_there(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, tmp_path: Path
) -> None:
    index.gone.set()
    try:
        error = refusal(maker, recipe)
    finally:
        index.gone.clear()
    assert "404" in error.detail and "pip config list" in error.remedy


def test_a_wheel_that_is_not_what_the_index_announced(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, wheels: Path
) -> None:
    async def spoilt() -> None:
        lock, about = await maker.lock(recipe, ignore)
        make_wheel(wheels, "1.0", ballast=b"another")
        try:
            await maker.make(recipe, lock, about, ignore)
        finally:
            make_wheel(wheels, "1.0")

    with pytest.raises(RuntimeFailed, match="not what the package index announced"):
        asyncio.run(spoilt())


def test_too_little_disk_is_told_before_anything_is_fetched(recipe: Recipe, tmp_path: Path, tools: Path) -> None:
    shelf = RuntimeStore(tmp_path / "runtimes")
    maker = RuntimeInstaller(shelf, tools, faulty("dies"), free_bytes=lambda _: MARGIN_BYTES + 199_999)
    error = refusal(maker, recipe)
    assert isinstance(error, DiskFull) and "200 MB" in error.detail and "runtimes remove" in error.remedy


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root on Linux")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_in_the_middle(
    index: Index, recipe: Recipe, small_disk: Path, tools: Path, wheels: Path
) -> None:
    maker = RuntimeInstaller(RuntimeStore(small_disk / "runtimes"), tools, handle.spawn, free_bytes=lambda _: 10**12)
    big = make_wheel(wheels, "8.0", ballast=os.urandom(6_000_000))
    try:
        error = refusal(maker, recipe)
    finally:
        big.unlink()
    assert isinstance(error, DiskFull) and "filled up while fetching the packages" in error.detail


def test_a_system_that_it_is_not_made_for(maker: RuntimeInstaller, recipe: Recipe) -> None:
    error = refusal(maker, replace(recipe, builds=[]))
    assert isinstance(error, Validation) and "own" in error.remedy


def test_a_runtime_for_an_image_is_installed_into_a_folder(
    index: Index, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("backend.runtimes.__main__.recipes", lambda: {NAME: recipe})
    python = Path(asyncio.run(install(NAME, tmp_path)))
    assert python.is_file() and tmp_path in python.parents
    assert capsys.readouterr().err == "tinystack==1.0\n"


def test_a_python_that_is_not_here_and_cannot_be_fetched(index: Index, maker: RuntimeInstaller, recipe: Recipe) -> None:
    error = refusal(maker, replace(recipe, python=["3.99", "3.99"]))
    assert "needs Python 3.99" in error.detail and "uv python install 3.99" in error.remedy


def test_an_installation_that_is_left_ends_with_all_that_it_started(
    index: Index, maker: RuntimeInstaller, recipe: Recipe, tmp_path: Path
) -> None:
    async def left() -> None:
        lock, about = await maker.lock(recipe, ignore)
        making = asyncio.create_task(maker.make(recipe, lock, about, ignore))
        await asyncio.to_thread(index.stalled.wait, LIMIT_S)
        assert running(tmp_path)
        making.cancel()
        await asyncio.wait({making})
        assert making.cancelled()

    index.stalled.clear()
    index.gate.clear()
    try:
        asyncio.run(left())
    finally:
        index.gate.set()
    assert not running(tmp_path, 2)


def running(folder: Path, patience_s: float = 0) -> list[str]:
    """The command lines of processes that work in a folder, after waiting that long for their end."""
    end = time.monotonic() + patience_s
    while True:
        files = list(Path("/proc").glob("[0-9]*/cmdline"))
        lines = [line for file in files if str(folder) in (line := read(file))]
        if not lines or time.monotonic() > end:
            return lines
        time.sleep(0.02)


def read(file: Path) -> str:
    try:
        return file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def test_every_recipe_names_packages_platforms_and_where_its_sizes_come_from() -> None:
    for recipe in recipes.recipes().values():
        if recipe.own:
            continue
        assert recipe.lines() and recipe.builds, recipe.name
        assert all(build.known and build.installed_bytes > build.download_bytes for build in recipe.builds)
        assert [int(part) for part in recipe.python[0].split(".")] <= [int(p) for p in recipe.python[1].split(".")]
        places = [place for build in recipe.builds for place in build.platforms]
        assert len(places) == len(set(places)), recipe.name
