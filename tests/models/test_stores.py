"""Models of other programs: found in their stores, used in place, and never copied, changed or deleted."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from backend.child.model_files import OpenedFiles
from backend.cli.commands.models import importable_table
from backend.common.config.settings import load_settings
from backend.common.errors import ModelBroken, UnknownModel
from backend.common.types import ImportableModel
from backend.models import Catalogue
from backend.models.registration import add, remove
from backend.models.sources import STORES, parse
from backend.models.stores import PROGRAMS, list_stores, locations
from backend.models.stores.folder_walk import walk
from tests.test_gguf import TEXT, gguf, part
from tests.test_safetensors import CONFIG, WEIGHTS

LAYER = "application/vnd.ollama.image."
MODEL = gguf([("general.architecture", TEXT, "llama"), ("general.name", TEXT, "x")])
LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def build(tmp_path: Path, home: Path) -> Callable[..., Catalogue]:
    """Return a function that opens the catalogue as a new process does."""

    def make(**environ: str) -> Catalogue:
        (tmp_path / "data" / "models").mkdir(parents=True, exist_ok=True)
        return Catalogue(load_settings({"storage.data_dir": str(tmp_path / "data")}, {}, tmp_path), environ=environ)

    return make


class Ollama:
    """A store as Ollama writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def blob(self, content: bytes, mark: str = "-") -> str:
        digest = hashlib.sha256(content).hexdigest()
        put(self.folder / "blobs" / f"sha256{mark}{digest}", content)
        return f"sha256:{digest}"

    def add(self, name: str, layers: dict[str, bytes], config: Any = None, mark: str = "-") -> Path:
        """Add a manifest at `HOST/NAMESPACE/MODEL/TAG`; return the file of its first layer."""
        listed = [{"mediaType": LAYER + kind, "digest": self.blob(data, mark)} for kind, data in layers.items()]
        digest = self.blob(json.dumps(config or {}).encode())
        manifest = {"schemaVersion": 2, "config": {"digest": digest}, "layers": listed}
        put(self.folder / "manifests" / name, json.dumps(manifest).encode())
        return self.folder / "blobs" / listed[0]["digest"].replace(":", mark)


@pytest.fixture
def ollama(home: Path) -> Ollama:
    return Ollama(home / ".ollama" / "models")


def put(path: Path, data: bytes = MODEL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_checkpoint(folder: Path) -> Path:
    put(folder / "config.json", json.dumps(CONFIG).encode())
    put(folder / "tokenizer.json", b"{}")
    return put(folder / "model.safetensors", WEIGHTS).parent


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def importable(catalogue: Catalogue) -> dict[str, ImportableModel]:
    return {model.source: model for model in catalogue.importable().models}


def test_sources_name_the_programs() -> None:
    assert tuple(PROGRAMS) == STORES
    assert str(parse("OLLAMA:llama3.2")) == "ollama:llama3.2"
    assert parse("C:\\models\\x.gguf") is None


def test_a_model_of_ollama_is_listed_added_used_and_left_alone(
    build: Callable[..., Catalogue], ollama: Ollama, home: Path
) -> None:
    layers = {"model": MODEL, "params": b'{"stop": ["<|end|>"], "temperature": 0.7}', "template": b"{{ .Prompt }}"}
    file = ollama.add(f"{LIBRARY}/llama3.2/3b", layers)
    ollama.add(f"{LIBRARY}/llama3.2/latest", {"model": MODEL})
    ollama.add("registry.ollama.ai/someone/tuned/v1.5", {"model": MODEL, "system": b"Be brief."})
    ollama.add("hf.co/bartowski/Llama-3.2-GGUF/Q4_K_M", {"model": MODEL})
    before = contents(home)
    catalogue = build()
    found = importable(catalogue)
    names = ("hf.co/bartowski/Llama-3.2-GGUF:Q4_K_M", "llama3.2:3b", "llama3.2:latest", "someone/tuned:v1.5")
    assert set(found) == {f"ollama:{name}" for name in names}
    assert found["ollama:llama3.2:3b"] == ImportableModel(
        "ollama:llama3.2:3b",
        "ollama",
        "ready",
        path=str(file),
        bytes=len(MODEL),
        task="text",
        engines=["llama.cpp", "transformers"],
        architecture="llama",
        notices=[
            "Not used of what Ollama stores for it: template. The chat template in the file is used.",
            "Ollama's parameters for it are not applied (stop ['<|end|>'], temperature 0.7): send them as options.",
        ],
    )
    entry = add(catalogue, "ollama:llama3.2:3b").entry
    assert (entry.id, entry.target, entry.name) == ("llama3.2-3b", file, "llama3.2:3b")
    model = catalogue.model(catalogue.resolve(entry.id))
    assert (model.state, model.source, len(model.notices)) == ("ready", "ollama:llama3.2:3b", 2)
    assert importable(catalogue)["ollama:llama3.2:3b"].id == "llama3.2-3b"
    assert not add(catalogue, "ollama:llama3.2:3b").new and not add(catalogue, "ollama:library/llama3.2:3b").new
    opened, stamp = OpenedFiles(entry.target).describe(10)
    assert [each.path for each in opened] == [str(file)] and stamp and stamp.bytes == len(MODEL)
    remove(catalogue, entry.id)
    assert "llama3.2-3b" not in catalogue.entries() and contents(home) == before


@pytest.mark.parametrize(
    ("asked", "id_"),
    [
        ("ollama:llama3.2", "llama3.2"),
        ("ollama:llama3.2:latest", "llama3.2"),
        ("ollama:registry.ollama.ai/library/llama3.2:latest", "llama3.2"),
        ("ollama:hf.co/bartowski/Llama-3.2-GGUF:Q4_K_M", "llama-3.2-gguf-q4_k_m"),
    ],
)
def test_names_are_spelt_as_ollama_allows(
    build: Callable[..., Catalogue], ollama: Ollama, asked: str, id_: str
) -> None:
    ollama.add(f"{LIBRARY}/llama3.2/latest", {"model": MODEL})
    ollama.add("hf.co/bartowski/Llama-3.2-GGUF/Q4_K_M", {"model": MODEL})
    assert add(build(), asked).entry.id == id_


@pytest.mark.parametrize(
    "asked", ["ollama:../../etc/passwd", "ollama:a/b/c/d", "ollama:", "ollama:a:../b", "ollama:nope"]
)
def test_a_name_that_is_not_there_is_unknown(build: Callable[..., Catalogue], ollama: Ollama, asked: str) -> None:
    ollama.add(f"{LIBRARY}/llama3.2/latest", {"model": MODEL})
    with pytest.raises(UnknownModel) as caught:
        add(build(), asked)
    assert caught.value.extra["valid"] == ["ollama:llama3.2:latest"]


def test_what_ollama_holds_but_cannot_be_used_has_a_reason(build: Callable[..., Catalogue], ollama: Ollama) -> None:
    ollama.add(f"{LIBRARY}/cloud/latest", {"license": b"x"}, {"remote_host": "https://ollama.example"})
    ollama.add(f"{LIBRARY}/mlx/latest", {"tensor": b"x", "json": b"{}"})
    ollama.add(f"{LIBRARY}/tuned/latest", {"model": MODEL, "adapter": b"GGUFa"})
    ollama.add(f"{LIBRARY}/empty/latest", {"license": b"x"})
    ollama.add(f"{LIBRARY}/gone/latest", {"model": MODEL + bytes(32)}).unlink()
    ollama.add(f"{LIBRARY}/cut/latest", {"model": MODEL[:-40]})
    put(ollama.folder / "manifests" / LIBRARY / "odd" / "latest", b"{")
    catalogue = build()
    reasons = {source: model.reason for source, model in importable(catalogue).items()}
    expected = {
        "cloud": "runs on Ollama's servers",
        "mlx": "single tensors",
        "tuned": "is a model with a LoRA adapter",
        "empty": "has no model in its manifest",
        "gone": "is incomplete",
        "cut": "is truncated",
        "odd": "is not a manifest of Ollama",
    }
    assert set(reasons) == {f"ollama:{name}:latest" for name in expected}
    for name, reason in expected.items():
        assert reason in str(reasons[f"ollama:{name}:latest"])
        with pytest.raises(ModelBroken, match=reason):
            add(catalogue, f"ollama:{name}")
    assert not catalogue.added.entries()


def test_an_update_by_ollama_is_followed_and_a_removal_is_stated(
    build: Callable[..., Catalogue], ollama: Ollama
) -> None:
    name = f"{LIBRARY}/x/latest"
    old = ollama.add(name, {"model": MODEL})
    catalogue = build()
    id_ = add(catalogue, "ollama:x").entry.id
    new = ollama.add(name, {"model": gguf([("general.architecture", TEXT, "qwen2")])})
    old.unlink()
    entry = catalogue.resolve(id_)
    assert entry.target == new and catalogue.model(entry).details["architecture"] == "qwen2"
    (ollama.folder / "manifests" / name).unlink()
    assert catalogue.resolve(id_).target == old
    model = catalogue.model(catalogue.resolve(id_))
    assert model.state == "broken" and "ollama:x:latest was removed or moved by its program" in str(model.reason)
    assert model.remedy and f"models remove {id_}" in model.remedy
    remove(catalogue, id_)


def test_blobs_with_a_colon_and_further_layers_are_read(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    store = Ollama(tmp_path / "big disk")
    layers = {"model": MODEL, "projector": b"GGUFp"}
    file = store.add(f"{LIBRARY}/llava/7b", layers, mark="-" if sys.platform == "win32" else ":")
    source = add(build(OLLAMA_MODELS=str(tmp_path / "big disk")), "ollama:llava:7b").entry.source
    assert source and source.path == str(file) and source.projector
    assert Path(source.projector).read_bytes() == b"GGUFp"


def test_models_of_lm_studio_are_named_by_publisher_and_repository(build: Callable[..., Catalogue], home: Path) -> None:
    root = home / ".lmstudio" / "models"
    file = put(root / "maker" / "Gemma-3-GGUF" / "gemma-3-Q4_K_M.gguf")
    projector = put(root / "maker" / "Gemma-3-GGUF" / "mmproj-F16.gguf", b"GGUF")
    for number in (0, 1):
        put(root / "maker" / "Big" / f"big-0000{number + 1}-of-00002.gguf", part(number, 2, first=number == 0))
    folder = put_checkpoint(root / "mlx" / "Llama")
    put(root / "too" / "deep" / "a" / "x.gguf")
    catalogue = build()
    found = importable(catalogue)
    assert set(found) == {
        "lmstudio:maker/Gemma-3-GGUF/gemma-3-Q4_K_M.gguf",
        "lmstudio:maker/Big/big-00001-of-00002.gguf",
        "lmstudio:mlx/Llama",
    }
    assert all(model.state == "ready" for model in found.values())
    source = add(catalogue, "lmstudio:maker/Gemma-3-GGUF").entry.source
    assert source and (source.path, source.projector) == (str(file), str(projector))
    assert add(catalogue, "lmstudio:maker/Big/big.gguf").entry.id == "big-00001-of-00002"
    assert add(catalogue, "lmstudio:mlx/Llama").entry.target == folder
    file.unlink()
    model = catalogue.model(catalogue.resolve("gemma-3-q4_k_m"))
    assert model.state == "broken" and "was removed or moved by its program" in str(model.reason)


def test_the_pointer_of_lm_studio_names_another_home(home: Path, tmp_path: Path) -> None:
    put(home / ".lmstudio-home-pointer", str(tmp_path / "moved").encode() + b"\n")
    file = put(tmp_path / "moved" / "models" / "a" / "b" / "x.gguf")
    assert [model.path for model in list_stores({}, ("lmstudio",)).models] == [file]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_models_in_the_cache_of_hugging_face_are_those_of_the_main_snapshot(
    build: Callable[..., Catalogue], tmp_path: Path
) -> None:
    cache = tmp_path / "hub"
    commits = ("a" * 40, "b" * 40)
    tiny = cache / "models--maker--tiny-GGUF"
    for commit in commits:
        link = tiny / "snapshots" / commit / "tiny-Q8_0.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(put(tiny / "blobs" / commit))
    put(tiny / "refs" / "main", commits[0].encode())
    folder = put_checkpoint(cache / "models--maker--llama--tiny" / "snapshots" / commits[1])
    put(cache / "models--maker--whisper" / "snapshots" / commits[1] / "config.json", b"{}")
    put(cache / "datasets--maker--data" / "snapshots" / commits[1] / "x.gguf")
    catalogue = build(HF_HUB_CACHE=str(cache))
    assert {source: model.path for source, model in importable(catalogue).items()} == {
        "hf-cache:maker/tiny-GGUF/tiny-Q8_0.gguf": str(tiny / "snapshots" / commits[0] / "tiny-Q8_0.gguf"),
        "hf-cache:maker/llama--tiny": str(folder),
    }
    before = contents(cache)
    for source, id_ in (("hf-cache:maker/tiny-GGUF", "tiny-q8_0"), ("hf-cache:maker/llama--tiny", "llama--tiny")):
        assert add(catalogue, source).entry.id == id_
        remove(catalogue, id_)
    assert contents(cache) == before


def test_downloads_of_llama_cpp_are_found(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    file = put(tmp_path / "cache" / "ggml-org_tiny_tiny-Q8_0.gguf")
    put(tmp_path / "cache" / "ggml-org_tiny_tiny-Q8_0.gguf.json", b"{}")
    catalogue = build(LLAMA_CACHE=str(tmp_path / "cache"))
    assert list(importable(catalogue)) == ["llama.cpp:ggml-org_tiny_tiny-Q8_0.gguf"]
    assert add(catalogue, "llama.cpp:ggml-org_tiny_tiny-Q8_0.gguf").entry.target == file


SERVICES = ["/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models", "/var/lib/ollama/models"]


@pytest.mark.parametrize(
    ("find", "environ", "system", "expected"),
    [
        (locations.ollama_folders, {"OLLAMA_MODELS": "/big"}, "linux", ["/big"]),
        (locations.ollama_folders, {}, "darwin", ["HOME/.ollama/models"]),
        (locations.ollama_folders, {}, "win32", ["HOME/.ollama/models"]),
        (locations.ollama_folders, {}, "linux", ["HOME/.ollama/models", *SERVICES]),
        (locations.lm_studio_folders, {}, "linux", ["HOME/.lmstudio/models", "HOME/.cache/lm-studio/models"]),
        (locations.llama_cpp_folders, {"LLAMA_CACHE": "~/x"}, "linux", ["HOME/x"]),
        (locations.llama_cpp_folders, {"XDG_CACHE_HOME": "/c"}, "linux", ["/c/llama.cpp"]),
        (locations.llama_cpp_folders, {}, "linux", ["HOME/.cache/llama.cpp"]),
        (locations.llama_cpp_folders, {}, "darwin", ["HOME/Library/Caches/llama.cpp"]),
        (locations.llama_cpp_folders, {"LOCALAPPDATA": "/local"}, "win32", ["/local/llama.cpp"]),
    ],
)
def test_where_the_programs_keep_their_models(
    home: Path, find: Any, environ: dict[str, str], system: str, expected: list[str]
) -> None:
    assert find(environ, system) == [Path(path.replace("HOME", str(home))) for path in expected]


def test_in_wsl_the_folders_of_windows_are_searched(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "_WINDOWS_USERS", tmp_path / "Users")
    (tmp_path / "Users" / "eva").mkdir(parents=True)
    (tmp_path / "Users" / "Public").mkdir()
    expected = [home / ".ollama/models", tmp_path / "Users" / "eva" / ".ollama/models"]
    assert locations.ollama_folders({"WSL_DISTRO_NAME": "Ubuntu"}, "linux")[:2] == expected


def test_a_machine_without_other_programs_has_nothing_to_import(build: Callable[..., Catalogue]) -> None:
    found = build().importable()
    assert (found.models, found.stores, found.skipped) == ([], [], [])
    assert importable_table(asdict(found)).startswith("No models of Ollama")


def test_a_store_that_cannot_be_read_is_named(
    build: Callable[..., Catalogue], ollama: Ollama, monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama.add(f"{LIBRARY}/x/latest", {"model": MODEL})

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.glob", refuse)
    [store] = build().importable().stores
    assert (store.program, store.models) == ("ollama", 0)
    assert store.reason == f"{ollama.folder} cannot be read: Permission denied."


def test_the_table_has_a_line_for_each_model(build: Callable[..., Catalogue], ollama: Ollama) -> None:
    ollama.add(f"{LIBRARY}/x/latest", {"model": MODEL})
    ollama.add(f"{LIBRARY}/y/latest", {"license": b"x"})
    catalogue = build()
    lines = importable_table(asdict(catalogue.importable())).splitlines()
    assert lines[0].split() == ["SOURCE", "SIZE", "QUANTIZATION", "STATE"]
    assert lines[1].split() == ["ollama:x:latest", "0.0", "GB", "-", "ready"]
    assert lines[3:5] == ["    y:latest has no model in its manifest.", "    Download it again: ollama pull y:latest"]
    assert lines[5].endswith("It is used in place.")
    add(catalogue, "ollama:x")
    assert "added as x" in importable_table(asdict(catalogue.importable()))


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_walk_ends_whatever_the_links_are(tmp_path: Path) -> None:
    file = put(tmp_path / "a" / "b" / "x.gguf")
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    (tmp_path / "a" / "gone").symlink_to(tmp_path / "nowhere")
    put(tmp_path / "a" / ".hidden" / "y.gguf")
    put(tmp_path / "1" / "2" / "3" / "z.gguf")
    result = walk(tmp_path, lambda _: False, 2)
    assert [path for path in result.found if path.suffix] == [file]
    assert {path.name: why for path, why in result.skipped} == {
        "loop": "a link to a folder that is searched already",
        "3": "too many levels of folders",
    }
    assert walk(tmp_path, lambda _: False, 5, most_entries=3).skipped[-1][1] == (
        "more than 3 entries: the rest is not searched"
    )
