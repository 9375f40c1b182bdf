"""A runtime under a former name: the list says what replaces it, and it is deleted once that is installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.common.config.settings import Settings
from backend.common.errors import NotFound
from backend.manager.runtime_service.description import RuntimeDescriber
from backend.manager.runtime_service.service import RuntimeService
from backend.manager.runtime_service.state import RuntimeState
from backend.runtimes.recipes import recipes
from backend.runtimes.store import InstalledRuntime, RuntimeStore

FORMER, NAME = "vulkan", "llama-vulkan"


@pytest.fixture
def store(tmp_path: Path) -> RuntimeStore:
    return RuntimeStore(tmp_path / "runtimes")


def install(store: RuntimeStore, name: str) -> None:
    folder = store.clear(name, "v1")
    folder.mkdir()
    (folder / "python").write_text("#!")
    store.finish(name, InstalledRuntime("v1", str(folder / "python"), {}, 10, "2026-01-01"))
    store.switch(name, "v1")


def test_the_list_says_that_an_installed_runtime_was_replaced(store: RuntimeStore) -> None:
    directory = SimpleNamespace(hardware=list, known_devices=list, probes=SimpleNamespace(started=False))
    directory.probes.table = SimpleNamespace(runtime_problems={})
    describer = RuntimeDescriber(Settings(), {}, store, cast(Any, directory))
    reasons = []
    for name in (None, FORMER, NAME):
        if name:
            install(store, name)
        reasons.append(describer.describe(recipes()[NAME], RuntimeState()).reason)
    assert reasons == [
        "It is not installed.",
        "It is not installed. It replaces the runtime vulkan, which is installed and no longer used.",
        None,
    ]


def test_the_former_one_stays_until_its_successor_is_installed(store: RuntimeStore) -> None:
    service = cast(Any, SimpleNamespace(store=store))
    install(store, FORMER)
    RuntimeService.sweep(service)
    assert store.current(FORMER)
    install(store, NAME)
    RuntimeService.sweep(service)
    assert not (store.root / FORMER).exists() and store.current(NAME)


def test_its_name_leads_to_the_successor() -> None:
    service = cast(Any, SimpleNamespace(runtimes=list))
    with pytest.raises(NotFound) as caught:
        RuntimeService.runtime(service, FORMER)
    assert caught.value.remedy.startswith("`python -m backend runtimes install llama-vulkan` installs its successor.")
