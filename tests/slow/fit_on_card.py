"""`python -m tests.slow.fit_on_card MODEL REGISTRY`: memory plans of a GGUF file on a card, and what llama.cpp took.

REGISTRY is ggml's name of the backend, such as CUDA, Vulkan or MTL; the interpreter's environment has a build for it.
Each line is one real load within a limit: layers as planned and as logged, bytes planned and logged, and what the
driver lost outside them. It ends with 1 if a load exceeds its limit or its plan.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from backend.common.errors import OutOfMemory
from backend.common.formats.gguf import read_layout
from backend.common.memory_plan import DeviceRoom, PlanOrder, PlanSettings, make_plan
from backend.engines import LoadRequest
from backend.engines._llama.fit import load_fitted
from backend.engines._llama.library import Library, LibraryDevice, open_library

_BACKENDS = {"CUDA": "cuda:0", "ROCm": "rocm:0", "SYCL": "xpu:0", "Vulkan": "vulkan:0", "MTL": "mps"}
_SHARES = (0.15, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 3.0)  # of what the whole model needs
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers")


def main(model: Path, registry: str) -> int:
    """Print one line for each limit; return the exit code."""
    library = open_library(True)
    device = _device(library, registry)
    layout = read_layout(model)
    assert layout, "the file has no layers"
    room = DeviceRoom("card", device.free_bytes)
    whole = make_plan(layout, [room], None, PlanSettings(slots=1, context_tokens=4096)).device_bytes
    print(f"{library.title}, {device.description}, {device.free_bytes / 1e6:.0f} MB free; {whole / 1e6:.0f} MB for all")
    kinds = [PlanSettings(), PlanSettings(kv_cache="q8_0"), PlanSettings(experts="system")]
    cases = [(PlanSettings(slots=1, context_tokens=4096), share) for share in _SHARES]
    results = [_load(library, registry, model, settings, int(whole * share)) for settings, share in cases]
    results += [_load(library, registry, model, settings, device.free_bytes) for settings in kinds]
    return 0 if all(results) else 1


def _device(library: Library, registry: str) -> LibraryDevice:
    return next(device for device in library.devices() if device.registry == registry)


def _load(library: Library, registry: str, model: Path, settings: PlanSettings, limit: int) -> bool:
    """Load, print and free a model; return whether it kept its limit and its plan."""
    where, before = _BACKENDS[registry], _device(library, registry)
    request = LoadRequest(where, str(model), 4096, 4, order=PlanOrder(settings, limit))
    try:
        done = load_fitted(library, request, [before], False)
    except OutOfMemory as error:
        print(f"{limit / 1e6:8.0f} MB: refused: {error.detail}")
        return True
    fit, after = done.fit, _device(library, registry)
    logged = _OFFLOADED.search(done.loaded.log)
    done.loaded.close()
    assert fit and logged
    taken = sum(each.bytes for each in fit.devices if each.where == where)
    lost = before.free_bytes - after.free_bytes - taken
    print(
        f"{limit / 1e6:8.0f} MB: {fit.gpu_layers} of {fit.layers} layers (logged {logged[1]}), {taken / 1e6:.0f} MB, "
        f"driver {lost / 1e6:.0f} MB, {done.request.slots} × {done.request.context_tokens} tokens {fit.kv_cache}, "
        f"experts of {fit.expert_layers} layers in memory; {fit.explanation}",
        flush=True,
    )
    return taken <= limit and int(logged[1]) == fit.gpu_layers and fit.retried is None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
