"""The record of a proof: each operation with its error and tolerance, for every library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from backend.common.timestamps import utc_now
from backend.common.types import JsonObject, Proof
from backend.devices._mechanisms.reference_math import Difference, Reference, compare


class ProofRecorder:
    """The checks of a proof, in order. Its duration is measured from the constructor."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._rows: list[JsonObject] = []

    def compare(
        self, name: str, dtype: str, got: list[float], reference: Reference, gflops: float | None = None
    ) -> Difference:
        """Record an operation with its error. Raises WrongResult if the error exceeds the tolerance."""
        difference = compare(f"{name} {dtype}", got, reference)
        row = {"operation": name, "dtype": dtype, "max_abs_error": difference.error, "tolerance": difference.allowed}
        self._rows.append(row if gflops is None else {**row, "gflops": gflops})
        return difference

    def skip(self, name: str, dtype: str, why: str) -> None:
        """Record an operation that the library cannot compute."""
        self._rows.append({"operation": name, "dtype": dtype, "skipped": why.partition("\n")[0][:200]})

    def proof(
        self, operation: str, products: Iterable[Difference], versions: dict[str, str], evidence: str, gflops: float
    ) -> Proof:
        """Return the proof of all checks. Its error and tolerance are those of the worst product."""
        worst = max(products, key=lambda difference: difference.error / difference.allowed)
        return Proof(
            operation,
            "float32",
            worst.error,
            worst.allowed,
            time.perf_counter() - self._started,
            versions,
            utc_now(),
            os.getpid(),
            checks=self._rows,
            evidence=evidence,
            gflops=gflops,
        )
