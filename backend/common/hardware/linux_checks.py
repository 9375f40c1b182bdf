"""Checks of Linux, WSL and their drivers that concern all cards of a vendor."""

from __future__ import annotations

from collections.abc import Iterator

from backend.common.hardware import nvidia
from backend.common.hardware.checks import Check
from backend.common.hardware.container import container
from backend.common.hardware.host import Host, names_in, silent_files
from backend.common.hardware.wsl import LIBRARIES, NODE, powershell, wsl
from backend.common.hardware.wsl_host_gpus import UPDATE_WINDOWS
from backend.common.types import Hardware

_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_SHARED = ("libdxcore.so", "libd3d12.so")  # libraries that Windows adds to every WSL 2


def wsl_checks(host: Host) -> Iterator[Check]:
    """Check the WSL version and the GPU support that Windows provides."""
    kind = wsl(host)
    if kind == 1:
        yield Check(
            "wsl-1",
            "system",
            "problem",
            "This is WSL 1, which has no GPU support.",
            "Run `wsl --set-version DISTRIBUTION 2` in a Windows terminal, or run Touchstone on Windows (launch.cmd).",
            "windows",
        )
    if kind != 2:
        return
    if not host.path(NODE).exists():
        if runner := container(host):
            remedy = f"Start the {runner} container with `--device /{NODE} -v /usr/lib/wsl:/usr/lib/wsl`."
            yield Check("dxg-absent", "driver", "problem", f"/{NODE} is missing from this container.", remedy)
        else:
            detail = f"/{NODE} is missing: Windows shares no GPU with this WSL 2."
            yield Check("dxg-absent", "driver", "problem", detail, UPDATE_WINDOWS, "windows")
    elif missing := [name for name in _SHARED if not host.path(LIBRARIES, name).exists()]:
        detail = f"/{NODE} exists, but /{LIBRARIES} lacks {' and '.join(missing)}."
        yield Check("wsl-libraries", "library load", "problem", detail, UPDATE_WINDOWS, "windows")
    else:
        yield Check("dxg", "driver", "ok", f"/{NODE} and the libraries in /{LIBRARIES} exist.")
    if not powershell(host):
        detail = "Windows programs cannot be started from WSL, so Windows was not asked for its cards."
        remedy = "To see their names, set `[interop] enabled=true` in /etc/wsl.conf, then run `wsl --shutdown`."
        yield Check("wsl-interop", "settings", "note", detail, remedy)


def amd_checks(host: Host, hardware: list[Hardware]) -> Iterator[Check]:
    """Check AMD's compute driver and the variables that override it."""
    cards = [item for item in hardware if item.vendor == "AMD" and item.kind in ("gpu", "integrated")]
    if not cards:
        return
    if value := host.environment.get(_OVERRIDE):
        detail = (
            f"{_OVERRIDE}={value} makes ROCm compute for another chip than {cards[0].architecture or 'the card'}'s."
        )
        remedy = f"Unset {_OVERRIDE} unless the card is known to compute correctly with it."
        yield Check("hsa-override", "settings", "note", detail, remedy)
    if wsl(host) == 2:
        if host.environment.get("HSA_ENABLE_DXG_DETECTION") != "1":
            detail = "ROCm finds cards through /dev/dxg only if HSA_ENABLE_DXG_DETECTION is 1."
            remedy = "Set HSA_ENABLE_DXG_DETECTION=1 where Touchstone is started."
            yield Check("rocm-dxg", "settings", "note", detail, remedy)
    elif any(item.driver and item.driver.startswith("amdgpu") for item in cards):
        if not names_in(host.path("sys/class/kfd")):
            detail = "amdgpu is loaded without its compute part (kfd), so ROCm finds no card."
            remedy = "Use a kernel built with CONFIG_HSA_AMD, such as the distribution's kernel."
            yield Check("kfd-absent", "driver", "problem", detail, remedy)


def file_checks(host: Host) -> Iterator[Check]:
    """Report the kernel's files whose reads do not return."""
    for path in silent_files(host):
        yield Check(
            "file-silent",
            "driver",
            "problem",
            f"A read of {host.shown(path)} does not return: the kernel or a driver does not answer.",
            "Look for the driver's messages in `sudo dmesg`, then restart the machine.",
        )


def nvidia_checks(host: Host, hardware: list[Hardware]) -> Iterator[Check]:
    """Report a failure of NVIDIA's tool that no card shows, such as in a container without a view of the bus."""
    failure = nvidia.from_tool(host).failure
    if failure and nvidia.present(host) and not any(item.reason == failure.reason for item in hardware):
        yield Check("nvidia-smi", "driver", "problem", failure.reason, failure.remedy)


def thread_checks(host: Host, hardware: list[Hardware]) -> Iterator[Check]:
    """Report a limit on threads that is lower than the machine's threads."""
    threads = next((item.threads for item in hardware if item.kind == "cpu"), None)
    cores = next((item.cores for item in hardware if item.kind == "cpu"), None)
    usable = host.usable_threads()
    if threads and usable < (cores or threads):
        detail = f"{usable} of {threads} threads may be used here, because of a CPU quota or affinity."
        yield Check("threads", "system", "note", detail)
