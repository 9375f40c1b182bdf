"""A program that asks NVIDIA's management library what a card has taken since its driver came: joules on stdout.

Run as a child with a limit, since the library may hang on a card that fell off the bus. It starts nothing on the card.
"""

from __future__ import annotations

import ctypes
import sys


def main(address: str) -> int:
    """Prints the joules of the card at a PCI address; 1 with the library's number where it does not tell."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    library, card, millijoules = ctypes.CDLL(name), ctypes.c_void_p(), ctypes.c_ulonglong()
    for failed in (
        library.nvmlInit_v2(),
        library.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(card)),
        library.nvmlDeviceGetTotalEnergyConsumption(card, ctypes.byref(millijoules)),
    ):
        if failed:
            print(f"NVML answers {failed}", file=sys.stderr)  # noqa: T201
            return 1
    print(millijoules.value / 1000)  # noqa: T201  this program's stdout is its answer
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
