"""Receipts: `used` comes from the worker's evidence or is unknown, never from the request."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from backend.common.types import Device, ModelStamp, Placement, PlacementPart, Receipt
from backend.jobs.receipt import ReceiptBuilder, judge_placement
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
    "cancelled": False,
    "placement": None,
    "model_stamp": None,
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
    receipt = ledger.build(110.0, 7)
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


@pytest.mark.parametrize("names", [("cuda:0", "cpu"), ("cpu", "cuda:0")])
@pytest.mark.parametrize(("share", "used"), [(0.5, "cuda:0"), (1 / 6 + 1 / 3, "cuda:0"), (0.499, "cpu")])
def test_half_of_a_model_counts_as_the_device(names: tuple[str, str], share: float, used: str) -> None:
    receipt = written({name: share if name == "cuda:0" else 1 - share for name in names})
    assert (receipt.used, receipt.fell_back) == (used, used == "cpu")


def test_of_equal_places_elsewhere_the_first_by_name_counts() -> None:
    assert {written({"cuda:0": 0.4, **rest}).used for rest in ({"npu": 0.3, "cpu": 0.3}, {"cpu": 0.3, "npu": 0.3})} == {
        "cpu"
    }
    assert written({"cuda:0": 0.4}).used is None, "where the rest is was not seen"


def test_parts_on_one_device_are_added() -> None:
    parts = [PlacementPart("cuda:0", 0.25), PlacementPart("cpu", 0.45), PlacementPart("cuda:0", 0.3)]
    placement, where = judge_placement(Placement(None, parts, "log"), "cuda:0")
    assert placement.on_device == pytest.approx(0.55) and where == "cuda:0"


@pytest.mark.parametrize(
    "parts",
    [{"cuda:0": 1.0, "cpu": 1.0}, {"cuda:0": math.nan}, {"cuda:0": math.inf}, {"cuda:0": 1.5, "cpu": -0.5}],
    ids=["twice", "nan", "infinite", "negative"],
)
def test_shares_that_cannot_be_true_are_no_evidence(parts: dict[str, float | None]) -> None:
    receipt = written(parts)
    assert receipt.used is None and receipt.placement and receipt.placement.on_device is None
    assert "contradict each other" in receipt.placement.evidence


def begun(parts: dict[str, float | None]) -> ReceiptBuilder:
    """Return the receipt of an attempt whose model is loaded."""
    worker = Worker(WorkerKey("cuda:0", "base", "e", "m"), "python", Limits(1, 1, 1, 1), faulty("ok"))
    placement = Placement(None, [PlacementPart(where, share) for where, share in parts.items()], "its own log")
    worker.loaded = LoadResult(placement, 2, {"lib": "1"}, "m.gguf", ModelStamp(5, "2026-01-01T00:00:00.000Z"))
    ledger = ReceiptBuilder("gpu", Resolution("cuda:0", "Because."), 100.0)
    ledger.begin_attempt(DEVICE, "base", "e")
    ledger.record_placement(worker, DEVICE)
    return ledger


def test_before_the_first_step_nothing_ran() -> None:
    ledger = begun({"cuda:0": 1.0})
    assert not ledger.record_step("started")
    ledger.end_attempt("worker_crashed")
    receipt = ledger.build(101.0, None)
    assert receipt and (receipt.used, receipt.fell_back) == (None, None)
    assert receipt.placement and receipt.placement.on_device == 1.0, "where the model was is known"
    assert receipt.model_stamp == ModelStamp(5, "2026-01-01T00:00:00.000Z") and receipt.model_file == "m.gguf"


@pytest.mark.parametrize("op", ["token", "progress", "artifact"])
def test_a_step_is_seen_once(op: str) -> None:
    ledger = begun({"cuda:0": 1.0})
    assert ledger.record_step(op) and not ledger.record_step(op)
    receipt = ledger.build(101.0, None)
    assert receipt and receipt.used == "cuda:0"


def test_a_job_cancelled_before_it_began_did_not_run() -> None:
    ledger = begun({"cuda:0": 1.0})
    ledger.record_result({**DONE, "cancelled": True, "counts": {}, "first_token_s": None})
    receipt = ledger.build(101.0, None)
    assert receipt and receipt.used is None and receipt.placement


def ended(before: dict[str, float | None], after: dict[str, float | None], evidence: str = "looked up") -> Any:
    """Return the builder and the receipt of a job whose model was looked for at its end."""
    ledger = begun(before)
    parts = [PlacementPart(where, share) for where, share in after.items()]
    ledger.record_result({**DONE, "placement": Placement(None, parts, evidence)})
    return ledger, ledger.build(110.0, 7)


@pytest.mark.parametrize("after", [{"cpu": 1.0}, {"cuda:0": 0.4, "cpu": 0.6}])
def test_a_model_that_left_the_device_is_noticed(after: dict[str, float | None]) -> None:
    ledger, receipt = ended({"cuda:0": 1.0}, after)
    assert (receipt.used, receipt.fell_back) == (None, None)
    assert f"{after.get('cuda:0', 0.0):.0%} of it was there at the end" in ledger.describe_departure()
    assert receipt.placement.evidence == "At the end of the job: looked up After loading: its own log"


def test_a_model_that_stayed_is_described_once() -> None:
    ledger, receipt = ended({"cuda:0": 1.0}, {"cuda:0": 1.0})
    assert receipt.used == "cuda:0" and ledger.describe_departure() is None
    assert receipt.placement.evidence == "its own log The same at the end of the job."


def test_a_model_that_cannot_be_found_at_the_end_is_nowhere() -> None:
    ledger, receipt = ended({"cuda:0": 1.0}, {})
    assert receipt.used is None and ledger.describe_departure() is None


def test_what_is_unknown_before_and_after_is_described_once() -> None:
    assert ended({}, {})[1].placement.evidence == "its own log"


def test_what_is_known_only_at_the_end_counts() -> None:
    assert ended({}, {"cuda:0": 1.0})[1].used == "cuda:0"


def test_the_digest_may_come_with_the_result() -> None:
    ledger = begun({"cuda:0": 1.0})
    ledger.record_result({**DONE, "model_stamp": ModelStamp(5, "2026", "sha256:1")})
    receipt = ledger.build(110.0, 7)
    assert receipt and receipt.model_stamp == ModelStamp(5, "2026", "sha256:1")


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
    assert ledger.build(1.0, None) is None


def test_a_second_attempt_forgets_what_the_first_one_measured() -> None:
    ledger = ReceiptBuilder("cuda:0", Resolution("cuda:0", "Because."), 0.0)
    worker = Worker(WorkerKey("cuda:0", "base", "e", "m"), "python", Limits(1, 1, 1, 1), faulty("ok"))
    worker.loaded = LoadResult(Placement(None, [PlacementPart("cuda:0", 1.0)], "log"), 2, {})
    ledger.begin_attempt(DEVICE, "base", "e")
    ledger.record_placement(worker, DEVICE)
    ledger.end_attempt("out_of_memory")
    ledger.begin_attempt(replace(DEVICE, id="cpu", hardware_id="cpu:0"), "base", "e")
    receipt = ledger.build(1.0, None)
    assert (
        receipt and receipt.used is None and [attempt.error for attempt in receipt.attempts] == ["out_of_memory", None]
    )
