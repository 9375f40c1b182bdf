"""Write `names.txt`, the names of display and accelerator chips, from two public lists.

    python -m backend.common.hardware.make_chip_names /usr/share/misc/pci.ids /usr/share/libdrm/amdgpu.ids

The first is the PCI ID Project's (Debian: pci.ids), the second libdrm's, which distinguishes AMD's products by
revision.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).with_name("names.txt")
NOTICE = Path(__file__).with_name("names-licence.txt")
# Vendors whose entries are all kept, except audio, USB and bridge functions.
_COMPLETE_VENDORS = {
    *("1002", "10de"),  # AMD, NVIDIA
    *("1da3", "1ed5", "1e3e", "9999", "1e36", "cabc", "1ee0", "1e52", "0731", "1d22", "1faa"),  # only accelerators
    *("1234", "80ee", "1414", "15ad", "1a03", "102b", "1013"),  # virtual machines, management controllers
}
_RELEVANT = re.compile(
    r"graphics|gpu|\bvga\b|display|\barc\b|\biris\b|\bu?hd \d|neural processing|\bnpu\b|accelerator|\bvpu\b|ascend|"
    r"gaudi|habana|hailo|aipu|cloud ai|data center|ponte|xe\b|battlemage|dg[12]\b|ats-m|alchemist|paravirtual|qxl|svga",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"audio|usb|\bbridge|\bi2c\b|smbus|\bide\b|sata|raid|ethernet|network|host controller|memory control|pci express|"
    r"\bucsi\b|bluetooth|wireless|root port|switch|lpc|thermal|management engine|gaussian|\bgna\b|southbridge|modem|"
    r"cryptographic|nvme|serial|storage|firewire|cardbus|\bdma\b|dummy|hda\b|ac'97|nic\b|quickassist|qat\b|streaming "
    r"accelerator|analytics accelerator|\bioat\b|tuner|tv wonder|theater|controller hub",
    re.IGNORECASE,
)


def main(arguments: list[str], target: Path = TARGET) -> int:
    """Parse the two lists and write the extract."""
    pci = Path(arguments[0]).read_text(encoding="utf-8")
    amd = Path(arguments[1]).read_text(encoding="utf-8")
    lines = list(_pci(pci))
    products = list(_products(amd))
    release = next((line.split()[-1] for line in pci.splitlines() if line.startswith("#\tVersion:")), "unknown")
    head = [
        f"# Made by make_names.py from pci.ids {release} and libdrm's amdgpu.ids; licences in {NOTICE.name}.",
        "# VENDOR name; then a tab, DEVICE name; for AMD's products a tab, DEVICE:REVISION name.",
    ]
    target.write_text("\n".join([*head, *lines, "1002", *products]) + "\n", encoding="utf-8")
    return 0


def _pci(text: str) -> Iterator[str]:
    vendor, is_written = "", False
    for line in text.splitlines():
        if line.startswith("C "):  # the classes follow
            return
        if not line or line.startswith(("#", "\t\t")):
            continue
        if not line.startswith("\t"):
            vendor, is_written = line, False
        elif _kept(vendor[:4], line[7:]):
            if not is_written:
                yield f"{vendor[:4]} {vendor[6:].strip()}"
                is_written = True
            yield f"\t{line[1:5]} {line[7:].strip()}"


def _kept(vendor: str, name: str) -> bool:
    return not _OTHER.search(name) and (vendor in _COMPLETE_VENDORS or bool(_RELEVANT.search(name)))


def _products(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and not line.startswith("#"):
            yield f"\t{words[0].lower()}:{words[1].lower()} {words[2]}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
