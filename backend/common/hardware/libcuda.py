"""Checks of libcuda: which file programs load, and whether it matches the driver."""

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
    """Load libcuda in a child process and check it. Call it only if there is an NVIDIA card."""
    answer = host.run(PROGRAM, COMMAND_LIMIT_S)
    try:
        report = json.loads(answer.text)
    except ValueError:
        report = {"error": answer.trouble or "the child process that loads it printed no JSON"}
    if not isinstance(report, dict):
        report = {"error": "the child process that loads it printed invalid output"}
    if "error" in report:
        yield _missing(host, str(report["error"]))
        return
    path, cuda = str(report.get("path") or ""), report.get("version")
    summary = f"libcuda is {path or 'loaded'}" + (f", for CUDA {cuda}." if cuda else ".")
    if "/stubs/" in path:
        remedy = "Remove the folder of stubs from LD_LIBRARY_PATH: they are only for building programs."
        yield Check(
            "libcuda-stub", "library load", "problem", f"{summary} That is a stub, which cannot compute.", remedy
        )
    elif wsl(host) == 2 and path and not path.startswith(f"/{LIBRARIES.rpartition('/')[0]}/"):
        yield Check(
            "libcuda-shadowed",
            "library load",
            "problem",
            f"{summary} WSL's own libcuda is in /{LIBRARIES}, but another one is loaded first.",
            "Remove the Linux driver from this WSL (`sudo apt-get purge '^libnvidia-compute-.*' '^nvidia-driver-.*'`), "
            f"or put /{LIBRARIES} first in LD_LIBRARY_PATH.",
        )
    elif (loaded := driver_version(host)) and (own := _VERSION.search(path)) and own[1] != loaded:
        yield Check(
            "libcuda-mismatch",
            "driver",
            "problem",
            f"{summary} The kernel's driver is {loaded}: the versions must match.",
            "Restart the machine: the driver was updated while the old one was in use. In a container: recreate it.",
        )
    else:
        yield Check("libcuda", "library load", "ok", summary)


def _missing(host: Host, why: str) -> Check:
    detail = f"There is an NVIDIA card, but libcuda cannot be loaded: {why}."
    if runner := container(host):
        remedy = (
            f"Start the {runner} container with `--gpus all` and NVIDIA_DRIVER_CAPABILITIES=compute,utility "
            "(requires NVIDIA's container toolkit)."
        )
        return Check("libcuda-missing", "library load", "problem", detail, remedy)
    if wsl(host):
        return Check("libcuda-missing", "library load", "problem", detail, UPDATE_WINDOWS, "windows")
    remedy = "Install NVIDIA's driver with its CUDA part (Debian: libcuda1; Ubuntu: libnvidia-compute of your driver)."
    return Check("libcuda-missing", "library load", "problem", detail, remedy)
