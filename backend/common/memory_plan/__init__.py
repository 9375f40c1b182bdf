"""Where a GGUF model fits: layers by device, context, sequences and KV cache, computed before a load."""

from backend.common.memory_plan.buffers import Corrections
from backend.common.memory_plan.plan import DeviceRoom, DeviceShare, Plan, PlanSettings
from backend.common.memory_plan.planner import make_plan

__all__ = ["Corrections", "DeviceRoom", "DeviceShare", "Plan", "PlanSettings", "make_plan"]
