"""Removal from the cache of Hugging Face: only the files of the model, never what other models or programs need."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.child.download.workspace import NAME, lock_for
from backend.models.hub_cache import drop, has_parts, hub_cache
from backend.models.sources import Source

COMMIT, OTHER = "c" * 40, "d" * 40


class Cache:
    """A cache with the layout of `huggingface_hub`."""

    def __init__(self, folder: Path) -> None:
        self.environ = {"HF_HUB_CACHE": str(folder)}
        self.repository = folder / "models--maker--model"

    def add(self, name: str, blob: str, commit: str = COMMIT) -> Path:
        """Add a file to a snapshot, as a link to a blob."""
        blobs = self.repository / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        (blobs / blob).write_text(blob)
        file = self.repository / "snapshots" / commit / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(blobs / blob)
        return file

    def source(self, path: Path, *brought: str, commit: str | None = COMMIT) -> Source:
        return Source("hf", repo="maker/model", path=str(path), commit=commit, downloaded_files=list(brought))

    def blobs(self) -> set[str]:
        return {file.name for file in (self.repository / "blobs").glob("*") if file.is_file()}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "hub")


def test_the_last_model_of_a_repository_takes_the_repository_along(cache: Cache) -> None:
    file = cache.add("x.gguf", "blob")
    drop(cache.source(file, "x.gguf"), [], cache.environ)
    assert not cache.repository.exists()


def test_files_that_were_there_before_the_download_stay(cache: Cache) -> None:
    file, earlier = cache.add("x.gguf", "blob"), cache.add("config.json", "config")
    drop(cache.source(file, "x.gguf"), [], cache.environ)
    assert (earlier.read_text(), cache.blobs()) == ("config", {"config"})


def test_a_blob_that_another_snapshot_links_to_stays(cache: Cache) -> None:
    file, other = cache.add("x.gguf", "blob"), cache.add("x.gguf", "blob", OTHER)
    drop(cache.source(file, "x.gguf"), [], cache.environ)
    assert not file.exists()
    assert other.read_text() == "blob"


def test_files_of_another_model_in_the_same_snapshot_stay(cache: Cache) -> None:
    file, other = cache.add("a/x.gguf", "x"), cache.add("a/y.gguf", "y")
    drop(cache.source(file, "a/x.gguf", "a/y.gguf"), [other], cache.environ)
    assert (file.exists(), other.read_text()) == (False, "y")


def test_all_parts_of_another_split_model_stay(cache: Cache) -> None:
    parts = [cache.add(f"m-0000{number}-of-00002.gguf", f"part{number}") for number in (1, 2)]
    file = cache.add("x.gguf", "x")
    drop(cache.source(file, "x.gguf", *(part.name for part in parts)), [parts[0]], cache.environ)
    assert cache.blobs() == {"part1", "part2"}


def test_a_folder_that_another_model_uses_keeps_its_files(cache: Cache) -> None:
    file = cache.add("cpu/model.onnx", "graph")
    drop(cache.source(file.parent, "cpu/model.onnx"), [file.parent], cache.environ)
    assert file.exists()


def test_empty_folders_are_removed_and_others_stay(cache: Cache) -> None:
    file, other = cache.add("a/b/x.gguf", "x"), cache.add("a/y.txt", "y")
    drop(cache.source(file, "a/b/x.gguf"), [], cache.environ)
    assert not file.parent.exists()
    assert other.exists()


def test_a_file_that_is_gone_already_is_no_error(cache: Cache) -> None:
    file = cache.add("x.gguf", "blob")
    file.unlink()
    drop(cache.source(file, "x.gguf"), [], cache.environ)
    assert not file.exists()


def test_a_path_outside_a_snapshot_removes_nothing(cache: Cache, tmp_path: Path) -> None:
    cache.add("x.gguf", "blob")
    mine = tmp_path / COMMIT / "x.gguf"
    mine.parent.mkdir()
    mine.write_text("mine")
    drop(cache.source(mine, "x.gguf"), [], cache.environ)
    assert mine.read_text() == "mine"
    assert cache.blobs() == {"blob"}


def test_a_link_to_a_file_of_the_user_leaves_that_file(cache: Cache, tmp_path: Path) -> None:
    file = cache.add("x.gguf", "blob")
    mine = tmp_path / "mine.gguf"
    mine.write_text("mine")
    file.unlink()
    file.symlink_to(mine)
    drop(cache.source(file, "x.gguf"), [], cache.environ)
    assert (file.is_symlink(), mine.read_text()) == (False, "mine")


def test_partial_downloads_go_unless_another_program_writes_them(cache: Cache) -> None:
    workspace = cache.repository / "blobs" / NAME
    for name in ("one", "two"):
        (workspace / f"{name}.part").mkdir(parents=True)
    (cache.repository / "snapshots" / OTHER).mkdir(parents=True)
    source = Source("hf", repo="maker/model")
    assert has_parts(source, cache.environ)
    lock = lock_for(workspace, "two")
    assert lock.acquire()
    drop(source, [], cache.environ)
    assert [part.name for part in workspace.glob("*.part")] == ["two.part"]
    lock.release()
    drop(source, [], cache.environ)
    assert not has_parts(source, cache.environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/hub"}, "/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/home"}, "/hub"),
        ({"HF_HOME": "/home"}, "/home/hub"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/hub"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/hub"),
        ({"HF_HOME": "~/models"}, "/root-of-the-test/models/hub"),
        ({}, "/root-of-the-test/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_library_has_it(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("HOME", "/root-of-the-test")
    assert hub_cache(environ) == Path(expected)
