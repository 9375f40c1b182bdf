"""Foreign library paths: removed for the own environments' children, apart from folders that give a driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.child import handle, library_paths
from backend.child.library_paths import is_own, remove_foreign
from backend.common.installation import ROOT


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the folders again, on a system with a C++ library."""
    library_paths._kept_entries.cache_clear()
    monkeypatch.setattr(library_paths, "_system_has_runtime", lambda: True)


def folder(home: Path, name: str, *libraries: str) -> str:
    """Return a folder with these files."""
    (home / name).mkdir()
    for library in libraries:
        (home / name / library).touch()
    return str(home / name)


def test_folders_that_replace_libraries_of_packages_are_removed(tmp_path: Path) -> None:
    old = folder(tmp_path, "conda", "libstdc++.so.6", "libz.so.1")
    toolkit = folder(tmp_path, "cuda", "libcudart.so.12", "libOpenCL.so.1")
    openmp = folder(tmp_path, "openmp", "libgomp.so.1")
    driver = folder(tmp_path, "driver", "libcuda.so.1", "libstdc++.so.6")
    tensorrt = folder(tmp_path, "tensorrt", "libnvinfer.so.10", "libcudnn.so.9")
    rocm = folder(tmp_path, "rocm", "libamdhip64.so.6")
    own = folder(tmp_path, "mine", "libmine.so")
    entries = [old, driver, toolkit, "/does/not/exist", openmp, tensorrt, rocm, own]
    kept = remove_foreign({"LD_LIBRARY_PATH": os.pathsep.join(entries), "PATH": "/bin"})
    assert kept == {"LD_LIBRARY_PATH": os.pathsep.join([driver, tensorrt, rocm, own]), "PATH": "/bin"}


def test_a_variable_without_entries_is_removed_and_what_a_user_preloads_on_purpose_stays(tmp_path: Path) -> None:
    old = folder(tmp_path, "conda", "libstdc++.so.6")
    preloaded = "/usr/lib/libjemalloc.so.2:/usr/lib/libgomp.so.1"
    given = {
        "LD_LIBRARY_PATH": old,
        "LD_PRELOAD": f"/opt/libstdc++.so.6:{preloaded}",
        "PYTHONHOME": "/x",
        "PYTHONPATH": "y",
    }
    assert remove_foreign(given) == {"LD_PRELOAD": preloaded}


def test_where_only_the_variable_gives_the_c_library_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_paths, "_system_has_runtime", lambda: False)
    given = {"LD_LIBRARY_PATH": folder(tmp_path, "gcc", "libstdc++.so.6")}
    assert remove_foreign(given) == given


def test_only_interpreters_that_touchstone_made_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch" / "1a2b.lock").mkdir(parents=True)
    (tmp_path / "torch" / "1a2b.lock" / "pylock.toml").touch()
    assert is_own(str(tmp_path / "torch" / "1a2b" / "bin" / "python"))
    assert not is_own("/opt/conda/bin/python") and not is_own(sys.executable)
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert is_own(sys.executable)


@pytest.mark.parametrize("own", [True, False])
def test_a_user_s_interpreter_gets_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    old = folder(tmp_path, "conda", "libstdc++.so.6")
    monkeypatch.setenv("LD_LIBRARY_PATH", old)
    monkeypatch.setattr(handle, "is_own", lambda python: own)
    started: list[dict[str, str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: started.append(env))
    handle.spawn("/some/python", ["probe"])
    assert ("LD_LIBRARY_PATH" in started[0]) is not own
