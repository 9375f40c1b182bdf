"""The files of a loaded model: which are listed, what identifies them, and a change while they are loaded."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.child import model_files
from backend.child.model_files import CHANGED, LISTED, SAMPLED, WHOLE, OpenedFiles
from backend.child.programs import run
from backend.common.errors import ModelBroken, ModelLoadFailed
from backend.engines import LoadRequest
from tests import tiny_genai

GGUF = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"


def stamp_of(path: Path) -> Any:
    """Return the stamp of a model."""
    return OpenedFiles(path).describe(5.0)[1]


def test_a_small_file_is_hashed_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    os.utime(file, (1_700_000_000, 1_700_000_000.25))
    stamp = stamp_of(file)
    assert stamp.digest == WHOLE + hashlib.sha256(b"weights").hexdigest()
    assert (stamp.bytes, stamp.modified_at) == (7, "2023-11-14T22:13:20.250Z")


def test_a_large_file_is_hashed_in_parts_of_its_whole_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WHOLE_BYTES", 1000), ("ENDS_BYTES", 100), ("SAMPLE_BYTES", 10), ("SAMPLES", 5)):
        monkeypatch.setattr(model_files, name, value)
    content = bytearray(os.urandom(2000))
    file = tmp_path / "m.gguf"
    seen = set()
    for place in (None, 0, 99, 100, 1001, 1890, 1899, 1999):  # each sample's edges, and nothing changed at first
        if place is not None:
            content[place] ^= 1
        file.write_bytes(content)
        digest = stamp_of(file).digest
        assert digest.startswith(SAMPLED)
        seen.add(digest)
    file.write_bytes(content + b"1")
    assert len({*seen, stamp_of(file).digest}) == 9, "each of these changes is seen"


@pytest.mark.parametrize("name", ["config.json", "shard-2.safetensors", "unet/model.safetensors"])
def test_a_folder_is_identified_by_all_of_its_files(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pipeline"
    for each in ("config.json", "shard-2.safetensors", "unet/model.safetensors", ".cache/x", "__pycache__/y.pyc"):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_text("one")
    files, stamp = OpenedFiles(folder).describe(5.0)
    assert [Path(file.path).name for file in files] == ["config.json", "shard-2.safetensors", "model.safetensors"]
    assert stamp and stamp.bytes == 9 and stamp.digest and stamp.digest.startswith(LISTED)
    (folder / name).write_text("two")
    assert stamp_of(folder).digest != stamp.digest
    (folder / name).write_text("one")
    assert stamp_of(folder).digest == stamp.digest


def test_all_parts_of_a_split_model_are_listed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(b"%d" % number)
    files, _ = OpenedFiles(tmp_path / "m-00001-of-00003.gguf").describe(5.0)
    assert [Path(file.path).name[:7] for file in files] == ["m-00001", "m-00002", "m-00003"]


def test_the_external_data_of_a_graph_is_listed(tmp_path: Path) -> None:
    graph = tmp_path / "g.onnx"
    graph.write_bytes(tiny_genai.graph(external="weights.bin"))
    (tmp_path / "weights.bin").write_bytes(b"1234")
    files, _ = OpenedFiles(graph, [tmp_path / "absent.so"]).describe(5.0)
    assert {Path(file.path).name for file in files} == {"g.onnx", "weights.bin"}


def test_what_is_not_the_file_that_was_opened_gets_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    known = OpenedFiles(file).describe(5.0)[0][0]
    file.write_bytes(b"three")
    assert model_files.digest_of(known) is None


class Engine:
    """An engine that changes a file while it loads."""

    def __init__(self, change: Any, error: Exception | None) -> None:
        self._change, self._error = change, error

    def load(self, request: LoadRequest) -> Any:
        self._change(Path(request.model_path))
        if self._error:
            raise self._error
        return SimpleNamespace(placement=None)


def renamed(path: Path) -> None:
    """Put another file with the same size and time in the place of a file."""
    other, facts = path.with_suffix(".new"), path.stat()
    shutil.copy(path, other)
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


def loaded(monkeypatch: pytest.MonkeyPatch, path: Path, change: Any, error: Exception | None = None) -> Any:
    monkeypatch.setattr(run, "load_engine", lambda name: Engine(change, error))
    return run._load_unchanged("llama.cpp", LoadRequest("cpu", str(path), 64, 1))


@pytest.mark.parametrize("error", [None, ModelLoadFailed("Half of it.", "Retry.")], ids=["loaded", "failed"])
@pytest.mark.parametrize(
    "change", [renamed, lambda path: path.write_bytes(b"x"), Path.unlink], ids=["rename", "write", "delete"]
)
def test_a_file_that_is_replaced_while_it_is_loaded_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, error: Exception | None
) -> None:
    file = tmp_path / "m.gguf"
    shutil.copy(GGUF, file)
    with pytest.raises(ModelBroken, match="m.gguf was replaced, changed or deleted while it was loaded") as caught:
        loaded(monkeypatch, file, change, error)
    assert caught.value.extra == {CHANGED: str(file)}


def test_an_error_of_an_unchanged_file_is_the_engines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelLoadFailed, match="Half of it"):
        loaded(monkeypatch, GGUF, lambda path: None, ModelLoadFailed("Half of it.", "Retry."))
