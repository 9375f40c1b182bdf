"""Where a GGUF model fits: layers by device, context, sequences and KV cache, computed before a load."""

from backend.common.memory_plan.buffers import Corrections
from backend.common.memory_plan.order import PlanOrder, correction_key, plan_order_from
from backend.common.memory_plan.plan import DeviceRoom, DeviceShare, Plan, PlanSettings
from backend.common.memory_plan.planner import make_plan

__all__ = [
    "Corrections",
    "DeviceRoom",
    "DeviceShare",
    "Plan",
    "PlanOrder",
    "PlanSettings",
    "correction_key",
    "make_plan",
    "plan_order_from",
]
