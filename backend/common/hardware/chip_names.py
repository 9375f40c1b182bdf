"""Names of chips, from the lists of the PCI ID Project and libdrm. `names.txt` is an extract of both."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("names.txt")
_BRACKETS = re.compile(r"\[([^\[\]]+)\]$")
_SHORT = {
    "1002": "AMD",
    "1022": "AMD",
    "106b": "Apple",
    "10de": "NVIDIA",
    "1414": "Microsoft",
    "17cb": "Qualcomm",
    "1af4": "Red Hat",
    "1b36": "Red Hat",
    "1da3": "Habana",
    "5143": "Qualcomm",
    "8086": "Intel",
}


def vendor_name(vendor: str) -> str | None:
    """Return `AMD` for `1002`; for rare vendors the registered name, None if unknown."""
    return _SHORT.get(vendor) or _vendors().get(vendor)


def chip_name(vendor: str, device: str) -> str | None:
    """Return the name in the list: `Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]`."""
    return _chips().get((vendor, device))


def product_name(vendor: str, device: str, revision: str | None) -> str | None:
    """Return vendor and product name: `AMD Radeon RX 7900 XTX`. For AMD the revision selects the product."""
    exact = _chips().get((vendor, f"{device}:{revision}"))
    name = exact or chip_name(vendor, device)
    if not name:
        return None
    if not exact and (sold_as := _BRACKETS.search(name)):
        name = sold_as[1]
    maker = vendor_name(vendor)
    return name if not maker or name.lower().startswith(maker.split()[0].lower()) else f"{maker} {name}"


@cache
def _vendors() -> dict[str, str]:
    return {line[:4]: line[5:] for line in _lines() if line[:1] not in ("\t", "#") and len(line) > 5}


@cache
def _chips() -> dict[tuple[str, str], str]:
    vendor, chips = "", {}
    for line in _lines():
        if line.startswith("\t"):
            key, _, name = line[1:].partition(" ")
            chips[vendor, key] = name
        else:
            vendor = line[:4]
    return chips


@cache
def _lines() -> tuple[str, ...]:
    return tuple(_FILE.read_text(encoding="utf-8").splitlines())
