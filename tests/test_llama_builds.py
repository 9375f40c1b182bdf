"""Builds of llama.cpp: which files belong to one, which build an environment has, and why one does not load."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.common.config.settings import Settings
from backend.common.config.settings.schema import RuntimeRules, Storage
from backend.devices._mechanisms import llama_builds
from backend.devices._mechanisms.llama_builds import build_in, find_build
from backend.runtimes.user_environments import user_pythons

CYLLAMA = (
    *("libggml-8bdbc6d9.so.0.27.0", "libggml-base-18a2acd8.so.0.27.0", "libggml-cpu-3db4a1e2.so"),
    *("libggml-cuda-7c0b4d3a.so", "libllama-e4014eb7.so.0.7.0", "libmtmd-c605f2b5.so.0.7.0"),
)
CYLLAMA_WINDOWS = (
    *("ggml-base.dll", "ggml-cpu.dll", "ggml-vulkan.dll", "ggml.dll", "llama.dll", "mtmd.dll", "msvcp140.dll"),
    "vcomp140-f96f3a14d88d8846f31f3ab38a490304.dll",
)
ARCHIVE = (
    *("libggml.so", "libggml.so.0", "libggml.so.0.27.0", "libggml-base.so", "libggml-cpu-haswell.so"),
    *("libggml-cpu-x64.so", "libggml-hip.so", "libggml-rpc.so", "libllama.so", "libllama.so.0.0.11549", "libmtmd.so"),
    "llama-server",
)
MAC = ("libggml.dylib", "libggml-base.0.27.0.dylib", "libggml-metal.dylib", "libggml-blas.dylib", "libllama.dylib")


def folder_with(place: Path, names: tuple[str, ...]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        (place / name).write_bytes(b"")
    return place


def installed(site: Path, distribution: str, names: tuple[str, ...], extra: str = "") -> None:
    """Install a package of empty files in a folder of packages."""
    package = distribution.replace("-", "_")
    folder_with(site / f"{package}.libs", names)
    facts = folder_with(site / f"{package}-0.7.0.dist-info", ())
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.7.0\n")
    files = [f"{package}.libs/{name},," for name in names]
    (facts / "RECORD").write_text("\n".join(filter(None, [*files, extra])))
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of packages on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path


@pytest.mark.parametrize(
    ("names", "cards", "version"),
    [
        (CYLLAMA, ("cuda",), "0.7.0"),
        (CYLLAMA_WINDOWS, ("vulkan",), "unknown"),
        (ARCHIVE, ("hip",), "unknown"),
        (MAC, ("metal",), "unknown"),
    ],
    ids=["cyllama", "windows", "archive", "mac"],
)
def test_libraries_are_known_by_their_names(
    tmp_path: Path, names: tuple[str, ...], cards: tuple[str, ...], version: str
) -> None:
    build = build_in(folder_with(tmp_path / "lib", names))
    assert build and (build.cards, build.version, build.folder) == (cards, version, tmp_path / "lib")
    assert {"llama", "ggml", "ggml-base"} <= set(build.files)
    assert not [stem for stem in build.files if stem.startswith(("msvcp", "vcomp", "llama-server"))]


def test_a_release_archive_is_found_by_its_upper_folder(tmp_path: Path) -> None:
    folder_with(tmp_path / "build" / "bin", ARCHIVE)
    build = build_in(tmp_path)
    assert build and build.folder == tmp_path / "build" / "bin" and build.files["ggml"].name == "libggml.so"
    assert build_in(tmp_path / "build" / "nothing") is None


def test_the_version_is_in_the_name_that_a_link_leads_to(tmp_path: Path) -> None:
    folder_with(tmp_path, ("libllama.so.0.0.11549", "libggml.so"))
    (tmp_path / "libllama.so").symlink_to("libllama.so.0.0.11549")
    build = build_in(tmp_path)
    assert build and build.version == "0.0.11549"


def test_a_package_with_cards_comes_before_one_without(site: Path) -> None:
    assert find_build() is None
    installed(site, "xllamacpp", (), "xllamacpp/xllamacpp.abi3.so,,")
    folder_with(site / "xllamacpp", ("xllamacpp.abi3.so",))
    first = find_build()
    assert (first is None) == (sys.platform == "win32")
    assert first is None or (first.name, first.cards) == ("xllamacpp", None)
    installed(site, "cyllama-cuda12", CYLLAMA)
    installed(site, "not-a-build", CYLLAMA)
    best = find_build()
    assert best and (best.name, best.version, best.cards) == ("cyllama-cuda12", "0.7.0", ("cuda",))


def test_windows_has_a_build_whose_library_exports_llama_h(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """xllamacpp's module exports nothing there."""
    installed(site, "xllamacpp", ("xllamacpp.pyd",))
    installed(site, "llama-cpp-py-sync", ("ggml-base.dll", "ggml-cpu.dll", "ggml-rpc.dll", "ggml.dll", "llama.dll"))
    monkeypatch.setattr(sys, "platform", "win32")
    build = find_build()
    assert build and (build.name, build.cards) == ("llama-cpp-py-sync", ())


def test_the_user_s_folder_comes_first(site: Path, tmp_path: Path) -> None:
    installed(site, "cyllama-cuda12", CYLLAMA)
    own = folder_with(tmp_path / "own", ARCHIVE)
    folder_with(Path(sys.prefix), ())
    Path(sys.prefix, llama_builds.LIBRARIES_FILE).write_text(f"{own}\n")
    build = find_build()
    assert build and (build.name, build.cards) == ("own", ("hip",))
    for name in ("libllama.so", "libllama.so.0.0.11549"):
        (own / name).unlink()
    assert find_build() is None, "no other build is taken in its place"


def test_a_folder_of_libraries_in_the_settings_is_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder_with(tmp_path / "own", ARCHIVE)
    rules = {"llama-rocm": RuntimeRules(libraries=own), "torch": RuntimeRules(python=Path("/x/python"))}
    settings = Settings(storage=Storage(data_dir=tmp_path / "data"), runtimes=rules)
    pythons = user_pythons(settings)
    assert user_pythons(settings) == pythons and pythons["torch"] == str(Path("/x/python"))
    code = "import jinja2, sys; print(sys.prefix)"
    run = subprocess.run([pythons["llama-rocm"], "-I", "-c", code], capture_output=True, text=True, check=True)
    monkeypatch.setattr(sys, "prefix", run.stdout.strip())
    build = find_build()
    assert build and build.folder == own


def test_a_distribution_with_corrupt_metadata_is_passed_over(site: Path) -> None:
    folder_with(site / "broken-1.dist-info", ("METADATA",))
    installed(site, "cyllama-rocm", CYLLAMA, ",,,,")
    installed(site, "cyllama-vulkan", CYLLAMA)
    build = find_build()
    assert build and build.name == "cyllama-vulkan"


class Loader:
    """The system's loader: opens a library once those that it needs are open."""

    def __init__(self, needs: dict[str, list[str]], scores: dict[str, int] | None = None) -> None:
        self.needs, self.scores = needs, scores or {}
        self.opened: list[str] = []

    def __call__(self, path: str) -> Any:
        name = Path(path).name
        for needed in self.needs.get(name, []):
            if needed not in self.opened:
                raise OSError(f"{needed}: cannot open shared object file: No such file or directory")
        self.opened.append(name)
        return Library(name, self)


class Library:
    """A library of the stand-in loader: with functions of a registry that is empty at first."""

    def __init__(self, name: str, loader: Loader) -> None:
        if name.startswith("libggml.") or name.startswith("libggml-8"):
            self.ggml_backend_reg_count = Function(lambda: 0)
            self.ggml_log_set = Function(lambda log, data: None)
            self.ggml_backend_load = Function(
                lambda path: loader.opened.append("registered " + Path(path.decode()).name)
            )
        if name in loader.scores:
            self.ggml_backend_score = lambda: loader.scores[name]


class Function:
    """A function of a library, with the attributes of ctypes."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.argtypes, self.restype = (), None

    def __call__(self, *arguments: Any) -> Any:
        return self.work(*arguments)


def load(folder: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch, cards: bool = True) -> Any:
    monkeypatch.setattr(ctypes, "CDLL", loader)
    monkeypatch.setattr(llama_builds, "_preload", loader)
    build = build_in(folder)
    assert build
    return build.load(cards)


def test_libraries_of_packages_are_opened_before_the_backend_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = {name: tmp_path / name for name in ("libcublas.so.12", "libcublasLt.so.12", "libcudart.so.12")}
    monkeypatch.setattr(llama_builds, "_packaged", lambda: packaged)
    needs = {
        "libggml-cuda-7c0b4d3a.so": ["libcudart.so.12", "libcublas.so.12"],
        "libcublas.so.12": ["libcublasLt.so.12"],
    }
    loader = Loader(needs)
    libraries = load(folder_with(tmp_path / "a", CYLLAMA), loader, monkeypatch)
    assert libraries.faults == {}
    order = [name for name in loader.opened if name in (*packaged, "libggml-cuda-7c0b4d3a.so")]
    assert order == ["libcudart.so.12", "libcublasLt.so.12", "libcublas.so.12", "libggml-cuda-7c0b4d3a.so"]
    assert [name for name in loader.opened if name.startswith("registered")] == [
        "registered libggml-cpu-3db4a1e2.so",
        "registered libggml-cuda-7c0b4d3a.so",
    ]


def test_a_backend_without_its_driver_leaves_the_processor_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader({"libggml-cuda-7c0b4d3a.so": ["libcuda.so.1"]})
    libraries = load(folder_with(tmp_path / "b", CYLLAMA), loader, monkeypatch)
    assert libraries.faults == {"cuda": "libcuda.so.1: cannot open shared object file: No such file or directory"}
    assert "registered libggml-cpu-3db4a1e2.so" in loader.opened


def test_without_cards_no_backend_of_a_card_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader({})
    load(folder_with(tmp_path / "c", CYLLAMA), loader, monkeypatch, cards=False)
    assert not [name for name in loader.opened if "cuda" in name]


@pytest.mark.parametrize(("scores", "chosen"), [((5, 9), "libggml-cpu-x64.so"), ((9, 5), "libggml-cpu-haswell.so")])
def test_the_best_build_for_the_processor_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: tuple[int, int], chosen: str
) -> None:
    loader = Loader({}, dict(zip(("libggml-cpu-haswell.so", "libggml-cpu-x64.so"), scores, strict=True)))
    load(folder_with(tmp_path / str(scores), ARCHIVE), loader, monkeypatch, cards=False)
    assert [name for name in loader.opened if name.startswith("registered")] == [f"registered {chosen}"]


def test_a_build_for_another_processor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader({}, {"libggml-cpu-3db4a1e2.so": 0})
    with pytest.raises(OSError, match="built for a processor with other instructions"):
        load(folder_with(tmp_path / "d", CYLLAMA), loader, monkeypatch)


@pytest.mark.skipif(sys.platform == "win32", reason="xllamacpp's module exports nothing there")
def test_this_environment_s_build_loads() -> None:
    build = find_build()
    assert build and build.load() is build.load()
    libraries = build.load()
    for exports, name in ((libraries.llama, "llama_decode"), (libraries.ggml, "ggml_backend_dev_count")):
        assert getattr(exports, name) is getattr(exports, name)
    with pytest.raises(AttributeError, match="do not export nothing_at_all"):
        _ = libraries.ggml.nothing_at_all
