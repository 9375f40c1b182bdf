"""Fixtures: one manager for all tests of this folder, because its start and first proofs take seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.runtimes import recipes
from tests.runtimes.stacks import House, Index, make_wheel, recipe_folder


@pytest.fixture(scope="package")
def quiet() -> Iterator[pytest.MonkeyPatch]:
    """No index, proxy or certificate of this machine."""
    patch = pytest.MonkeyPatch()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_")) or name.upper().endswith("_PROXY")]:
        patch.delenv(name)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("UV_HTTP_RETRIES", "0")
    patch.setenv("UV_NO_CONFIG", "1")
    yield patch
    patch.undo()


@pytest.fixture(scope="package")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "wheels"
    make_wheel(folder, "1.0")
    return folder


@pytest.fixture(scope="package")
def index(quiet: pytest.MonkeyPatch, wheels: Path) -> Iterator[Index]:
    with Index(wheels) as served:
        quiet.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.fixture(scope="package")
def house(
    quiet: pytest.MonkeyPatch, index: Index, wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    quiet.setattr(recipes, "FOLDER", recipe_folder(folder / "recipes"))
    recipes.recipes.cache_clear()
    made = House(folder, wheels)
    yield made
    made.close()
    quiet.undo()
    recipes.recipes.cache_clear()
