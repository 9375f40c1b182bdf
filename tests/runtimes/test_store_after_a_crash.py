"""The store of runtimes after a crash at each step: the version in use stays complete, and the next start cleans up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.runtimes.store import MANIFEST, POINTER, InstalledRuntime, RuntimeStore

NAME = "cuda"


class Crash(Exception):
    """The process ends here."""


def install(store: RuntimeStore, version: str, size_bytes: int = 10) -> InstalledRuntime:
    """Install a version completely, but do not switch to it."""
    folder = store.clear(NAME, version)
    folder.mkdir()
    (folder / "python").write_text("#!")
    lock = store.lock_file(NAME, version)
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("lock")
    made = InstalledRuntime(version, str(folder / "python"), {"torch": version}, size_bytes, "2026-01-01")
    store.finish(NAME, made)
    return made


@pytest.fixture
def store(tmp_path: Path) -> RuntimeStore:
    return RuntimeStore(tmp_path / "runtimes")


def used(store: RuntimeStore) -> tuple[str | None, str | None]:
    """Return the current and the previous version."""
    current, previous = store.current(NAME), store.previous(NAME)
    return current.version if current else None, previous.version if previous else None


def test_an_update_keeps_the_version_before_and_drops_older_ones(store: RuntimeStore) -> None:
    for version in ("v1", "v2", "v3"):
        install(store, version)
        store.switch(NAME, version)
    assert used(store) == ("v3", "v2")
    store.sweep(NAME)
    assert sorted(path.name for path in (store.root / NAME).iterdir()) == [POINTER, "v2", "v2.lock", "v3", "v3.lock"]


def test_a_rollback_can_be_rolled_back(store: RuntimeStore) -> None:
    for version in ("v1", "v2"):
        install(store, version)
        store.switch(NAME, version)
    store.switch(NAME, "v1")
    assert used(store) == ("v1", "v2")
    store.switch(NAME, "v2")
    assert used(store) == ("v2", "v1")


def test_switching_to_the_current_version_keeps_the_previous_one(store: RuntimeStore) -> None:
    for version in ("v1", "v2", "v2"):
        install(store, version)
        store.switch(NAME, version)
    assert used(store) == ("v2", "v1")


def test_a_damaged_current_version_does_not_become_the_previous_one(store: RuntimeStore) -> None:
    for version in ("v1", "v2"):
        install(store, version)
        store.switch(NAME, version)
    (store.folder(NAME, "v2") / "python").unlink()
    assert store.broken(NAME)
    install(store, "v3")
    store.switch(NAME, "v3")
    assert used(store) == ("v3", "v1")


def update(store: RuntimeStore) -> None:
    """Install a second version and switch to it."""
    install(store, "v2")
    store.switch(NAME, "v2")


STEPS: dict[str, Callable[[RuntimeStore], object]] = {
    "install": lambda store: install(store, "v2"),
    "switch": update,
    "clear": lambda store: store.clear(NAME, "v2"),
    "sweep": lambda store: store.sweep(NAME),
}


@pytest.mark.parametrize("action", STEPS)
@pytest.mark.parametrize("crash_at", range(6))
def test_a_crash_at_any_step_leaves_the_old_or_the_new_version_complete(
    store: RuntimeStore, monkeypatch: pytest.MonkeyPatch, action: str, crash_at: int
) -> None:
    install(store, "v1")
    store.switch(NAME, "v1")
    count = [0]

    def crash_late(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] > crash_at:
                raise Crash
            return call(*args, **options)

        return stepped

    with monkeypatch.context() as patched:
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "rename"), (Path, "mkdir")):
            patched.setattr(owner, name, crash_late(getattr(owner, name)))
        try:
            STEPS[action](store)
        except Crash:
            pass
        else:
            assert count[0] <= crash_at
    again = RuntimeStore(store.root)
    assert used(again) in (("v1", None), ("v2", "v1"))
    again.sweep(NAME)
    current = again.current(NAME)
    assert current and Path(current.python).is_file()
    kept = {path.name.removesuffix(".lock") for path in (store.root / NAME).iterdir() if path.is_dir()}
    assert kept == {version for version in used(again) if version}


def test_the_manifest_is_what_makes_a_version_valid(store: RuntimeStore) -> None:
    install(store, "v1")
    (store.folder(NAME, "v1") / MANIFEST).unlink()
    assert store.made(NAME, "v1") is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"version": "v1"}', json.dumps({"unknown": 1}), "\x00"]
)
def test_a_torn_manifest_is_no_version(store: RuntimeStore, content: str) -> None:
    install(store, "v1")
    store.switch(NAME, "v1")
    (store.folder(NAME, "v1") / MANIFEST).write_text(content)
    assert store.current(NAME) is None
    assert store.broken(NAME)


@pytest.mark.parametrize("content", ["", "{", "[1]", '"v1"'])
def test_a_torn_pointer_means_no_runtime_until_the_next_install(store: RuntimeStore, content: str) -> None:
    install(store, "v1")
    store.switch(NAME, "v1")
    (store.root / NAME / POINTER).write_text(content)
    assert used(store) == (None, None)
    assert not store.broken(NAME)
    install(store, "v2")
    store.switch(NAME, "v2")
    assert used(store) == ("v2", None)


def test_a_version_whose_interpreter_is_gone_is_broken(store: RuntimeStore) -> None:
    made = install(store, "v1")
    store.switch(NAME, "v1")
    assert store.pythons([NAME, "absent"]) == {NAME: made.python}
    Path(made.python).unlink()
    assert store.broken(NAME)
    assert store.pythons([NAME, "absent"]) == {}


def test_a_changed_manifest_is_read_again(store: RuntimeStore) -> None:
    install(store, "v1", 10)
    store.switch(NAME, "v1")
    assert store.current(NAME) == store.made(NAME, "v1")
    install(store, "v1", 20)
    current = store.current(NAME)
    assert current and current.bytes == 20


def test_removal_frees_all_versions_and_the_cache(store: RuntimeStore) -> None:
    for version, size_bytes in (("v1", 10), ("v2", 20)):
        install(store, version, size_bytes)
        store.switch(NAME, version)
    store.cache.mkdir()
    assert store.remove(NAME) == 30
    assert list(store.root.iterdir()) == []
    assert store.remove(NAME) == 0


def test_a_removal_that_is_interrupted_leaves_no_runtime_in_use(
    store: RuntimeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(store, "v1")
    store.switch(NAME, "v1")

    def crash(*_args: Any, **_options: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("backend.runtimes.store.shutil.rmtree", crash)
        with pytest.raises(Crash):
            store.remove(NAME)
    assert store.current(NAME) is None
    store.sweep(NAME)
    assert not (store.root / NAME).exists()


def test_clearing_removes_the_rest_of_an_interrupted_install(store: RuntimeStore) -> None:
    folder = store.folder(NAME, "v1")
    folder.mkdir(parents=True)
    (folder / "half").write_text("x")
    assert store.clear(NAME, "v1") == folder
    assert not folder.exists()
    assert folder.parent.is_dir()
