"""The program `prove_engine ORDER`: computes on a device through the library of one engine, in a separate process.

It prints one line of JSON: `unusable`, reasons by data type; or `wrong`, why the device or the library is unusable.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from backend.common.device_api import WrongResult
from backend.common.errors import TouchstoneError
from backend.devices import detected_device_from, show_only
from backend.engines import load_engine


def main(arguments: list[str]) -> int:
    """Run the proof; exit 0 when its result is printed."""
    order = json.loads(arguments[0])
    detected = detected_device_from(order["found"])
    show_only(order["backend"], detected)
    module: Any = load_engine(order["engine"])
    try:
        result = {"unusable": module.prove(order["device"], detected)}
    except TouchstoneError as error:
        result = {"wrong": error.detail}
    except WrongResult as error:
        result = {"wrong": f"wrong result: {error}"}
    except Exception as error:  # noqa: BLE001 (the border of the process: the parent decides what it means)
        lines = str(error).strip().splitlines() or [""]
        result = {"wrong": f"{type(error).__name__}: {lines[0][:500]}"}
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.stdout.flush()
    return 0
