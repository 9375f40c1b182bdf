"""Interpreters that do not start, and packages that fail at import: the remedy names what a person should do.

Each stack is one runtime of a machine with one NVIDIA card. The messages are real ones (tests/samples/messages.yaml).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

from backend.child.handle import Spawn, spawn
from backend.common.types import Device, Hardware
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from tests.faulty_stacks.cases.case import CARD
from tests.faulty_stacks.environments import make
from tests.faulty_stacks.stack import Stack

_CARD = Hardware("pci:0000:01:00.0", "NVIDIA GeForce RTX 4090", "NVIDIA", "gpu", 24 << 30, "nvidia 550.54")
_LIMIT_S = 12.0
_SET_PYTHON = r"`runtimes\.torch\.python` in config\.yaml"
Build = Callable[[Path], Path]
Check = Callable[[Path], Coroutine[Any, Any, None]]


async def judge(python: Path, limit_s: float = _LIMIT_S) -> tuple[Device, str | None]:
    """Return the card's device of the runtime `torch`, and the remedy of the runtime's problem."""

    async def survey(_: Spawn) -> list[Hardware]:
        return [_CARD]

    service = ProbeService({"torch": str(python)}, limit_s, spawn, DeviceQueue, inventory=survey)
    await service.probe()
    problem = service.table.runtime_problems.get("torch")
    return service.devices["cuda:0"], problem.remedy if problem else None


def refused(build: Build, reason: str, remedy: str, limit_s: float = _LIMIT_S, **variables: str) -> Check:
    """Return a check that the device is not ready, with patterns of its reason and remedy.

    The problem of the runtime in the health has the same remedy.
    """

    async def check(folder: Path) -> None:
        named = {name: value.format(folder=folder) for name, value in variables.items()}
        with mock.patch.dict(os.environ, named):
            device, of_runtime = await judge(build(folder), limit_s)
        assert device.state in ("broken", "unavailable") and device.layer, device
        assert device.reason and re.search(reason.format(folder=re.escape(str(folder))), device.reason, re.DOTALL), (
            device
        )
        assert device.remedy and re.search(remedy.format(folder=re.escape(str(folder))), device.remedy, re.DOTALL), (
            device
        )
        assert of_runtime == device.remedy, of_runtime

    return check


def works(build: Build) -> Check:
    """Return a check that the device is ready although the interpreter complains."""

    async def check(folder: Path) -> None:
        device, of_runtime = await judge(build(folder))
        assert device.state == "ready" and device.proof and of_runtime is None, device

    return check


def environment(folder: Path, *events: tuple[str, Any], **files: str) -> Path:
    """Create an environment whose torch plays events at import, with further files in site-packages."""
    python = make(folder / "env", {"cards": [CARD], "at": {"import": [list(event) for event in events]}})
    site = next((folder / "env" / "lib").glob("*/site-packages"))
    for name, text in files.items():
        (site / name.replace("__", ".")).write_text(text)
    return python


def raises(kind: str, text: str) -> Build:
    return lambda folder: environment(folder, ("raise", [kind, text.replace("{folder}", str(folder))]))


def prints(text: str, code: int = 1) -> Build:
    return lambda folder: environment(folder, ("complain", text), ("exit", code))


def dies(signal: str) -> Build:
    return lambda folder: environment(folder, ("signal", signal))


def with_files(**files: str) -> Build:
    return lambda folder: environment(folder, **files)


def file(content: bytes | str, mode: int = 0o755) -> Build:
    def build(folder: Path) -> Path:
        path = folder / "python"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    return build


def link(target: str) -> Build:
    def build(folder: Path) -> Path:
        (folder / "python").symlink_to(target)
        return folder / "python"

    return build


def wrapper(text: str) -> Build:
    return file(f'#!/bin/sh\n{text}\nexec {sys.executable} "$@"\n')


# An ELF header of another machine: 64-bit, little-endian, e_machine 243 (RISC-V).
_FOREIGN = b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x02\0\xf3\0" + b"\0" * 44
_NUMPY = (
    "\nA module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.2 as it may crash. To support both 1.x "
    "and 2.x\nversions of NumPy, modules must be compiled with NumPy 2.0.\n\nIf you are a user of the module, the "
    "easiest solution will be to\ndowngrade to 'numpy<2' or try to upgrade the affected module.\n"
)
_CUDNN = (
    "Could not locate cudnn_ops64_9.dll. Please make sure it is in your library path!\nInvalid handle. Cannot load "
    "symbol cudnnCreateTensorDescriptor"
)
_OLD = "{folder}/old/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by libtorch.so)"
_NVJITLINK = "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"
CHECKS: dict[str, Check] = {
    "deleted": refused(
        lambda folder: folder / "gone" / "python",
        "{folder}/gone/python cannot be started: it does not exist",
        _SET_PYTHON,
    ),
    "dangling link": refused(
        link("/nonexistent/python3.9"),
        "is a link to /nonexistent/python3.9, which does not exist",
        "removed or upgraded",
    ),
    "folder": refused(
        lambda folder: folder, "{folder} cannot be started: it is a folder", "Name the interpreter itself"
    ),
    "not executable": refused(file("#!/bin/sh\n", 0o644), "is not executable", "chmod [+]x {folder}/python"),
    "text file": refused(file("not a program\n"), "is not a program", "not a Python interpreter.*" + _SET_PYTHON),
    "script of a deleted program": refused(
        file("#!/nonexistent/python\n"), "a script for /nonexistent/python, which does not exist", _SET_PYTHON
    ),
    "another architecture": refused(
        file(_FOREIGN), "is a program for riscv64, and this machine is", "another kind of processor.*" + _SET_PYTHON
    ),
    "another program": refused(
        lambda _: Path("/bin/cat"), "starting: it exited with code", "/bin/cat started.*Python 3.10 or newer"
    ),
    "silent program": refused(
        lambda _: Path("/bin/true"), "it ended without an answer", "did not run Touchstone's program"
    ),
    "banner": refused(wrapper("echo 'Welcome to the cluster'"), "text instead of a frame: 'Welcome ", "wrapper script"),
    "sitecustomize ends it": refused(
        with_files(sitecustomize__py="raise SystemExit('no licence')\n"),
        "sitecustomize.*no licence",
        "{folder}/env.*Correct",
    ),
    "sitecustomize exits quietly": refused(
        with_files(sitecustomize__py="import os\nos._exit(3)\n"), "it exited with code 3", "no sitecustomize.py"
    ),
    "pth file ends it": refused(
        with_files(licence__pth="import sys; sys.exit('no licence')\n"), "in addpackage.*no licence", r"\*\.pth"
    ),
    "killed at the start": refused(
        with_files(sitecustomize__py="import os\nos.kill(os.getpid(), 9)\n"), "killed by SIGKILL", "memory"
    ),
    "killed at import": refused(dies("SIGKILL"), "importing torch: it was killed by SIGKILL", "was killed.*memory"),
    "slow import": refused(
        lambda folder: environment(folder, ("hang", 60)), "it hung: timeout after 1", "supervision.probe_s", limit_s=1.0
    ),
    "newer instructions": refused(dies("SIGILL"), "killed by SIGILL", "processor instructions that this machine lacks"),
    "seccomp": refused(dies("SIGSYS"), "killed by SIGSYS", "seccomp"),
    "full shared memory": refused(dies("SIGBUS"), "killed by SIGBUS", "/dev/shm.*shm"),
    "NumPy's message of several lines": refused(
        raises("ImportError", _NUMPY), "compiled using NumPy 1.x cannot be run in NumPy 2.0.2", 'install "numpy<2"'
    ),
    "static TLS": refused(
        raises("OSError", "/opt/libgomp.so.1: cannot allocate memory in static TLS block"),
        "static TLS block",
        "LD_PRELOAD=/opt/libgomp.so.1.*optional_static_tls",
    ),
    "noexec mount": refused(
        raises("ImportError", "/mnt/libtorch.so: failed to map segment from shared object: Operation not permitted"),
        "failed to map segment",
        "noexec.*findmnt -T /mnt/libtorch.so.*remount,exec",
    ),
    "SELinux": refused(
        raises("ImportError", "/opt/libtorch.so: cannot restore segment prot after reloc: Permission denied"),
        "cannot restore segment prot",
        "SELinux.*ausearch",
    ),
    "executable stack": refused(
        raises(
            "ImportError", "/opt/libmkl.so: cannot enable executable stack as shared object requires: Invalid argument"
        ),
        "cannot enable executable stack",
        "patchelf --clear-execstack /opt/libmkl.so",
    ),
    "no temporary folder": refused(
        raises("OSError", "[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']"),
        "No usable temporary directory",
        "TMPDIR",
    ),
    "too many open files": refused(
        raises("OSError", "[Errno 24] Too many open files: '/opt/libtorch.so'"),
        "Too many open files",
        "nofile|ulimit -n",
    ),
    "read-only home": refused(
        raises("OSError", "[Errno 30] Read-only file system: '/home/me/.cache'"), "Read-only", "/home/me/.cache.*HOME"
    ),
    "home of another user": refused(
        raises("PermissionError", "[Errno 13] Permission denied: '/root/.cache/torch'"),
        "denied",
        "/root/.cache/torch.*HOME",
    ),
    "no threads": refused(raises("RuntimeError", "can't start new thread"), "new thread", "pids-limit|ulimit -u"),
    "half a cuDNN": refused(
        prints(_CUDNN), "Could not locate cudnn_ops64_9.dll", "cudnn_ops64_9.dll.*nvidia-cudnn-cu12"
    ),
    "old libstdc++ by LD_LIBRARY_PATH": refused(
        raises("ImportError", _OLD),
        "GLIBCXX_3.4.32",
        "Remove {folder}/old from LD_LIBRARY_PATH",
        LD_LIBRARY_PATH="/usr/lib:{folder}/old",
    ),
    "old libstdc++ of the system": refused(
        raises("ImportError", "/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"),
        "GLIBCXX",
        "the system's libstdc",
    ),
    "other CUDA by LD_LIBRARY_PATH": refused(
        raises("ImportError", _NVJITLINK),
        "nvJitLink",
        "LD_LIBRARY_PATH=/usr/local/cuda-12.1/lib64 may choose other libraries.*nvidia-nvjitlink-cu12",
        LD_LIBRARY_PATH="/usr/local/cuda-12.1/lib64",
    ),
    "Windows' page file": refused(
        raises("OSError", '[WinError 1455] The paging file is too small. Error loading "cublas64_12.dll"'),
        "1455",
        "page file.*Virtual memory",
    ),
    "Visual C++ runtime": refused(
        raises("OSError", '[WinError 1114] A dynamic link library (DLL) initialization routine failed. "c10.dll"'),
        "1114",
        "Microsoft.VCRedist",
    ),
    "32-bit library": refused(
        raises("OSError", "[WinError 193] %1 is not a valid Win32 application"), "193", "another kind of processor"
    ),
    "failing sitecustomize": works(with_files(sitecustomize__py="raise RuntimeError('no licence server')\n")),
    "failing pth file": works(with_files(broken__pth="import nosuchmodule\n")),
    "printing sitecustomize": works(with_files(sitecustomize__py="import sys\nprint('hello', file=sys.stderr)\n")),
}
_CONTROLS = ("failing sitecustomize", "failing pth file", "printing sitecustomize")
STACKS = [
    Stack(f"interpreter-{name.replace(' ', '_')}", "control" if name in _CONTROLS else "interpreter", check)
    for name, check in CHECKS.items()
]
