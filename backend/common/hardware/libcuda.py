"""Which libcuda a program gets, and whether it fits the driver: the classic trap of WSL, containers and updates."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from backend.common.hardware.checks import Check
from backend.common.hardware.container import container
from backend.common.hardware.host import COMMAND_LIMIT_S, Host
from backend.common.hardware.nvidia import driver_version
from backend.common.hardware.wsl import LIBRARIES, wsl
from backend.common.hardware.wsl_host_gpus import UPDATE_WINDOWS

PROGRAM = (sys.executable, "-I", str(Path(__file__).with_name("load_libcuda.py")))
_VERSION = re.compile(r"\.so\.(\d{3}\.[\d.]+)$")


def libcuda_checks(host: Host) -> Iterator[Check]:
    """What came of loading it. Only asked where there is an NVIDIA card."""
    answer = host.run(PROGRAM, COMMAND_LIMIT_S)
    try:
        found = json.loads(answer.text)
    except ValueError:
        found = {"error": answer.trouble or "the program that loads it gave no answer"}
    if not isinstance(found, dict):
        found = {"error": "the program that loads it answered nonsense"}
    if "error" in found:
        yield _missing(host, str(found["error"]))
        return
    path, cuda = str(found.get("path") or ""), found.get("version")
    said = f"libcuda is {path or 'loaded'}" + (f", for CUDA {cuda}." if cuda else ".")
    if "/stubs/" in path:
        remedy = "Take the folder of stubs out of LD_LIBRARY_PATH: it is for building programs, not for running them."
        yield Check(
            "libcuda-stub", "library load", "problem", f"{said} That is a stub, which computes nothing.", remedy
        )
    elif wsl(host) == 2 and path and not path.startswith(f"/{LIBRARIES.rpartition('/')[0]}/"):
        yield Check(
            "libcuda-shadowed",
            "library load",
            "problem",
            f"{said} WSL's own stands in /{LIBRARIES}; another one hides it.",
            "Remove the Linux driver from this WSL (`sudo apt-get purge '^libnvidia-compute-.*' '^nvidia-driver-.*'`), "
            f"or put /{LIBRARIES} first in LD_LIBRARY_PATH.",
        )
    elif (loaded := driver_version(host)) and (own := _VERSION.search(path)) and own[1] != loaded:
        yield Check(
            "libcuda-mismatch",
            "driver",
            "problem",
            f"{said} The driver in the kernel is {loaded}: the two belong together.",
            "Restart the machine: the driver was updated while the old one was in use. In a container: make it anew.",
        )
    else:
        yield Check("libcuda", "library load", "ok", said)


def _missing(host: Host, why: str) -> Check:
    detail = f"There is an NVIDIA card, and libcuda cannot be loaded: {why}."
    if runner := container(host):
        remedy = (
            f"Start the {runner} container with `--gpus all` and NVIDIA_DRIVER_CAPABILITIES=compute,utility "
            "(it needs NVIDIA's container toolkit)."
        )
        return Check("libcuda-missing", "library load", "problem", detail, remedy)
    if wsl(host):
        return Check("libcuda-missing", "library load", "problem", detail, UPDATE_WINDOWS, "windows")
    remedy = "Install NVIDIA's driver with its CUDA part (Debian: libcuda1; Ubuntu: libnvidia-compute of your driver)."
    return Check("libcuda-missing", "library load", "problem", detail, remedy)
