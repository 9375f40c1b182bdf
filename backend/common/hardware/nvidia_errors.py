"""What NVIDIA's tool nvidia-smi reports instead of facts, and what to do about it.

Sources of the messages: NVIDIA's manual of nvidia-smi (return values), nvml.h (nvmlReturn_t and nvmlErrorString), the
troubleshooting pages of NVIDIA's container toolkit, and public issue threads named with each of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RESTART = "Restart the machine. If it happens again, look for `Xid` in `sudo dmesg` and check power and cooling."
_CONTAINER = "Start the container with `--gpus all` (requires NVIDIA's container toolkit on the host)."


@dataclass(frozen=True)
class ToolError:
    """A kind of failure. `pattern` matches its text, `meaning` is a clause, `one_card`: the other cards work."""

    pattern: re.Pattern[str]
    meaning: str
    remedy: str
    in_container: str | None = None  # the remedy there, default: `remedy`
    one_card: bool = False


def _error(
    pattern: str, meaning: str, remedy: str, in_container: str | None = None, one_card: bool = False
) -> ToolError:
    return ToolError(re.compile(pattern, re.IGNORECASE), meaning, remedy, in_container, one_card)


TOOL_ERRORS = (
    # NVML_ERROR_LIB_RM_VERSION_MISMATCH; a line "NVML library version: 550.54" follows
    _error(
        r"driver/library version mismatch",
        "the driver in the kernel has another version than its libraries",
        "Restart the machine: the driver was updated while the old one was in use.",
        "Recreate the container after the host was restarted: the host's driver was updated.",
    ),
    # github.com/NVIDIA/nvidia-container-toolkit/issues/48
    _error(
        r"failed to initialize nvml: unknown error",
        "NVIDIA's library cannot open the driver",
        "Restart the machine; if that does not help, check `sudo dmesg`.",
        "Restart the container: it lost access to the card's nodes, as after `systemctl daemon-reload` on the host. "
        'Set `"exec-opts": ["native.cgroupdriver=cgroupfs"]` in /etc/docker/daemon.json to avoid it.',
    ),
    # NVML_ERROR_OPERATING_SYSTEM, in WSL: github.com/microsoft/WSL/issues/9938
    _error(
        r"gpu access blocked by the operating system",
        "Windows blocks access to the card",
        "On Windows: install the card's newest driver, run `wsl --update` and `wsl --shutdown`, and open WSL again.",
    ),
    _error(
        r"couldn'?t communicate with the nvidia driver|nvidia driver is not loaded|driver not loaded",
        "the driver is not loaded",
        "Load it with `sudo modprobe nvidia`. If that fails, the driver was not built for this kernel (`dkms status`; "
        "reinstall the driver) or Secure Boot refuses it (`mokutil --sb-state`).",
        "Load the driver on the host: `sudo modprobe nvidia`, and check that `nvidia-smi` works there.",
    ),
    _error(
        r"couldn'?t find (the )?(libnvidia-ml|nvml)|libnvidia-ml\.so.*(not found|cannot open)|nvml\.dll.*not found",
        "NVIDIA's library NVML is missing",
        "Reinstall NVIDIA's driver with its libraries (Debian: libnvidia-ml1; Ubuntu: libnvidia-compute).",
        "Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
    ),
    _error(
        r"insufficient permissions|no permission|permission denied|unable to open.*/dev/nvidia",
        "this user has no permission to use the driver",
        "Give this user access to the nodes: `ls -l /dev/nvidia*` shows their group, `sudo usermod -aG GROUP $USER` "
        "adds the user; then log out and in again.",
        _CONTAINER,
    ),
    # exit code 15 in the manual: "The current device has fallen off the bus"
    _error(
        r"gpu is lost|fallen off the bus|unable to determine the device handle|reboot the system to recover",
        "the card has fallen off the bus",
        _RESTART,
        one_card=True,
    ),
    _error(
        r"requires reset|reset required",
        "the card must be reset",
        "Stop the programs that use the card and run `sudo nvidia-smi --gpu-reset`, or restart the machine.",
        one_card=True,
    ),
    _error(
        r"\berr!|\[unknown error\]",
        "the card does not answer",
        _RESTART,
        one_card=True,
    ),
    # exit code 6 in the manual: "A query to find an object was unsuccessful"; also with exit code 0
    _error(
        r"no devices were found|no devices found",
        "the driver lists no card",
        "Look for `NVRM` in `sudo dmesg`: the driver could not start the card. A card that it no longer supports needs "
        "an older driver, and the open kernel modules need a card since Turing (2018).",
        _CONTAINER,
    ),
    _error(
        r"power cables?|insufficient (external )?power",
        "a power cable of the card is not connected",
        "Switch the machine off and connect all power cables of the card.",
        one_card=True,
    ),
)


def tool_error(text: str) -> ToolError | None:
    """Return the kind of failure that a text of nvidia-smi reports, None if it is unknown or no failure."""
    return next((error for error in TOOL_ERRORS if error.pattern.search(text)), None)
