"""A stand-in for torch-directml 0.2.5.dev240914, over the stand-in for torch.

`adapters` are the names that it lists; `adapters_in {role: names}` those of the processes with that role.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

torch: Any = importlib.import_module("torch")
_plan: Any = importlib.import_module("torch._plan")
PLAN, reach = _plan.PLAN, _plan.reach

reach("directml.import")


def _names() -> list[str]:
    names: list[str] = PLAN.get("adapters_in", {}).get(_plan.ROLE, PLAN.get("adapters", []))
    value = os.environ.get("DML_VISIBLE_DEVICES")
    return names if value is None else [names[int(word)] for word in value.split(",") if int(word) < len(names)]


def is_available() -> bool:
    """Whether there is an adapter."""
    reach("directml.is_available")
    return bool(_names())


def device_count() -> int:
    """How many there are."""
    return len(_names()) if is_available() else 0


def device_name(device_id: int) -> str:
    """The name alone: it tells nothing else."""
    reach("directml.device_name")
    reach(f"directml.device_name of {_names()[device_id]}")
    return _names()[device_id]


def default_device() -> int:
    """Always 0, whatever there is."""
    return 0


def device(device_id: int | None = None) -> Any:
    """The torch device of an adapter."""
    reach("directml.device")
    return torch.device("privateuseone", device_id or 0)
