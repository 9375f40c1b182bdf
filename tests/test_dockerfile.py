"""The Dockerfile: a linter finds nothing, and its promises stand in it. `tests/slow/docker.sh` builds it for real."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.service import ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LINES = [line.strip() for line in TEXT.replace("\\\n", " ").splitlines() if line.strip() and line[0] != "#"]


def instructions(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.partition(" ")[0] == name]


def test_the_linter_finds_nothing() -> None:
    places = [str(Path(sys.executable).parent), None]
    hadolint = next((found for place in places if (found := shutil.which("hadolint", path=place))), None)
    if hadolint is None:
        pytest.skip("hadolint is not installed; it has no wheel for this system")
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_base_can_be_chosen_and_the_venv_needs_no_name_of_its_own() -> None:
    assert instructions("ARG") == ["BASE_IMAGE=python:3.11-slim-bookworm"]
    assert instructions("FROM") == ["${BASE_IMAGE} AS environment", "${BASE_IMAGE}"]
    assert "python3 -m venv .venv" in TEXT


def test_it_runs_as_nobody_in_particular_and_stops_when_asked() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert TEXT.rindex("USER 10001") > TEXT.rindex("RUN ")
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("VOLUME") == ["/data"]
    assert instructions("EXPOSE") == ["8000"]
    assert instructions("ENTRYPOINT") == ['["python", "-m", "backend"]']
    assert instructions("CMD") == ['["serve", "--container"]']


def test_the_health_check_is_a_program_that_compiles() -> None:
    (check,) = instructions("HEALTHCHECK")
    code = re.search(r'"-c",\s*"(.+)"\]$', check)
    assert code and "/api/health" in code[1]
    compile(code[1], "HEALTHCHECK", "exec")


def test_it_holds_no_secret() -> None:
    assert not re.search(r"(?i)(token|password|secret|api_?key)\s*=", TEXT)


def test_all_that_is_copied_passes_the_ignore_file() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_compose_publishes_to_this_machine_alone() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["touchstone"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["volumes"] == ["data:/data"]
    assert service["read_only"] is True
