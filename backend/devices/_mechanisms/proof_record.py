"""The record of a proof: each operation with its error and tolerance by data type, for every library.

A proof checks data types one after the other. float32 comes first: a fault in it refuses the device. A fault in another
data type makes only that type unusable, so that a device stays available to the engines that do not need it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from backend.common import error_patterns
from backend.common.device_api import WrongResult
from backend.common.timestamps import utc_now
from backend.common.types import JsonObject, Proof
from backend.devices._mechanisms.reference_math import Difference, Reference, compare

BASIC = "float32"  # every device must compute it
# A callback with the data type that is checked next, so that the parent can attribute a crash or a hang.
OnStep = Callable[[str], None]
_UNSUPPORTED = re.compile(
    r"not (?:currently |yet )?(?:implemented|supported)|unsupported|does not support|doesn't support|no kernel for"
    r"|NOT_SUPPORTED|NOT_IMPLEMENTED|unable to find an engine|no valid convolution algorithms",
    re.IGNORECASE,
)
_TEXT_LIMIT = 200


def is_unsupported(error: BaseException) -> bool:
    """Return whether a library reports that it lacks an operation, a data type or a function."""
    if error_patterns.classify_error_text(str(error)):
        return False
    if isinstance(error, (NotImplementedError, AttributeError)):
        return True
    return isinstance(error, (RuntimeError, TypeError, ValueError)) and bool(_UNSUPPORTED.search(str(error)))


class ProofRecorder:
    """The checks of a proof, in order. Its duration is measured from the constructor."""

    def __init__(self, on_step: OnStep = lambda _: None) -> None:
        self._started = time.perf_counter()
        self._on_step = on_step
        self._rows: list[JsonObject] = []
        # Optional. Computes in float32 again. If that works after an exception in another type, only the type fails.
        self.recheck: Callable[[], object] | None = None
        self._unusable: dict[str, str] = {}

    def begin(self, dtype: str) -> None:
        """Announce the checks of a data type. Call it before anything is computed in it."""
        self._on_step(dtype)

    def is_usable(self, dtype: str) -> bool:
        """Return whether no check of a data type has failed so far."""
        return dtype not in self._unusable

    @contextlib.contextmanager
    def operation(
        self,
        name: str,
        dtype: str,
        required: bool = True,
        lacks: Callable[[Exception], bool] = is_unsupported,
    ) -> Iterator[None]:
        """Check one operation. A wrong or unsupported one makes its data type unusable, unless that is float32.

        `required`: whether engines need it in this data type. Default: yes. An unsupported one that is not required is
        listed as skipped. `lacks`: returns whether an exception means that the library does not support it.
        Raises WrongResult for float32, and every other exception unless the device still computes in float32.
        """
        try:
            yield
        except WrongResult as error:
            if dtype == BASIC:
                raise
            text = _one_line(error)
            if not self._rows or self._rows[-1].get("failed") != text:
                self.wrong(name, dtype, text)
            self._unusable.setdefault(dtype, f"{dtype} results are wrong on this device ({text})")
        except Exception as error:
            text = _one_line(str(error) or type(error).__name__)
            if lacks(error) and not (required and dtype == BASIC):
                if required:
                    self.refuse(name, dtype, text)
                else:
                    self.skip(name, dtype, text)
                return
            if dtype == BASIC or self.recheck is None or _is_fatal(error):
                raise
            try:
                self.recheck()
            except Exception:  # noqa: BLE001 (the first exception is the cause)
                raise error from None
            self.wrong(name, dtype, text)
            self._unusable.setdefault(dtype, f"{dtype} fails on this device ({name}: {text})")

    def compare(
        self, name: str, dtype: str, got: Sequence[float], reference: Reference, gflops: float | None = None
    ) -> Difference:
        """Record an operation with its error. Raises WrongResult if the error exceeds the tolerance."""
        try:
            difference = compare(f"{name} {dtype}", got, reference)
        except WrongResult as error:
            raise self.wrong(name, dtype, str(error)) from None
        row = {"operation": name, "dtype": dtype, "max_abs_error": difference.error, "tolerance": difference.allowed}
        self._rows.append(row if gflops is None else {**row, "gflops": gflops})
        return difference

    def wrong(self, name: str, dtype: str, why: str) -> WrongResult:
        """Record an operation with a wrong result, and return the exception to raise."""
        self._rows.append({"operation": name, "dtype": dtype, "failed": _one_line(why)})
        return WrongResult(why)

    def skip(self, name: str, dtype: str, why: str) -> None:
        """Record an operation that the library cannot compute. The data type stays usable."""
        self._rows.append({"operation": name, "dtype": dtype, "skipped": _one_line(why)})

    def refuse(self, name: str, dtype: str, why: str) -> None:
        """Record an operation that the library cannot compute and engines need: the data type is unusable."""
        self.skip(name, dtype, why)
        self._unusable.setdefault(dtype, f"{dtype} is not supported on this device ({name}: {_one_line(why)})")

    def proof(
        self,
        operation: str,
        products: Iterable[Difference],
        versions: dict[str, str],
        evidence: str,
        gflops: float,
        model_dtype: str | None = None,
    ) -> Proof:
        """Return the proof of all checks. Its error and tolerance are those of the worst product.

        `model_dtype`: optional, the data type that models compute in on this device, if the library decides that.
        """
        worst = max(products, key=lambda difference: difference.error / difference.allowed)
        return Proof(
            operation,
            BASIC,
            worst.error,
            worst.allowed,
            time.perf_counter() - self._started,
            versions,
            utc_now(),
            os.getpid(),
            checks=self._rows,
            evidence=evidence,
            gflops=gflops,
            unusable=self._unusable,
            model_dtype=model_dtype,
        )


def _is_fatal(error: Exception) -> bool:
    return isinstance(error, MemoryError) or error_patterns.classify_error_text(str(error)) is not None


def _one_line(text: object) -> str:
    """Return the first line of a text, without a period at its end."""
    return str(text).strip().partition("\n")[0][:_TEXT_LIMIT].rstrip(".")
