"""What only NVIDIA's tool nvidia-smi and its library NVML report.

Sources: NVIDIA's manual of nvidia-smi (return values), nvml.h (nvmlReturn_t and nvmlErrorString), the troubleshooting
pages of NVIDIA's container toolkit, and the public threads of the entries.
"""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

_CONTAINER = "Start the container with `--gpus all` (requires NVIDIA's container toolkit on the host)."
KNOWN = (
    KnownError(
        "nvml-unknown",
        r"failed to initialize nvml: unknown error",
        {
            "container": "Restart the container: it lost access to the card's nodes, as after `systemctl "
            'daemon-reload` on the host. Set `"exec-opts": ["native.cgroupdriver=cgroupfs"]` in '
            "/etc/docker/daemon.json to avoid it.",
            "wsl": "Run `wsl --shutdown` in Windows and open WSL again; if that does not help, update the card's "
            "driver in Windows.",
            "win32": "Restart Windows; if that does not help, reinstall the card's driver (nvidia.com/drivers).",
            "any": "Restart the machine; if that does not help, check `sudo dmesg`.",
        },
        "driver",
        absent=False,
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
    KnownError(
        "windows-blocks-card",
        r"gpu access blocked by the operating system",
        "On Windows: install the card's newest driver, run `wsl --update` and `wsl --shutdown`, and open WSL again.",
        "driver",
        absent=False,
        source="https://github.com/microsoft/WSL/issues/9938",
    ),
    KnownError(
        "nvml-missing",
        r"couldn'?t find (?:the )?(?:libnvidia-ml|nvml)|libnvidia-ml\.so.*not found|nvml\.dll.*not found"
        r"|failed to initialize nvml:.{0,20}library not found",
        {
            "container": "Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            "wsl": "Update the card's driver in Windows, which brings this library to /usr/lib/wsl/lib; run `wsl "
            "--shutdown`, then refresh.",
            "win32": "Reinstall the card's driver (nvidia.com/drivers), restart, then refresh.",
            "any": "Reinstall NVIDIA's driver with its libraries (Debian: libnvidia-ml1; Ubuntu: libnvidia-compute).",
        },
        "driver",
    ),
    KnownError(
        "nvml-denied",
        r"(?:nvml|device handle)\b.{0,80}(?:insufficient permissions|no permission)|unable to open.{0,40}/dev/nvidia",
        {
            "container": _CONTAINER,
            "any": "Give this user access to the nodes: `ls -l /dev/nvidia*` shows their group, `sudo usermod -aG "
            "GROUP $USER` adds the user; then log out and in again.",
        },
        "permission",
    ),
    # exit code 6 in the manual: "A query to find an object was unsuccessful"; also with exit code 0
    KnownError(
        "driver-lists-no-card",
        r"\bno devices were found",
        {
            "container": _CONTAINER,
            "wsl": "Update the card's driver in Windows, run `wsl --shutdown`, and open WSL again.",
            "win32": "Check the card in the device manager (`devmgmt.msc`), reinstall its driver (nvidia.com/drivers), "
            "restart, then refresh.",
            "any": "Look for `NVRM` in `sudo dmesg`: the driver could not start the card. A card that it no longer "
            "supports needs an older driver, and the open kernel modules need a card since Turing (2018).",
        },
        "driver",
        code="device_lost",
    ),
    # a value in a row of the tool's table
    KnownError(
        "gpu-silent",
        r", ?(?:err!|\[unknown error\])",
        "Restart the machine. If it happens again, look for `Xid` in `sudo dmesg` and check power and cooling.",
        "driver",
        absent=False,
        code="device_lost",
    ),
    KnownError(
        "power-cable",
        r"external power cables?|power cables? .{0,40}not (?:properly )?(?:attached|connected)"
        r"|insufficient external power",
        "Switch the machine off and connect all power cables of the card.",
        "hardware",
        absent=False,
    ),
)
