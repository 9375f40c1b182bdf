"""The packages that a child reads from a real environment, which has only metadata and a few files."""

from __future__ import annotations

import asyncio
import sys
import venv
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import pytest

from backend.cli.doctor.facts import RuntimeFacts, TorchBuild
from backend.cli.doctor.runtimes import runtime_facts

# The heads of real files: torch 2.13.0 for Linux from PyTorch's CPU index, 2.13.0+rocm10.0.0 for Windows, 1.13.
VERSION_FILES = {
    "annotated": (
        "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']\n"
        "__version__ = '2.13.0+cpu'\ndebug = False\ncuda: Optional[str] = None\ngit_version = 'abc'\n"
        "hip: Optional[str] = None\nrocm: Optional[str] = None\nxpu: Optional[str] = None\n",
        TorchBuild("2.13.0+cpu"),
    ),
    "hip": (
        "__version__ = '2.13.0+rocm10.0.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.15.26333'\n"
        "rocm: Optional[str] = '10.0.0'\nxpu: Optional[str] = None\n",
        TorchBuild("2.13.0+rocm10.0.0", hip="7.15.26333"),
    ),
    "old": (
        "__version__ = '1.13.1+cu117'\ndebug = False\ncuda = '11.7'\nhip = None\n",
        TorchBuild("1.13.1+cu117", "11.7"),
    ),
    "nonsense": ("\x00\x01 what is this\n", None),
}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A new virtual environment whose folder has a blank and an accent; gives its folder of packages."""
    folder = tmp_path / "my énv"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def asked(packages: Path) -> RuntimeFacts:
    """What the child in that environment says."""
    (facts,) = asyncio.run(runtime_facts({"own": str(packages.parents[2] / "bin" / "python")}))
    return facts


def install(packages: Path, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()) -> None:
    """What pip leaves of a wheel: its files, and a dist-info that lists them."""
    info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{info.name}/METADATA")))
    for file, text in files.items():
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        (packages / file).write_text(text)


def flavour(packages: Path, name: str, version: str, *libraries: str) -> None:
    """A flavour of ONNX Runtime, as far as its files matter here."""
    built = f"package_name = '{name}'\n__version__ = '{version}'\n"
    files = {
        "onnxruntime/__init__.py": "raise SystemExit('imported')\n",
        "onnxruntime/capi/build_and_package_info.py": built,
    }
    install(packages, name, version, {**files, **{f"onnxruntime/capi/{library}": "" for library in libraries}})


def test_two_flavours_and_who_overwrote_whom(environment: Path) -> None:
    flavour(environment, "onnxruntime", "1.32.0")
    flavour(environment, "onnxruntime-gpu", "1.31.1", "libonnxruntime_providers_cuda.so")
    install(environment, "onnxruntime-ep-webgpu", "0.4.0", {"onnxruntime_ep_webgpu/__init__.py": ""})
    for other in ("numpyro", "torch-geometric", "pytorch-lightning", "pipdeptree"):
        install(environment, other, "1.0", {})
    facts = asked(environment)
    assert facts.trouble is None and facts.interpreter and facts.interpreter.venv
    assert [(one.name, one.version, one.missing_files) for one in facts.shared["onnxruntime"]] == [
        ("onnxruntime", "1.32.0", 0),
        ("onnxruntime-gpu", "1.31.1", 0),
    ]
    assert facts.on_disk["onnxruntime"].name == "onnxruntime-gpu"
    assert facts.packages == {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1", "onnxruntime-ep-webgpu": "0.4.0"}


def test_files_that_went_with_the_other_flavour_are_counted(environment: Path) -> None:
    flavour(environment, "onnxruntime", "1.32.0", "a.so", "b.so")
    for file in ("__init__.py", "capi/a.so"):
        (environment / "onnxruntime" / file).unlink()
    (only,) = asked(environment).shared["onnxruntime"]
    assert only.missing_files == 2


@pytest.mark.parametrize("kind", VERSION_FILES)
def test_torch_says_what_it_was_built_for_without_being_imported(environment: Path, kind: str) -> None:
    text, build = VERSION_FILES[kind]
    files = {"torch/__init__.py": "raise SystemExit('imported')\n", "torch/version.py": text}
    install(environment, "torch", "2.13.0", files)
    facts = asked(environment)
    assert (facts.trouble, facts.torch) == (None, build)


def test_pins_that_are_not_kept_and_what_pip_left(environment: Path) -> None:
    install(environment, "torch", "2.13.0+cpu", {})
    pins = ("torch==2.4.1", "torchvision (==0.19.1)", "numpy>=1.2", "triton==9; sys_platform == 'beos'")
    install(environment, "torch-directml", "0.2.5.dev240914", {}, pins)
    install(environment, "onnxruntime-genai", "0.18.0", {}, ("torch==2.13.0",))
    (environment / "~nnxruntime").mkdir()
    facts = asked(environment)
    assert [(one.needs, one.found) for one in facts.unmet] == [
        ("torch==2.4.1", "2.13.0+cpu"),
        ("torchvision==0.19.1", None),
    ]
    assert facts.leftovers == ["~nnxruntime"]


def test_damaged_metadata_hides_nothing_else(environment: Path) -> None:
    flavour(environment, "onnxruntime", "1.32.0")
    (environment / "broken-1.0.dist-info").mkdir()
    (environment / "torch-2.0.dist-info").mkdir()
    (environment / "torch-2.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00")
    assert asked(environment).packages == {"onnxruntime": "1.32.0"}


def test_our_own_environment_is_read_as_it_is() -> None:
    (facts,) = asyncio.run(runtime_facts({"base": sys.executable}))
    assert facts.packages["onnxruntime"] == metadata.version("onnxruntime")
    assert facts.on_disk["onnxruntime"].version == metadata.version("onnxruntime")
    assert facts.interpreter and facts.interpreter.version == ".".join(map(str, sys.version_info[:3]))


def interpreter(code: str) -> Callable[[Path], str]:
    """A program that stands where an interpreter should."""

    def make(folder: Path) -> str:
        file = folder / "python"
        file.write_text(f"#!{sys.executable} -S\n{code}\n")
        file.chmod(0o755)
        return str(file)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: str(folder / "none"), "No such file"),
        (lambda folder: str(folder), "Permission denied"),
        (interpreter("import sys; sys.exit(9009 % 256)"), "exited with code 49"),
        (interpreter("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), "SIGSEGV"),
        (interpreter("print('Python was not found; run without arguments to install it')"), "invalid frame"),
        (interpreter("import time; time.sleep(600)"), "no answer within 0.5 s"),
    ],
    ids=["absent", "folder", "exits", "crashes", "prints", "hangs"],
)
def test_what_is_no_interpreter_is_said_within_the_limit(
    tmp_path: Path, make: Callable[[Path], str], words: str
) -> None:
    (broken,) = asyncio.run(runtime_facts({"own": make(tmp_path)}, limit_s=0.5 if "0.5" in words else 15))
    assert broken.trouble and words in broken.trouble and broken.packages == {}


def test_one_that_fails_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    broken, base = asyncio.run(runtime_facts({"own": str(tmp_path / "none"), "base": sys.executable}))
    assert (broken.name, broken.trouble) == ("own", "No such file or directory")
    assert base.trouble is None and base.packages
