"""Makes the real ONNX Runtime, into whose package this file is put, claim devices that are not there.

`plan.json` beside it: `devices [{ep_name, type?, metadata?}]`, `available [name]` (the compiled-in providers),
`register TEXT` (what every library fails with), `session TEXT` (what every session fails with), `truth` (the record
says where nodes ran), `scale` (what results are multiplied by). What it offers is what the real package has; all is
computed by the processor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PLAN: dict[str, Any] = json.loads(Path(__file__).with_name("plan.json").read_text(encoding="utf-8"))


def apply(names: dict[str, Any]) -> None:
    """Replaces what the package exports."""
    names["get_ep_devices"] = lambda: [_device(**one) for one in PLAN.get("devices", [])]
    names["get_available_providers"] = lambda: PLAN.get("available", ["CPUExecutionProvider"])
    names["register_execution_provider_library"] = _register
    names["SessionOptions"] = _options(names["SessionOptions"])
    names["InferenceSession"] = _session(names["InferenceSession"])


def _device(ep_name: str, type: str = "GPU", metadata: dict[str, str] | None = None, vendor: str = "") -> Any:
    hardware = SimpleNamespace(
        type=f"OrtHardwareDeviceType.{type}", vendor=vendor, vendor_id=0, device_id=0, metadata=metadata or {}
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
            super().__init__(path_or_bytes, sess_options, providers, **more)
            self._claimed = chosen.ep_name if chosen is not None and not PLAN.get("truth") else None

        def get_provider_graph_assignment_info(self) -> Any:
            return [_Part(part, self._claimed) for part in super().get_provider_graph_assignment_info()]

        def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
            found = super().run(output_names, input_feed, run_options)
            factor = PLAN.get("scale")
            return found if factor is None else [one * one.dtype.type(factor) for one in found]

    return InferenceSession


class _Part:
    def __init__(self, real: Any, claimed: str | None) -> None:
        self.ep_name = claimed or real.ep_name
        self.get_nodes: Callable[[], Any] = real.get_nodes
