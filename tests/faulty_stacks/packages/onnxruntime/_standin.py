"""Makes the real ONNX Runtime, into whose package this file is put, claim devices that are not there.

`plan.json` in the same folder: `devices [{ep_name, type?, metadata?, vendor_id?, device_id?}]`, `devices_in {role:
devices}` (those of the processes with that role), `available [name]` (the compiled-in providers), `register TEXT`
(what every library fails with), `session TEXT` (what every session fails with), `truth` (the record says where nodes
ran), `scale` (what results are multiplied by), `spoil {only?, how, argument?, dtype?, late?}` (what happens to
results whose name contains `only`, or to all; with an input of that data type, or any; from that run of a session
on), `rejects [name]` (operators that no session accepts), `bfloat16` (products in bfloat16 are accepted). What it
offers is what the real package has; all is computed by the processor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PLAN: dict[str, Any] = json.loads(Path(__file__).with_name("plan.json").read_text(encoding="utf-8"))


def apply(names: dict[str, Any]) -> None:
    """Replaces what the package exports."""
    names["get_ep_devices"] = lambda: [_device(**one) for one in _listed()]
    names["get_available_providers"] = lambda: PLAN.get("available", ["CPUExecutionProvider"])
    names["register_execution_provider_library"] = _register
    names["SessionOptions"] = _options(names["SessionOptions"])
    names["InferenceSession"] = _session(names["InferenceSession"])


def _listed() -> list[dict[str, Any]]:
    role = next((word for word in sys.argv[1:3][::-1] if word in ("list", "list-visible", "prove", "run")), "")
    devices: list[dict[str, Any]] = PLAN.get("devices_in", {}).get(role, PLAN.get("devices", []))
    return devices


def _device(
    ep_name: str,
    type: str = "GPU",
    metadata: dict[str, str] | None = None,
    vendor: str = "",
    vendor_id: int = 0,
    device_id: int = 0,
) -> Any:
    hardware = SimpleNamespace(
        type=f"OrtHardwareDeviceType.{type}",
        vendor=vendor,
        vendor_id=vendor_id,
        device_id=device_id,
        metadata=metadata or {},
    )
    return SimpleNamespace(
        ep_name=ep_name, ep_vendor=vendor, ep_metadata={"version": "1.0"}, ep_options={}, device=hardware
    )


def _register(registration_name: str, library_path: str) -> None:
    if text := PLAN.get("register"):
        raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : Failed to load library {library_path} with error: {text}")


def _options(real: Any) -> Any:
    class SessionOptions(real):  # type: ignore[misc]
        """Takes any device, and heeds no refusal of the processor."""

        chosen: Any = None

        def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
            self.chosen = devices[0]

        def add_session_config_entry(self, key: str, value: str) -> None:
            if key != "session.disable_cpu_ep_fallback" or not PLAN.get("devices"):
                super().add_session_config_entry(key, value)

    return SessionOptions


def _session(real: Any) -> Any:
    class InferenceSession(real):  # type: ignore[misc]
        """Computes on the processor and says otherwise."""

        def __init__(self, path_or_bytes: Any, sess_options: Any = None, providers: Any = None, **more: Any) -> None:
            chosen = getattr(sess_options, "chosen", None)
            if chosen is not None and (text := PLAN.get("session")):
                raise RuntimeError(text)
            for name in PLAN.get("rejects", []):
                if name.encode() in path_or_bytes:
                    raise RuntimeError(f"[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel for {name}(1)")
            self._spoil = _Spoil(path_or_bytes)
            if PLAN.get("bfloat16"):  # the processor has no such product; float32 holds what it would return
                path_or_bytes = path_or_bytes.replace(b"to\x18\x10", b"to\x18\x01")
            super().__init__(path_or_bytes, sess_options, providers, **more)
            self._claimed = chosen.ep_name if chosen is not None and not PLAN.get("truth") else None

        def get_provider_graph_assignment_info(self) -> Any:
            return [_Part(part, self._claimed) for part in super().get_provider_graph_assignment_info()]

        def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
            names = output_names or [output.name for output in self.get_outputs()]
            found = self._spoil(names, super().run(names, self._spoil.inputs(input_feed), run_options))
            factor = PLAN.get("scale")
            return found if factor is None else [one * one.dtype.type(factor) for one in found]

    return InferenceSession


class _Spoil:
    """Applies the plan's fault to the results of one session."""

    def __init__(self, model: bytes) -> None:
        self.plan: dict[str, Any] = PLAN.get("spoil", {})
        self.here = bool(self.plan)
        if self.plan.get("dtype") == "bfloat16":
            self.here = self.here and b"to\x18\x10" in model
        self.runs = 0

    def inputs(self, feed: dict[str, Any]) -> dict[str, Any]:
        dtype = self.plan.get("dtype", "")
        if dtype not in ("", "bfloat16") and not any(str(value.dtype) == dtype for value in feed.values()):
            self.here = False
        if not self.here or self.plan["how"] != "unmasked":
            return feed
        totals = {name.rpartition("/")[0]: value for name, value in feed.items() if name.endswith("/total")}
        return {  # every position of the cache is seen
            name: value * 0 + totals[name.rpartition("/")[0]] - 1 if name.endswith("/last") else value
            for name, value in feed.items()
        }

    def __call__(self, names: list[str], results: list[Any]) -> list[Any]:
        self.runs += 1
        if not self.here or self.runs < self.plan.get("late", 1):
            return results
        fault = _FAULTS[self.plan["how"]]
        return [
            fault(result, self.plan.get("argument")) if self.plan.get("only", "") in name else result
            for name, result in zip(names, results, strict=True)
        ]


def _one_entry(result: Any, value: Any) -> Any:
    changed = result.copy()
    changed.reshape(-1)[changed.size // 2] = value
    return changed


def _last_row(result: Any, least: int) -> Any:
    if result.ndim < 2 or result.shape[0] < least:
        return result
    changed = result.copy()
    changed[-1] = 0
    return changed


_WIDE = 1100  # more columns than products have that only exceed 1 MB

_FAULTS: dict[str, Callable[[Any, Any], Any]] = {
    "scale": lambda result, factor: result * result.dtype.type(factor),
    "scale if larger": lambda result, bytes_: result * result.dtype.type(0.5) if result.nbytes > bytes_ else result,
    "entry": lambda result, value: _one_entry(result, float(value)),
    "last row": _last_row,
    "clip": lambda result, limit: result.clip(-limit, limit),
    "scale columns": lambda result, factor: (
        result * result.dtype.type(factor) if result.ndim > 1 and result.shape[-1] > _WIDE else result
    ),
    "infinite": lambda result, _: result * result.dtype.type(float("inf")),
    "shift": lambda result, offset: result + result.dtype.type(offset),
    "unmasked": lambda result, _: result,
}


class _Part:
    def __init__(self, real: Any, claimed: str | None) -> None:
        self.ep_name = claimed or real.ep_name
        self.get_nodes: Callable[[], Any] = real.get_nodes
