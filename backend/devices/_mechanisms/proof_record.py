"""What a proof writes down: each operation beside its reference, and all of it as a Proof, for every library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from backend.common.timestamps import utc_now
from backend.common.types import Proof
from backend.devices._mechanisms.reference_math import Difference, Reference, compare


class ProofRecorder:
    """The checks of a proof in their order; its clock starts here."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._rows: list[dict[str, Any]] = []

    def compare(
        self, name: str, dtype: str, got: list[float], reference: Reference, gflops: float | None = None
    ) -> Difference:
        """Takes an operation down with its error. Raises WrongResult where that is too large."""
        difference = compare(f"{name} {dtype}", got, reference)
        said = {"max_abs_error": difference.error, "tolerance": difference.allowed}
        self._rows.append({"operation": name, "dtype": dtype, **said, **({} if gflops is None else {"gflops": gflops})})
        return difference

    def skip(self, name: str, dtype: str, why: str) -> None:
        """Takes down that an operation could not be computed."""
        self._rows.append({"operation": name, "dtype": dtype, "skipped": why.partition("\n")[0][:200]})

    def proof(
        self, operation: str, products: Iterable[Difference], versions: dict[str, str], evidence: str, gflops: float
    ) -> Proof:
        """All of it, with the error of the worst of the products."""
        worst = max(products, key=lambda difference: difference.error / difference.allowed)
        return Proof(
            operation,
            "float32",
            worst.error,
            worst.allowed,
            time.perf_counter() - self._began,
            versions,
            utc_now(),
            os.getpid(),
            checks=self._rows,
            evidence=evidence,
            gflops=gflops,
        )
