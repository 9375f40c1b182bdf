"""The file of added models: changes by several programs, torn and foreign content, a disk without space."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from backend.child.download.workspace import NAME, lock_for
from backend.common.errors import Configuration, DiskFull
from backend.models.sources import Source, parse
from backend.models.user_models import UserModels


def web(name: str = "x.gguf") -> Source:
    source = parse(f"https://models.example/{name}")
    assert source
    return source


def test_an_added_model_is_read_by_another_program(tmp_path: Path) -> None:
    UserModels(tmp_path).put("mine", web(), None)
    entry = UserModels(tmp_path).entries()["mine"]
    assert (entry.source, entry.target) == (web(), tmp_path / "mine.gguf")


def test_a_program_that_runs_sees_what_another_one_changes(tmp_path: Path) -> None:
    first, second = UserModels(tmp_path), UserModels(tmp_path)
    assert first.entries() == {}
    second.put("mine", web(), None)
    assert list(first.entries()) == ["mine"]
    second.drop("mine")
    assert first.entries() == {}


def test_two_programs_that_add_a_model_keep_both(tmp_path: Path) -> None:
    first, second = UserModels(tmp_path), UserModels(tmp_path)
    assert not first.entries() and not second.entries()
    first.put("one", web(), None)
    second.put("two", web("y.gguf"), None)
    assert sorted(first.entries()) == ["one", "two"]


def test_an_unchanged_file_is_not_parsed_again(tmp_path: Path) -> None:
    models = UserModels(tmp_path)
    models.put("mine", web(), None)
    assert models.entries() is models.entries()


def test_a_changed_source_is_kept_and_unknown_ids_change_nothing(tmp_path: Path) -> None:
    models = UserModels(tmp_path)
    models.put("mine", web(), "text")
    models.note("mine", web("z.gguf"))
    models.note("absent", web("z.gguf"))
    models.drop("absent")
    entry = models.entries()["mine"]
    assert (entry.source, entry.task, list(models.entries())) == (web("z.gguf"), "text", ["mine"])


TORN = [
    "",
    "{",
    "[]",
    "null",
    "{}",
    '{"models": []}',
    '{"models": 1}',
    '{"models": {"m": {}}}',
    '{"models": {"m": null}}',
    '{"models": {"m": {"source": {}}}}',
    '{"models": {"m": {"source": {"kind": "https", "url": "https://a.example/x.gguf", "extra": 1}}}}',
    '{"models": {"m": {"source": {"kind": "path", "path": "/x.gguf"}, "task": "dance"}}}',
    "\ufeff\x00",
]


@pytest.mark.parametrize("content", TORN)
def test_a_damaged_file_is_an_error_with_its_name_and_is_not_overwritten(tmp_path: Path, content: str) -> None:
    models = UserModels(tmp_path)
    models.file.write_text(content, encoding="utf-8")
    with pytest.raises(Configuration, match="is damaged") as caught:
        models.entries()
    assert str(models.file) in caught.value.detail
    assert "delete it" in caught.value.remedy
    assert models.file.read_text(encoding="utf-8") == content


@pytest.mark.parametrize("content", ["{", "[]", '{"models": 1}'])
def test_nothing_is_added_to_a_damaged_file(tmp_path: Path, content: str) -> None:
    models = UserModels(tmp_path)
    models.file.write_text(content)
    with pytest.raises(Configuration):
        models.put("mine", web(), None)
    assert models.file.read_text() == content


def test_a_corrected_file_is_read_again(tmp_path: Path) -> None:
    models = UserModels(tmp_path)
    models.file.write_text("{")
    with pytest.raises(Configuration):
        models.entries()
    models.file.write_text(json.dumps({"models": {"mine": {"source": {"kind": "path", "path": "/x.gguf"}}}}))
    assert models.entries()["mine"].target == Path("/x.gguf")


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    UserModels(tmp_path).put("mine", web(), None)

    def forbid(*_args: Any, **_options: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("backend.models.user_models.read_text", forbid)
    with pytest.raises(Configuration, match="cannot be read: Permission denied"):
        UserModels(tmp_path).entries()


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    models = UserModels(tmp_path)
    models.put("mine", web(), None)
    assert models.file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_keeps_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    models = UserModels(tmp_path)
    models.put("mine", web(), None)
    before = models.file.read_bytes()

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os if call == "fsync" else Path, call, full)
        with pytest.raises(DiskFull, match="cannot be written"):
            models.put("other", web(), None)
    assert models.file.read_bytes() == before
    models.put("other", web(), None)
    assert sorted(models.entries()) == ["mine", "other"]


def test_a_locked_file_is_waited_for_and_then_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, now_s = UserModels(tmp_path), [0.0]

    def pass_time(seconds: float) -> None:
        now_s[0] += 1.0 + seconds

    monkeypatch.setattr("backend.models.user_models.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("backend.models.user_models.time.sleep", pass_time)
    (tmp_path / NAME).mkdir()
    lock = lock_for(tmp_path / NAME, models.file.name)
    assert lock.acquire()
    with pytest.raises(Configuration, match="Another program has locked"):
        models.put("mine", web(), None)
    assert now_s[0] > 3
    lock.release()
    models.put("mine", web(), None)
    assert list(models.entries()) == ["mine"]


PLACES = [
    ("https://models.example/Big Model.GGUF", "mine.gguf", "Big Model"),
    ("https://models.example/x-00001-of-00003.gguf", "mine-00001-of-00003.gguf", "x-00001-of-00003"),
    ("hf:maker/model/deep/x.gguf", ".hub/mine.gguf", "x"),
    ("hf:maker/model", ".hub/mine", "model"),
]


@pytest.mark.parametrize(("text", "place", "name"), PLACES)
def test_the_place_of_a_download_follows_from_the_id_and_the_kind(
    tmp_path: Path, text: str, place: str, name: str
) -> None:
    source = parse(text)
    assert source
    entry = UserModels(tmp_path).put("mine", source, "text")
    assert (entry.target.relative_to(tmp_path).as_posix(), entry.name, entry.task) == (place, name, "text")
