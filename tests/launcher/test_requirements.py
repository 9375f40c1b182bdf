"""Every package of requirements.txt has a wheel on each system that README names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LLAMA_ON_WINDOWS = "llama-cpp-py-sync"
ENGINES = {"onnxruntime", "onnxruntime-genai", "xllamacpp"}
ON_WINDOWS = ENGINES - {"xllamacpp"}


def resolved(requirements: Path, platform: str, python: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--no-python-downloads"]  # it would try to fetch that Python, which the resolution does not need
    command += ["--only-binary", ":all:", "--python-platform", platform, "--python-version", python, str(requirements)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("platform", "python", "engines"),
    [
        ("aarch64-manylinux_2_28", "3.14", ENGINES),
        ("x86_64-pc-windows-msvc", "3.11", {*ON_WINDOWS, LLAMA_ON_WINDOWS}),
        ("aarch64-pc-windows-msvc", "3.12", ON_WINDOWS),
        ("aarch64-apple-darwin", "3.12", ENGINES),
        ("x86_64-apple-darwin", "3.13", ENGINES),
    ],
)
def test_wheels_for(platform: str, python: str, engines: set[str]) -> None:
    done = resolved(ROOT / "requirements.txt", platform, python)
    assert done.returncode == 0, done.stderr
    names = {line.split("==")[0] for line in done.stdout.splitlines()}
    assert names & {*ENGINES, LLAMA_ON_WINDOWS} == engines


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(
    ("system", "machine"),
    [("linux", "x86_64"), ("linux", "aarch64"), ("win32", "AMD64"), ("win32", "ARM64"), ("darwin", "arm64")]
    + [("darwin", "x86_64")],
)
def test_the_versions_of_constraints_txt_satisfy_the_requirements(system: str, machine: str, python: str) -> None:
    here = {"sys_platform": system, "platform_machine": machine, "python_version": python}
    pins = [pin for pin in _parsed("constraints.txt") if not pin.marker or pin.marker.evaluate(here)]
    assert len(pins) == len({pin.name for pin in pins}), "two versions of one package"
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    for requirement in _parsed("requirements.txt"):
        version = versions.get(canonicalize_name(requirement.name))
        if version and (not requirement.marker or requirement.marker.evaluate(here)):
            assert requirement.specifier.contains(version), requirement
    assert {"fastapi", "uvicorn", "pydantic", "numpy", "xllamacpp"} <= set(versions)


def _parsed(name: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def test_the_check_can_fail(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("xllamacpp\n")
    assert resolved(requirements, "aarch64-pc-windows-msvc", "3.12").returncode != 0
