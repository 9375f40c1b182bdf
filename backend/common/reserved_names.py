"""Names that are no files: Windows gives some to devices, in every folder and with any ending."""

from __future__ import annotations

import re

_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE | re.DOTALL
)


def is_reserved_windows_name(name: str) -> bool:
    """Whether opening a file of this name on Windows would open a device, such as NUL or `com1.onnx`."""
    return _DEVICES.fullmatch(name.rstrip(" .")) is not None
