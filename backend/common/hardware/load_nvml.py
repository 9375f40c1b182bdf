"""A program that prints the joules that a card has used since its driver was loaded, from NVIDIA's NVML.

It runs in a child process with a timeout, because NVML may hang if a card fell off the bus. It runs no code on
the card.
"""

from __future__ import annotations

import ctypes
import sys


def main(address: str) -> int:
    """Print the joules of the card at a PCI address. Returns 1 and prints the error code if NVML fails."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    library, card, millijoules = ctypes.CDLL(name), ctypes.c_void_p(), ctypes.c_ulonglong()
    for failed in (
        library.nvmlInit_v2(),
        library.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(card)),
        library.nvmlDeviceGetTotalEnergyConsumption(card, ctypes.byref(millijoules)),
    ):
        if failed:
            print(f"NVML returned {failed}", file=sys.stderr)  # noqa: T201
            return 1
    print(millijoules.value / 1000)  # noqa: T201  stdout is this program's result
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
