"""Each finding on machines from public reports, and no finding on healthy ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from backend.cli.doctor.facts import Facts, Flavour, Interpreter, ServerFacts, Unmet
from backend.cli.doctor.finding import Finding
from backend.cli.doctor.findings import examine
from backend.common.hardware.checks import Check
from backend.common.types import Hardware, Model
from tests.doctor.samples import (
    CPU,
    FEDORA,
    LINUX,
    MAC,
    PYTHON,
    WINDOWS,
    WSL2,
    amd,
    flavours,
    intel,
    kfd_refused,
    machine,
    nvidia,
    runtime,
    storage,
    torch,
    unavailable,
)


@dataclass(frozen=True)
class Sick:
    """A machine, where it was reported, and what the doctor must say: code, level, words of detail and steps."""

    source: str
    facts: Facts
    code: str
    level: str
    words: tuple[str, ...]


MISSING = "cannot open shared object file: No such file or directory"
APPS = r"C:\Users\ada\AppData\Local\Microsoft\WindowsApps"
STORE = rf"{APPS}\python.exe"

SICK = (
    # Flavours of ONNX Runtime
    Sick(
        "microsoft/onnxruntime#7748",
        machine(runtimes=[flavours(("onnxruntime", "1.7.0"), ("onnxruntime-gpu", "1.7.0"))]),
        "two-flavours",
        "broken",
        (
            "onnxruntime 1.7.0 and onnxruntime-gpu 1.7.0",
            "uninstall -y onnxruntime onnxruntime-gpu",
            'install "onnxruntime-gpu==1.7.0"',
            PYTHON.path,
        ),
    ),
    Sick(
        "microsoft/onnxruntime#26996",
        machine(
            runtimes=[
                flavours(("onnxruntime", "1.23.2"), ("onnxruntime-gpu", "1.23.2"), on_disk=("onnxruntime", "1.23.2"))
            ]
        ),
        "two-flavours",
        "broken",
        ("are onnxruntime 1.23.2", 'install "onnxruntime==1.23.2"'),
    ),
    Sick(
        "microsoft/onnxruntime#21233",
        machine(
            WINDOWS, runtimes=[flavours(("onnxruntime", "1.18.1"), ("onnxruntime-training-cpu", "1.18.1"), name="base")]
        ),
        "two-flavours",
        "broken",
        ("onnxruntime-training-cpu 1.18.1", "launch.cmd"),
    ),
    Sick(
        "s9roll7/animatediff-cli-prompt-travel#206, with a plugin beside",
        machine(
            runtimes=[
                replace(
                    flavours(("onnxruntime", "1.16.1"), ("onnxruntime-gpu", "1.16.1")),
                    packages={"onnxruntime-ep-webgpu": "0.4.0"},
                )
            ]
        ),
        "two-flavours",
        "broken",
        ("onnxruntime-ep-webgpu 0.4.0 may stay",),
    ),
    Sick(
        "kijai/ComfyUI-SUPIR#170: cannot import name 'InferenceSession' (unknown location)",
        machine(runtimes=[runtime("own", shared={"onnxruntime": [Flavour("onnxruntime-gpu", "1.20.1", 212)]})]),
        "missing-files",
        "broken",
        ("onnxruntime-gpu 1.20.1", "212 of its files", 'install "onnxruntime-gpu==1.20.1"'),
    ),
    Sick(
        "microsoft/DirectML#712: torch-directml pins torch 2.4.1",
        machine(runtimes=[runtime(unmet=[Unmet("torch-directml", "torch==2.4.1", "2.13.0")])]),
        "unmet-pin",
        "broken",
        ("torch-directml requires torch==2.4.1", "2.13.0 is installed", 'install "torch==2.4.1"'),
    ),
    Sick(
        "what pip leaves on Windows where a file is in use",
        machine(WINDOWS, runtimes=[runtime(leftovers=["~nnxruntime"])]),
        "leftovers",
        "advice",
        ("~nnxruntime", "delete these folders"),
    ),
    # Builds of torch
    Sick(
        "pytorch/pytorch#49325: 1.7.1+cpu",
        machine(WINDOWS, nvidia("31.0.15.8157"), runtimes=[torch("1.7.1+cpu")]),
        "torch-build",
        "broken",
        ("RTX 3050", "1.7.1+cpu", "CPU build", "whl/cu130"),
    ),
    Sick(
        "the same on a driver that cannot serve CUDA 13",
        machine(LINUX, nvidia("nvidia 535.183.01"), runtimes=[torch("2.13.0+cpu")]),
        "torch-build",
        "broken",
        ("CPU build", "whl/cu126"),
    ),
    Sick(
        "ace-step/ACE-Step-1.5#294: a 9070 XT and a torch for NVIDIA",
        machine(LINUX, amd("AMD Radeon RX 9070 XT"), runtimes=[torch("2.10.0+cu128", cuda="12.8")]),
        "torch-build",
        "broken",
        ("RX 9070 XT", "NVIDIA's CUDA 12.8"),
    ),
    Sick(
        "a HIP build beside an NVIDIA card",
        machine(LINUX, nvidia("nvidia 580.95"), runtimes=[torch("2.13.0+rocm10.0.0", hip="7.15.26333")]),
        "torch-build",
        "broken",
        ("HIP 7.15.26333", "uses CUDA's names", "whl/cu130"),
    ),
    Sick(
        "an Arc card and a CPU build",
        machine(
            LINUX,
            intel(),
            runtimes=[torch("2.13.0+cpu")],
            devices=[
                replace(unavailable("vulkan:0", "It hung."), hardware_id=intel().id, state="broken", remedy="Restart."),
                replace(
                    unavailable("xpu:0", "-"), hardware_id=intel().id, state="installable", remedy="pip install XPU."
                ),
            ],
        ),
        "torch-build",
        "broken",
        ("Intel Arc A770", "pip install XPU."),
    ),
    # Driver and wheel
    Sick(
        "lllyasviel/Fooocus#1313: driver 470.86 (CUDA 11.4), found version 11040",
        machine(LINUX, nvidia("nvidia 470.86"), runtimes=[torch("2.1.0+cu121", cuda="12.1")]),
        "driver-too-old",
        "broken",
        ("CUDA 12.1", "525.60 or newer", "has 470.86", "driver 525 or newer"),
    ),
    Sick(
        "a driver of the 560 branch and PyPI's torch for CUDA 13",
        machine(LINUX, nvidia("nvidia 560.35.03"), runtimes=[torch("2.13.0+cu130", cuda="13.0")]),
        "driver-too-old",
        "broken",
        ("580.00 or newer", "has 560.35", "whl/cu126"),
    ),
    Sick(
        "pytorch/pytorch#100120 with Windows' own form of 516.25 and a wheel for CUDA 12",
        machine(WINDOWS, nvidia("31.0.15.1625"), runtimes=[torch("2.5.1+cu121", cuda="12.1")]),
        "driver-too-old",
        "broken",
        ("528.33 or newer", "has 516.25"),
    ),
    Sick(
        "a driver of unknown number whose libcuda serves CUDA 12.4",
        machine(
            LINUX,
            nvidia(None),
            checks=[Check("libcuda", "library load", "ok", "libcuda is /usr/lib/libcuda.so.550.54.14, for CUDA 12.4.")],
            runtimes=[torch("2.13.0+cu130", cuda="13.0")],
        ),
        "driver-too-old",
        "broken",
        ("which serves CUDA 12.4", "580.00 or newer"),
    ),
    # What the inventory checked
    Sick(
        "ROCm/ROCm-docker#116",
        machine(LINUX, amd(), checks=[kfd_refused()]),
        "node-refused",
        "broken",
        ("/dev/kfd", "group is render", "usermod -aG render"),
    ),
    Sick(
        "numba/numba#7104: the Linux driver inside WSL",
        machine(
            WSL2, checks=[Check("libcuda-shadowed", "library load", "problem", "libcuda is /usr/lib/x.so.1.", "Purge.")]
        ),
        "libcuda-shadowed",
        "broken",
        ("/usr/lib/x.so.1", "Purge."),
    ),
    Sick(
        "long paths",
        machine(
            WINDOWS, checks=[Check("long-paths-off", "settings", "note", "Long paths are off.", "Set-ItemProperty …")]
        ),
        "long-paths-off",
        "advice",
        ("Set-ItemProperty",),
    ),
    Sick(
        "a card without a driver",
        machine(
            LINUX, replace(nvidia(None), reason="No driver is in charge of it.", remedy="Install NVIDIA's driver.")
        ),
        "card-unusable",
        "broken",
        ("RTX 3050", "No driver is in charge", "Install NVIDIA's driver."),
    ),
    Sick(
        "R0rschach02 in ROCm/legacy-rocm-build#2232: groups of a session that began before",
        machine(
            replace(LINUX, groups=("ada", "video"), joined=("ada", "video", "render")), amd(), checks=[kfd_refused()]
        ),
        "group-not-in-session",
        "broken",
        ("group render now", "Log out and in again", "newgrp render"),
    ),
    Sick(
        "NVIDIA's guide: the WSL kernel of early Windows 10",
        machine(replace(WSL2, release="4.19.104-microsoft-standard")),
        "wsl-kernel-old",
        "broken",
        ("4.19.104", "wsl --update"),
    ),
    Sick(
        "NVIDIA's guide: a WSL kernel before 5.10.16",
        machine(replace(WSL2, release="5.4.72-microsoft-standard-WSL2")),
        "wsl-kernel-old",
        "advice",
        ("5.4.72",),
    ),
    # Libraries
    Sick(
        "apache/mxnet#13366",
        machine(LINUX, devices=[unavailable("onnx-webgpu:0", f"OSError: libgomp.so.1: {MISSING}.")]),
        "missing-library",
        "broken",
        ("libgomp.so.1", "sudo apt-get install -y libgomp1"),
    ),
    Sick(
        "Atinoda/text-generation-webui-docker#66",
        machine(
            FEDORA,
            devices=[unavailable("vulkan:0", f"error while loading shared libraries: libvulkan.so.1: {MISSING}")],
        ),
        "missing-library",
        "broken",
        ("libvulkan.so.1", "vulkan:0", "sudo dnf install -y vulkan-loader"),
    ),
    Sick(
        "abetlen/llama-cpp-python#1169",
        machine(LINUX, devices=[unavailable("cuda:0", f"libllama.so: libcuda.so.1: {MISSING}")]),
        "missing-library",
        "broken",
        ("libcuda.so.1", "NVIDIA's driver"),
    ),
    Sick(
        "torch-directml outside WSL",
        machine(LINUX, devices=[unavailable("directml:0", f"OSError: libd3d12.so: {MISSING}")]),
        "missing-library",
        "broken",
        ("libd3d12.so", "GPU driver of Windows"),
    ),
    Sick(
        "sandmmakers/BedLeveler5000#20",
        machine(
            LINUX, devices=[unavailable("vulkan:0", "/lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.35' not found")]
        ),
        "old-glibc",
        "broken",
        ("2.35", "newer release"),
    ),
    # Cards that are hidden
    Sick(
        "CUDA_VISIBLE_DEVICES set in a profile and forgotten",
        machine(LINUX, replace(nvidia("nvidia 580.95"), hidden_by=["CUDA_VISIBLE_DEVICES=-1 hides it from CUDA."])),
        "hidden",
        "advice",
        ("CUDA_VISIBLE_DEVICES=-1", "unset"),
    ),
    # Interpreters
    Sick(
        "rust-lang/rust#117069: the Store's placeholder",
        machine(
            WINDOWS, runtimes=[replace(runtime(python=STORE, interpreter=None), trouble="it exited with code 9009")]
        ),
        "no-interpreter",
        "broken",
        ("9009", "Microsoft Store's placeholder", "runtimes.torch.python"),
    ),
    Sick(
        "the Store's real Python",
        machine(
            WINDOWS,
            runtimes=[runtime(interpreter=replace(PYTHON, base=rf"{APPS}\PythonSoftwareFoundation.Python.3.12"))],
        ),
        "python-store",
        "advice",
        ("private copy of AppData",),
    ),
    Sick(
        "microsoft/DirectML#544: no matching distribution",
        machine(WINDOWS, runtimes=[runtime(interpreter=replace(PYTHON, bits=32))]),
        "python-32-bit",
        "broken",
        ("32-bit", "64-bit Python"),
    ),
    Sick(
        "an old environment",
        machine(runtimes=[runtime(interpreter=replace(PYTHON, version="3.8.10"))]),
        "python-too-old",
        "broken",
        ("3.8.10", "3.10 is the oldest"),
    ),
    # The data folder
    Sick(
        "microsoft/WSL#10729",
        machine(WSL2, storage=storage(data_dir="/mnt/c/Users/ada/touchstone/data", filesystem="9p")),
        "remote-folder",
        "advice",
        ("Windows drive (9p)", "cp -r '/mnt/c/Users/ada/touchstone/data'"),
    ),
    Sick(
        "a home on a file server",
        machine(storage=storage(filesystem="nfs4")),
        "remote-folder",
        "advice",
        ("network file system (nfs4)", "TOUCHSTONE_DATA_DIR"),
    ),
    Sick(
        "a mapped drive",
        machine(WINDOWS, storage=storage(filesystem="remote")),
        "remote-folder",
        "advice",
        ("network",),
    ),
    Sick(
        "little room",
        machine(storage=storage(free_bytes=1_400_000_000)),
        "disk-space",
        "advice",
        ("1,400 MB", "gigabytes"),
    ),
    Sick("no room", machine(storage=storage(free_bytes=9_000_000)), "disk-space", "stops", ("9 MB", "disk_full")),
    Sick(
        "a folder of root's", machine(storage=storage(writable=False)), "data-folder", "stops", ("cannot be written",)
    ),
    Sick(
        "a history after a power cut",
        machine(storage=storage(history="file is not a database")),
        "history",
        "broken",
        ("file is not a database", "moves the damaged history"),
    ),
    Sick(
        "a server that was stopped by Ctrl-Z",
        machine(storage=storage(held=True, holder={"pid": 4711, "url": "http://127.0.0.1:8000", "elsewhere": False})),
        "held",
        "broken",
        ("process 4711", "http://127.0.0.1:8000", "Stop that process"),
    ),
    Sick(
        "a server in Windows, seen from WSL",
        machine(WSL2, storage=storage(held=True, holder={"pid": 9, "elsewhere": True})),
        "held",
        "broken",
        ("other side of WSL",),
    ),
    # The server
    Sick(
        "lllyasviel/Fooocus#1926",
        machine(server=ServerFacts(port_state="taken", free_port=8001)),
        "port-taken",
        "advice",
        ("port 8000", "--port 8001"),
    ),
    Sick(
        "localsend/localsend#2884",
        machine(WINDOWS, server=ServerFacts(port=53317, port_state="forbidden", free_port=53320)),
        "port-reserved",
        "advice",
        ("53317", "range that Windows reserves", "excludedportrange", "--port 53320"),
    ),
    Sick(
        "port 80 as a user",
        machine(server=ServerFacts(port=80, port_state="forbidden", free_port=8000)),
        "port-reserved",
        "advice",
        ("require root", "--port 8000"),
    ),
    Sick(
        "a server with another token",
        machine(server=ServerFacts(trouble="The running server did not tell its devices.")),
        "devices-unknown",
        "broken",
        ("did not tell",),
    ),
    # Models
    Sick(
        "Jeffser/Alpaca#1032: a download that broke off",
        machine(
            models=[
                Model(
                    "m", "M", "text", [], "broken", reason="m.gguf has 5 bytes instead of 9.", remedy="Fetch it again."
                )
            ]
        ),
        "model-broken",
        "broken",
        ("5 bytes instead of 9", "Fetch it again."),
    ),
    Sick(
        "before the first download",
        machine(
            models=[
                Model(
                    "m", "M", "text", [], "downloadable", reason="M is not here yet.", remedy="Fetch it.", default=True
                )
            ]
        ),
        "model-missing",
        "advice",
        ("M is not here yet", "models fetch-default"),
    ),
)

WELL: dict[str, tuple[Facts, tuple[str, ...]]] = {
    "one flavour": (machine(runtimes=[flavours(("onnxruntime-gpu", "1.23.2"))]), ("two-flavours", "missing-files")),
    "a plugin beside a flavour": (
        machine(runtimes=[replace(flavours(("onnxruntime", "1.32.0")), packages={"onnxruntime-ep-webgpu": "0.4.0"})]),
        ("two-flavours",),
    ),
    "flavours in environments of their own": (
        machine(runtimes=[flavours(("onnxruntime", "1.32.0")), flavours(("onnxruntime-gpu", "1.31.1"), name="gpu")]),
        ("two-flavours",),
    ),
    "CUDA build and NVIDIA": (
        machine(LINUX, nvidia("nvidia 580.95.05"), runtimes=[torch("2.13.0+cu130", cuda="13.0")]),
        ("torch-build", "driver-too-old"),
    ),
    "a newer minor of the driver's own major version": (
        machine(LINUX, nvidia("nvidia 525.85.12"), runtimes=[torch("2.9.1+cu128", cuda="12.8")]),
        ("driver-too-old",),
    ),
    "Windows' form of 536.23": (
        machine(WINDOWS, nvidia("31.0.15.3623"), runtimes=[torch("2.5.1+cu121", cuda="12.1")]),
        ("driver-too-old",),
    ),
    "HIP build and AMD": (machine(LINUX, amd(), runtimes=[torch("2.13.0", hip="7.15.26333")]), ("torch-build",)),
    "AMD and NVIDIA, a build for one of them": (
        machine(LINUX, amd(), nvidia("nvidia 580.95"), runtimes=[torch("2.13.0", cuda="13.0")]),
        ("torch-build",),
    ),
    "a driver of a lower number whose libcuda serves more (forward compatibility)": (
        machine(
            LINUX,
            nvidia("nvidia 535.183.01"),
            checks=[Check("libcuda", "library load", "ok", "libcuda is /opt/compat/libcuda.so.1, for CUDA 13.0.")],
            runtimes=[torch("2.13.0+cu130", cuda="13.0")],
        ),
        ("driver-too-old",),
    ),
    "checks that are well": (machine(checks=[Check("node", "permission", "ok", "/dev/kfd may be opened.")]), ("node",)),
    "a card that a check has told of": (
        machine(LINUX, replace(amd(), reason=kfd_refused().detail), checks=[kfd_refused()]),
        ("card-unusable",),
    ),
    "a screen of a server's management": (
        machine(LINUX, replace(amd(), kind="emulated", reason="It computes nothing.")),
        ("card-unusable",),
    ),
    "a new group that no node asks for": (
        machine(replace(LINUX, groups=("ada",), joined=("ada", "docker")), amd(), checks=[kfd_refused()]),
        ("group-not-in-session",),
    ),
    "a session that has the group, and a node whose mode refuses it all the same": (
        machine(replace(LINUX, groups=("render",), joined=("render",)), amd(), checks=[kfd_refused()]),
        ("group-not-in-session",),
    ),
    "a user outside the group": (
        machine(replace(LINUX, groups=("ada",), joined=("ada",)), amd(), checks=[kfd_refused()]),
        ("group-not-in-session",),
    ),
    "a WSL kernel of today": (machine(WSL2), ("wsl-kernel-old",)),
    "an old kernel that is not WSL's": (machine(replace(LINUX, release="4.19.0-16-amd64")), ("wsl-kernel-old",)),
    "CPU build without a card": (machine(runtimes=[torch("2.13.0+cpu")]), ("torch-build",)),
    "torch on a Mac names no build": (
        machine(MAC, Hardware("gpu:0", "Apple M3", "Apple", "integrated"), runtimes=[torch("2.13.0")]),
        ("torch-build",),
    ),
    "a driver whose version is not known": (
        machine(LINUX, nvidia(None), runtimes=[torch("2.13.0+cu130", cuda="13.0")]),
        ("driver-too-old",),
    ),
    "another reason": (
        machine(devices=[unavailable("cuda:0", "The runtime is not installed.")]),
        ("missing-library", "old-glibc"),
    ),
    "an ordinary interpreter": (machine(runtimes=[runtime()]), ("no-interpreter", "python-32-bit", "python-store")),
    "a local disk with room": (
        machine(WSL2, storage=storage()),
        ("remote-folder", "disk-space", "data-folder", "history", "held"),
    ),
    "a folder held by the server that answers": (
        machine(storage=storage(held=True), server=ServerFacts(url="http://127.0.0.1:8000")),
        ("held", "port-taken", "devices-unknown"),
    ),
    "the port of our own server": (
        machine(server=ServerFacts(url="http://127.0.0.1:8000", port_state="taken")),
        ("port-taken",),
    ),
    "a free port": (machine(server=ServerFacts(port_state="free")), ("port-taken", "port-reserved")),
    "models that are here, and one that nobody asked for": (
        machine(models=[Model("a", "A", "text", [], "ready"), Model("b", "B", "text", [], "downloadable", reason="-")]),
        ("model-broken", "model-missing"),
    ),
    "nothing is known": (machine(LINUX), ("hidden", "torch-build", "two-flavours", "disk-space", "port-taken")),
}


def words_of(finding: Finding) -> str:
    return " ".join([finding.detail, *(f"{step.do} {step.command or ''}" for step in finding.steps)])


@pytest.mark.parametrize("sick", SICK, ids=lambda sick: f"{sick.code}: {sick.source}")
def test_what_was_reported_is_found_with_its_remedy(sick: Sick) -> None:
    found = [finding for finding in examine(sick.facts) if finding.code == sick.code]
    assert len(found) == 1, examine(sick.facts)
    assert found[0].level == sick.level and found[0].steps
    for word in sick.words:
        assert word in words_of(found[0]), words_of(found[0])


@pytest.mark.parametrize("case", WELL)
def test_what_is_well_is_not_complained_of(case: str) -> None:
    facts, codes = WELL[case]
    assert [finding for finding in examine(facts) if finding.code in codes] == []


def test_a_machine_without_a_ready_device_has_one_first_thing_to_do() -> None:
    broken = replace(CPU, state="broken", reason="It failed.", remedy="Repair the processor's runtime.")
    (found,) = [
        one for one in examine(Facts(LINUX, devices=[unavailable("cuda:0", "x"), broken])) if one.level == "stops"
    ]
    assert found.code == "no-device" and [step.do for step in found.steps] == ["Repair the processor's runtime."]
    for devices in ([], [CPU, broken], [replace(CPU, state="probing")]):
        assert not [one for one in examine(Facts(LINUX, devices=devices)) if one.code == "no-device"]


def test_the_gravest_stands_first() -> None:
    facts = machine(
        runtimes=[flavours(("onnxruntime", "1.7.0"), ("onnxruntime-gpu", "1.7.0"))],
        storage=storage(free_bytes=1_000, filesystem="nfs"),
        server=ServerFacts(port_state="taken"),
    )
    levels = [finding.level for finding in examine(facts)]
    assert levels == ["stops", "broken", "advice", "advice"]


def test_under_wsl_a_newer_driver_is_a_step_for_windows() -> None:
    facts = machine(WSL2, nvidia("NVIDIA 470.86"), runtimes=[torch("2.1.0", cuda="12.1")])
    finding = next(one for one in examine(facts) if one.code == "driver-too-old")
    assert [(step.where, "driver" in step.do) for step in finding.steps] == [("windows", True)]


def test_nothing_is_repaired_by_hand_in_a_runtime_that_touchstone_keeps() -> None:
    two = replace(flavours(("onnxruntime", "1.23.2"), ("onnxruntime-gpu", "1.23.2"), name="cuda"), kept=True)
    pinned = replace(runtime("openvino", unmet=[Unmet("a", "b==1", None)]), kept=True)
    found = examine(machine(runtimes=[two, pinned]))
    assert {finding.code for finding in found} == {"two-flavours", "unmet-pin"}
    for finding in found:
        name = finding.subject.removeprefix("runtime:")
        commands = [step.command for step in finding.steps]
        assert commands == [f"python -m backend runtimes {verb} {name}" for verb in ("remove", "install")]


def test_a_kept_torch_for_another_card_is_no_fault_and_an_old_driver_asks_for_no_pip() -> None:
    kept = replace(torch("2.13.0+cpu"), kept=True)
    assert examine(machine(LINUX, nvidia("nvidia 580.95.05"), runtimes=[kept])) == []
    newer = replace(torch("2.13.0+cu130", cuda="13.0"), kept=True)
    (finding,) = examine(machine(LINUX, nvidia("nvidia 535.183.01"), runtimes=[newer]))
    assert [step.command for step in finding.steps] == [None]


def test_a_problem_of_several_cards_is_told_once_and_on_the_side_that_can_mend_it() -> None:
    absent = Check("dxg-absent", "driver", "problem", "/dev/dxg is absent.", "wsl --update", "windows")
    found = [one for one in examine(machine(WSL2, checks=[absent, absent])) if one.code == "dxg-absent"]
    assert [[(step.where, step.do) for step in one.steps] for one in found] == [[("windows", "wsl --update")]]


def test_a_function_that_cannot_judge_keeps_no_other_from_speaking() -> None:
    broken = runtime(interpreter=Interpreter("what?", 64, "/p", "/usr", True, "linux"))
    found = examine(machine(runtimes=[broken], storage=storage(writable=False)))
    assert {finding.code for finding in found} >= {"examination-failed", "data-folder"}
