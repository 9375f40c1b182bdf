"""The doctor's page by section, hostile texts on it, and the functions that read versions, vendors and ports."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli.doctor.facts import Facts, Interpreter, Platform, ServerFacts, TorchBuild
from backend.cli.doctor.finding import LEVELS, Finding
from backend.cli.doctor.findings import examine, functions
from backend.cli.doctor.findings.torch_builds import driver_version, served_cuda, vendor
from backend.cli.doctor.pip_commands import pip, recreate
from backend.cli.doctor.report import changed_settings, report, verdict
from backend.cli.doctor.runtimes import torch_build
from backend.cli.doctor.text_page import page
from backend.common.config.settings import Settings
from backend.common.config.settings.schema import Server
from backend.common.hardware.checks import Check
from backend.common.types import Device, Hardware, Model
from tests.doctor.samples import CPU, LINUX, MAC, PYTHON, WINDOWS, WSL2, machine, nvidia, runtime, storage, torch


def shown(facts: Facts, findings: list[Finding] | None = None, **more: Any) -> list[str]:
    """Return the lines of the page."""
    chosen = examine(facts) if findings is None else findings
    return page(report(facts, chosen, more, Settings(), {})).split("\n")


def line_with(lines: list[str], start: str) -> str:
    (line,) = [line for line in lines if line.startswith(start)]
    return line


def test_a_healthy_machine_has_no_findings_and_no_empty_section() -> None:
    lines = shown(machine(storage=storage()))
    assert "Findings: none." in lines
    assert lines[-1].startswith("Verdict: Only the CPU works")
    assert not [line for line in lines if line.startswith("Passed checks")]
    assert not [line for line in lines if line.startswith("What to do in")]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (ServerFacts(url="http://127.0.0.1:8000/"), "runs at http://127.0.0.1:8000/"),
        (ServerFacts(port_state="free"), "port 8000 of 127.0.0.1 is free"),
        (ServerFacts(port_state="taken", port=81), "port 81 of 127.0.0.1 is taken"),
        (ServerFacts(port_state="forbidden"), "is not permitted"),
        (ServerFacts(), "was not checked"),
    ],
)
def test_the_line_of_the_server(server: ServerFacts, words: str) -> None:
    assert words in line_with(shown(machine(server=server)), "Server")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exists": False}, "does not exist yet"),
        ({"filesystem": None}, "/srv/touchstone, 80.0 GB free"),
        ({"free_bytes": None}, "unknown free"),
    ],
)
def test_the_line_of_the_data_folder(facts: dict[str, Any], words: str) -> None:
    assert words in line_with(shown(machine(storage=storage(**facts))), "Data")


@pytest.mark.parametrize(
    ("platform", "words"),
    [(WSL2, "WSL 2"), (LINUX, "not WSL"), (replace(LINUX, container="docker"), "in a container (docker)")],
)
def test_the_line_of_the_system(platform: Platform, words: str) -> None:
    assert words in line_with(shown(machine(platform)), "System")


def test_under_wsl_steps_are_in_a_list_for_each_system_and_numbered_as_their_findings() -> None:
    old = replace(WSL2, release="5.4.0-microsoft-standard")
    facts = machine(old, storage=storage(writable=False))
    lines = shown(facts)
    numbers = {finding.code: number for number, finding in enumerate(examine(facts), 1)}
    windows = lines.index("What to do in Windows (1)")
    assert f"(finding {numbers['wsl-kernel-old']})" in lines[windows + 1]
    here = lines.index("What to do in this Linux (1)")
    assert f"(finding {numbers['data-folder']})" in lines[here + 1]
    assert not [line for line in lines if line.startswith("     →")]


def test_a_runtime_is_shown_with_its_build_or_its_trouble() -> None:
    lines = shown(
        machine(
            runtimes=[
                torch("2.13.0+cpu"),
                replace(torch("2.13.0", cuda="13.0"), name="gpu"),
                runtime("lost", interpreter=None, trouble="no such file", python="/lost"),
                runtime("empty"),
            ]
        )
    )
    assert "      torch 2.13.0+cpu was built for the processor" in lines
    assert "      torch 2.13.0 was built for cuda 13.0" in lines
    assert "  lost: /lost: no such file" in lines
    assert "      no relevant package" in lines


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.text(max_size=40))
def test_no_text_of_the_machine_can_break_a_line_or_steer_the_terminal(text: str) -> None:
    def lines_with(words: str) -> list[str]:
        device = Device("x:0", words, "x", "gpu", "broken", reason=words, remedy=words, note=words)
        model = Model("m", "M", "text", [], "broken", reason=words, remedy=words)
        card = Hardware("pci:1", words, None, "gpu", driver=words, reason=words)
        return shown(machine(LINUX, card, devices=[device], models=[model]), [])

    lines = lines_with(text)
    assert not [char for line in lines for char in line if unicodedata.category(char) in ("Cc", "Zl", "Zp")]
    assert len(lines) <= len(lines_with("plain"))


DEVICES = st.lists(
    st.builds(
        lambda number, kind, state: Device(f"d:{number}", "n", "d", kind, state),
        st.integers(0, 3),
        st.sampled_from(("cpu", "gpu", "emulated")),
        st.sampled_from(("ready", "broken", "unavailable", "quarantined")),
    ),
    max_size=5,
)
FINDINGS = st.lists(st.sampled_from(LEVELS).map(lambda level: Finding("c", level, "system", "s", "d")), max_size=4)


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(DEVICES, FINDINGS)
def test_the_exit_code_is_0_only_if_a_card_works_and_nothing_needs_a_fix(
    devices: list[Device], findings: list[Finding]
) -> None:
    code, sentence = verdict(Facts(LINUX, devices=devices), findings)
    ready = {device.kind for device in devices if device.state == "ready"}
    failing = any(device.state in ("broken", "quarantined") for device in devices)
    severe = {finding.level for finding in findings} & {"stops", "broken"}
    assert (code == 0) == ("gpu" in ready and not failing and not severe)
    assert (code == 1) or bool(ready)
    assert sentence.endswith(".")


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(st.permutations(range(4)))
def test_the_order_of_findings_depends_on_their_level_only(order: list[int]) -> None:
    runtimes = [torch("2.13.0+cpu"), runtime("b", trouble="gone", interpreter=None), runtime("c"), runtime("d")]
    facts = machine(LINUX, nvidia("580.1"), runtimes=[runtimes[place] for place in order])
    levels = [LEVELS.index(finding.level) for finding in examine(facts)]
    assert levels == sorted(levels)
    assert {finding.code for finding in examine(facts)} == {"torch-build", "no-interpreter"}


def test_each_function_is_silent_without_facts() -> None:
    for function in functions():
        assert list(function(Facts(LINUX))) == [], function.__name__


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("nvidia 535.183.01", (535, 183)),
        ("580.95", (580, 95)),
        ("31.0.15.3623", (536, 23)),
        ("32.0.15.8157", (581, 57)),
        ("30.0.14.0512", (405, 12)),
        ("nouveau", None),
        ("550", None),
        ("", None),
        (None, None),
    ],
)
def test_versions_of_drivers_are_read_in_both_spellings(text: str | None, version: tuple[int, int] | None) -> None:
    assert driver_version(text) == version


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (Hardware("x", "Card", None, "gpu", pci_ids="10DE:25a2"), "10de"),
        (Hardware("x", "NVIDIA T4", None, "gpu"), "10de"),
        (Hardware("x", "Radeon", "AMD", "gpu"), "1002"),
        (Hardware("x", "Intel Arc", None, "gpu"), "8086"),
        (Hardware("x", "Intelligent card", None, "gpu"), None),
        (Hardware("x", "Card", None, "gpu"), None),
    ],
)
def test_the_vendor_of_a_card_is_in_its_ids_or_its_name(card: Hardware, expected: str | None) -> None:
    assert vendor(card) == expected


def test_the_cuda_of_the_driver_is_that_of_the_check() -> None:
    def check(code: str, detail: str) -> Facts:
        return machine(checks=[Check(code, "driver", "ok", detail)])

    assert served_cuda(check("libcuda-loads", "The driver is for CUDA 12.8.")) == (12, 8)
    assert served_cuda(check("libcuda-loads", "The driver loads.")) is None
    assert served_cuda(check("other", "The driver is for CUDA 12.8.")) is None


def test_a_torch_that_serves_the_installed_driver_is_no_finding() -> None:
    served = Check("libcuda-loads", "driver", "ok", "The driver is for CUDA 12.4.")
    old, new = torch("2.1", cuda="12.1"), torch("2.13", cuda="13.0")
    for build, expected in ((old, []), (new, ["driver-too-old"])):
        facts = machine(LINUX, nvidia("nvidia 550.54"), checks=[served], runtimes=[build])
        assert [finding.code for finding in examine(facts)] == expected


@pytest.mark.parametrize(
    ("platform", "python", "command"),
    [
        (LINUX, "/v/bin/python", "/v/bin/python -m pip check"),
        (LINUX, "/my venv/bin/python", '"/my venv/bin/python" -m pip check'),
        (WINDOWS, r"C:\v\python.exe", r'& "C:\v\python.exe" -m pip check'),
    ],
)
def test_pip_is_run_by_the_interpreter_of_the_runtime(platform: Platform, python: str, command: str) -> None:
    assert pip(Facts(platform), runtime(python=python), "check") == command


def test_only_environments_that_touchstone_made_are_made_again() -> None:
    assert recreate(Facts(LINUX), runtime("mine")) == ()
    kept = recreate(Facts(LINUX), runtime("cuda", kept=True))
    assert [step.command.split()[-2] for step in kept if step.command] == ["remove", "install"]
    for platform, words in ((LINUX, "rm -rf .venv && "), (WINDOWS, "Remove-Item -Recurse -Force .venv; ")):
        (step,) = recreate(Facts(platform), runtime("base"))
        assert step.command and step.command.startswith(words)


@pytest.mark.parametrize(
    ("fields", "build"),
    [
        (None, None),
        ({}, None),
        ({"__version__": "2.1"}, TorchBuild("2.1")),
        ({"__version__": "2.1", "cuda": "12.1", "git_version": "x"}, TorchBuild("2.1", "12.1")),
        ({"cuda": None, "xpu": "2025"}, TorchBuild(None, xpu="2025")),
    ],
)
def test_older_version_files_lack_fields(fields: dict[str, Any] | None, build: TorchBuild | None) -> None:
    assert torch_build(fields) == build


INTERPRETERS = [
    (replace(PYTHON, bits=32), ["python-32-bit"]),
    (replace(PYTHON, version="3.9.18"), ["python-too-old"]),
    (replace(PYTHON, version="3.10.0"), []),
    (replace(PYTHON, base=r"C:\Program Files\WindowsApps\Python.3.12"), ["python-store"]),
    (replace(PYTHON, base="C:/Users/ada/WindowsApps/x"), ["python-store"]),
    (replace(PYTHON, base="/home/ada/windowsapps-backup"), []),
]


@pytest.mark.parametrize(("interpreter", "codes"), INTERPRETERS)
def test_interpreters_that_do_not_fit(interpreter: Interpreter, codes: list[str]) -> None:
    facts = machine(runtimes=[runtime(interpreter=interpreter)])
    assert [finding.code for finding in examine(facts)] == codes
    assert examine(machine(runtimes=[runtime("base", interpreter=interpreter)])) == []


@pytest.mark.parametrize(
    ("free_bytes", "level"),
    [(99_999_999, "stops"), (100_000_000, "advice"), (1_999_999_999, "advice"), (2_000_000_000, None), (None, None)],
)
def test_little_space_is_advice_and_none_stops_jobs(free_bytes: int | None, level: str | None) -> None:
    found = examine(machine(storage=storage(free_bytes=free_bytes)))
    assert [finding.level for finding in found] == ([level] if level else [])


@pytest.mark.parametrize(
    ("kind", "is_remote"),
    [("nfs4", True), ("fuse.sshfs", True), ("drvfs", True), ("cifs", True), ("ext4", False), ("fuse.ext4", False)],
)
def test_file_systems_that_are_remote(kind: str, is_remote: bool) -> None:
    for platform in (LINUX, WSL2, MAC):
        codes = [finding.code for finding in examine(machine(platform, storage=storage(filesystem=kind)))]
        assert codes == (["remote-folder"] if is_remote else [])


def test_a_changed_secret_is_listed_without_its_value() -> None:
    changed = changed_settings(Settings(server=Server(token="s" * 40, port=8123)))
    assert changed["server.port"] == 8123
    assert "s" * 40 not in str(changed)
    assert "server.token" in changed
    assert changed_settings(Settings()) == {}


def test_a_machine_without_devices_is_shown_as_broken() -> None:
    lines = shown(replace(machine(), devices=[]), [])
    assert "Devices (0)" in lines
    assert lines[-1] == "Verdict: Broken: no device works."
    assert verdict(Facts(LINUX, devices=[CPU]), [])[0] == 3
