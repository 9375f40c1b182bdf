"""Receipts: `used` comes from the worker's evidence or is unknown, never from the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.common.types import Device, Placement, PlacementPart, Receipt
from backend.jobs.receipt import ReceiptBuilder
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.worker import Limits, LoadResult, Worker, WorkerKey
from tests.faulty import faulty

DEVICE = Device("cuda:0", "A card", "cuda", "gpu", "ready", hardware_id="pci:0000:01:00.0")
DONE: dict[str, Any] = {
    "counts": {"tokens": 11, "prompt_tokens": 3},
    "memory": {"before_bytes": 1, "peak_bytes": 3, "after_bytes": 2},
    "chat_template": "model",
    "first_token_s": 1.0,
    "run_s": 6.0,
    "batched": False,
}


def written(parts: dict[str, float | None], resolved: str | None = "cuda:0", **more: Any) -> Receipt:
    worker = Worker(WorkerKey("cuda:0", "base", "e", "m"), "python", Limits(1, 1, 1, 1), faulty("ok"))
    placement = Placement(None, [PlacementPart(where, share) for where, share in parts.items()], "its own log")
    worker.loaded = LoadResult(placement, 2, {"lib": "1"})
    ledger = ReceiptBuilder("gpu", Resolution(resolved, "Because."), 100.0)
    ledger.begin_attempt(DEVICE, "base", "e")
    share = ledger.record_placement(worker, DEVICE)
    ledger.record_result({**DONE, **more})
    ledger.end_attempt()
    receipt = ledger.build(110.0, 7, "m.gguf")
    assert receipt and receipt.placement and receipt.placement.on_device == share
    return receipt


def test_used_is_the_device_of_the_evidence() -> None:
    receipt = written({"cuda:0": 0.9, "cpu": 0.1})
    assert (receipt.used, receipt.fell_back, receipt.hardware_id) == ("cuda:0", False, "pci:0000:01:00.0")


def test_a_worker_that_computed_elsewhere_is_found_out() -> None:
    receipt = written({"cpu": 1.0})
    assert (receipt.used, receipt.fell_back) == ("cpu", True)
    assert receipt.placement and receipt.placement.on_device == 0


@pytest.mark.parametrize("parts", [{}, {"cuda:0": None}])
def test_without_evidence_nothing_is_claimed(parts: dict[str, float | None]) -> None:
    receipt = written(parts)
    assert receipt.used is None and receipt.fell_back is None
    assert receipt.placement and receipt.placement.on_device is None and receipt.placement.evidence


def test_the_evidence_says_how_this_job_was_computed() -> None:
    receipt = written({"cuda:0": 1.0}, evidence="Steps: 10 as a graph.")
    assert receipt.placement and receipt.placement.evidence == "its own log Steps: 10 as a graph."


def test_where_nothing_was_resolved_the_cpu_is_a_fallback() -> None:
    assert written({"cpu": 1.0}, resolved=None).fell_back is True


def test_the_rate_counts_tokens_after_the_first() -> None:
    receipt = written({"cuda:0": 1.0})
    assert receipt.rate and receipt.rate.value == pytest.approx((11 - 1) / (6.0 - 1.0))
    assert receipt.times.total_s == pytest.approx(10.0)
    assert replace(receipt.memory) == receipt.memory and receipt.seed == 7


def test_a_job_that_no_worker_got_has_no_receipt() -> None:
    ledger = ReceiptBuilder("cuda:0", Resolution("cuda:0", "Because."), 0.0)
    ledger.record_refusal("cuda:0", "device_not_ready")
    assert ledger.build(1.0, None, None) is None


def test_a_second_attempt_forgets_what_the_first_one_measured() -> None:
    ledger = ReceiptBuilder("cuda:0", Resolution("cuda:0", "Because."), 0.0)
    worker = Worker(WorkerKey("cuda:0", "base", "e", "m"), "python", Limits(1, 1, 1, 1), faulty("ok"))
    worker.loaded = LoadResult(Placement(None, [PlacementPart("cuda:0", 1.0)], "log"), 2, {})
    ledger.begin_attempt(DEVICE, "base", "e")
    ledger.record_placement(worker, DEVICE)
    ledger.end_attempt("out_of_memory")
    ledger.begin_attempt(replace(DEVICE, id="cpu", hardware_id="cpu:0"), "base", "e")
    receipt = ledger.build(1.0, None, None)
    assert (
        receipt and receipt.used is None and [attempt.error for attempt in receipt.attempts] == ["out_of_memory", None]
    )
