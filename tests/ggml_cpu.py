"""ggml's own CPU backend, from xllamacpp's library, as a device for proofs; and one that computes wrongly."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backend.devices._mechanisms.ggml import declare
from backend.devices._mechanisms.ggml_blocks import FLOAT32, FORMATS

Fault = Callable[["array[float]"], "array[float]"]
MANY = -1
_DTYPES = {form.kind: form.dtype for form in (FLOAT32, *FORMATS)}


@cache
def library() -> Any:
    """Return the library, which exports ggml's functions on Linux."""
    import xllamacpp

    found = next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
    base = declare(ctypes.CDLL(str(found)))
    base.ggml_backend_cpu_init.restype = ctypes.c_void_p
    return base


@dataclass
class FaultyGgml:
    """ggml-base whose device is the CPU, with faults by operation, data type of the weights and number of columns.

    `faults`: (operation, data type or "", columns, fault); 0 columns are any number, MANY all but one. `lacks`: pairs
    of operation and data type that the device does not support. `status`: of each computation. `on_host`: whether its
    buffers are in host memory.
    """

    faults: Iterable[tuple[str, str, int, Fault]] = ()
    lacks: Iterable[tuple[str, str]] = ()
    status: int = 0
    on_host: bool = False
    made: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    shapes: dict[int, tuple[str, int]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        real = getattr(library(), name)
        return self._recorded(name, real) if name in _OPERATIONS else real

    def ggml_backend_dev_init(self, device: int, options: None) -> Any:
        return library().ggml_backend_cpu_init()

    def ggml_backend_buffer_name(self, buffer: int) -> bytes:
        return b"Vulkan0"

    def ggml_backend_buffer_is_host(self, buffer: int) -> bool:
        return self.on_host

    def ggml_new_tensor_4d(self, context: int, kind: int, *shape: int) -> int:
        tensor: int = library().ggml_new_tensor_4d(context, kind, *shape)
        self.shapes[tensor] = (_DTYPES.get(kind, ""), shape[1])
        return tensor

    def ggml_backend_dev_supports_op(self, device: int, result: int) -> bool:
        return self.made[result][:2] not in set(self.lacks)

    def ggml_backend_graph_compute(self, backend: int, graph: int) -> int:
        return self.status or int(library().ggml_backend_graph_compute(backend, graph))

    def ggml_backend_tensor_get(self, tensor: int, out: Any, offset: int, size: int) -> None:
        library().ggml_backend_tensor_get(tensor, out, offset, size)
        operation, dtype, columns = self.made[tensor]
        for name, of_dtype, of_columns, fault in self.faults:
            of_many = of_columns == MANY and columns != 1
            if name == operation and of_dtype in ("", dtype) and (of_many or of_columns in (0, columns)):
                numbers = array("f", bytes(out))
                ctypes.memmove(out, fault(numbers).tobytes(), size)

    def _recorded(self, name: str, real: Any) -> Callable[..., int]:
        def build(context: Any, *arguments: Any) -> int:
            result: int = real(context, *arguments)
            dtype = self.shapes.get(arguments[0], ("", 0))[0]
            columns = self.shapes.get(arguments[1], ("", 0))[1] if len(arguments) > 1 else 0
            self.made[result] = (name, dtype, columns)
            return result

        return build


_OPERATIONS = {
    *("ggml_mul_mat", "ggml_flash_attn_ext", "ggml_soft_max_ext", "ggml_rms_norm", "ggml_sum_rows", "ggml_rope"),
    *("ggml_get_rows", "ggml_conv_2d"),
}


def opened(base: Any) -> Any:
    """Return what `open_device` returns for a device of this library."""
    return SimpleNamespace(base=base, handle=0, name="Vulkan0")
