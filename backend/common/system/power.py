"""The machine's power source, and the processors' energy counters."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from pathlib import Path

from backend.common.bounded_reads import names_in, text_of

SUPPLIES, RAPL = Path("/sys/class/power_supply"), Path("/sys/class/powercap")
_TOOL_S = 3.0


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Return whether the machine runs on battery; False if unknown, as on a desktop."""
    if sys.platform == "win32":
        status = (ctypes.c_ubyte * 12)()  # SYSTEM_POWER_STATUS: the first byte is 0 without mains
        return bool(ctypes.windll.kernel32.GetSystemPowerStatus(ctypes.byref(status))) and status[0] == 0
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            output = subprocess.run(["pmset", "-g", "batt"], capture_output=True, text=True, timeout=_TOOL_S).stdout
            return "'Battery Power'" in output
        return False
    kinds = {place: text_of(place / "type") for place in _places(supplies)}
    mains = [place for place, kind in kinds.items() if kind in ("Mains", "USB", "Wireless")]
    if any(text_of(place / "online") == "1" for place in mains):
        return False
    cells = [place for place, kind in kinds.items() if kind == "Battery" and text_of(place / "scope") != "Device"]
    return any(text_of(place / "status") == "Discharging" for place in cells)


def processor_j(root: Path = RAPL) -> float | None:
    """Return the processors' energy counters in joules, None if none is readable.

    A laptop may list each package twice (`intel-rapl` and `intel-rapl-mmio`), and `psys`, which contains the packages.
    """
    microjoules: dict[str, int] = {}
    for place in _places(root):
        text, name = text_of(place / "energy_uj"), text_of(place / "name") or place.name
        if place.name.count(":") == 1 and name != "psys" and text.isdigit():
            microjoules[name] = int(text)
    return sum(microjoules.values()) / 1e6 if microjoules else None


def _places(root: Path) -> list[Path]:
    return [root / name for name in names_in(root)]
