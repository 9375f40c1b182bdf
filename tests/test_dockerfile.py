"""The Dockerfile passes a linter and has the documented properties. `tests/slow/docker.sh` builds it."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from backend.common.config.settings import load_settings
from backend.runtimes.__main__ import install
from backend.runtimes.recipes import recipes
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
    assert instructions("ARG") == ["BASE_IMAGE=python:3.11-slim-bookworm", "RUNTIME=base", "CHIP="]
    assert instructions("FROM") == ["${BASE_IMAGE} AS environment", "environment AS runtime", "${BASE_IMAGE}"]
    assert "python3 -m venv .venv" in TEXT


def test_a_runtime_in_the_image_is_installed_as_locked_and_named_in_the_configuration(tmp_path: Path) -> None:
    assert "pip install" not in TEXT.partition("AS runtime")[2], "pip prefers the higher version of another build"
    assert '-m backend.runtimes "$RUNTIME" /opt/runtime ${CHIP:+"$CHIP"}' in TEXT
    with pytest.raises(ValueError, match=r"depends on the card's chip: add it as a third argument, such as gfx1100"):
        asyncio.run(install("rocm", tmp_path))
    with pytest.raises(ValueError, match="is not a runtime for this platform. Available: cuda, "):
        asyncio.run(install("base", tmp_path))
    change = re.search(r'sed -i "(s\|.+\|)" config.yaml', TEXT)
    assert change
    script = ["sed", change[1].replace("$RUNTIME", "cuda").replace("$python", "/opt/x"), str(ROOT / "config.yaml")]
    (tmp_path / "config.yaml").write_text(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert load_settings({"config": str(tmp_path / "config.yaml")}).runtimes["cuda"].python


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
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["ports"] == ["127.0.0.1:8000:8000"]
        assert service["volumes"] == ["data:/data"]
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]


def test_compose_gives_each_kind_of_card_what_it_needs() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert {name for name, one in services.items() if not one.get("profiles")} == {"touchstone"}
    (card,) = services["touchstone-cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert (card["driver"], card["capabilities"]) == ("nvidia", ["gpu"])
    amd = services["touchstone-rocm"]
    assert amd["devices"] == ["/dev/kfd", "/dev/dri"] and len(amd["group_add"]) == 2
    for service in services.values():
        arguments = {} if service["build"] == "." else service["build"]["args"]
        assert arguments.keys() <= {"RUNTIME", "CHIP"} and arguments.get("RUNTIME", "base") in {"base", *recipes()}
