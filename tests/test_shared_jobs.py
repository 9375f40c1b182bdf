"""Jobs on several devices: how variations are divided, one progress for all shares, and the sum of their receipts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.types import Attempt, Memory, Placement, PlacementPart, Progress, Receipt, Times
from backend.jobs.multi_device.division import ShareSpec, divide
from backend.jobs.multi_device.progress import CombinedProgress
from backend.jobs.multi_device.receipt import combined_receipt

speeds = st.lists(st.none() | st.floats(0.01, 1000), min_size=1, max_size=6)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.integers(1, 40), speeds)
def test_each_variation_belongs_to_one_share_and_shares_follow_the_order_of_the_devices(
    variations: int, measured: list[float | None]
) -> None:
    names = [f"card:{number}" for number in range(len(measured))]
    shares = divide(variations, names, measured)
    assert [number for share in shares for number in share.numbers] == list(range(1, variations + 1))
    assert [share.device for share in shares] == [name for name in names if name in {each.device for each in shares}]
    assert all(share.count > 0 for share in shares)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.integers(1, 40), st.lists(st.floats(0.01, 1000), min_size=2, max_size=6))
def test_a_share_differs_from_its_exact_part_by_less_than_one_variation(variations: int, rates: list[float]) -> None:
    names = [f"card:{number}" for number in range(len(rates))]
    counts = {share.device: share.count for share in divide(variations, names, rates)}
    for name, rate in zip(names, rates, strict=True):
        assert abs(counts.get(name, 0) - variations * rate / sum(rates)) < 1


def test_one_unknown_speed_makes_all_shares_equal() -> None:
    assert [share.count for share in divide(9, ["a", "b", "c"], [1.0, None, 100.0])] == [3, 3, 3]


def test_a_share_is_shown_with_its_variations() -> None:
    assert ShareSpec("cpu", 2, 3).label == "3 to 5 on cpu" and ShareSpec("cpu", 0, 1).label == "1 on cpu"


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def step(done: float, total: float | None, phase: str = "render") -> Progress:
    return Progress(phase, done, total, "frames")


def test_the_work_of_a_share_that_has_not_started_is_estimated_from_the_others() -> None:
    clock = Clock()
    joint = CombinedProgress([2, 4], clock)
    joint.update(0, step(0, 100))
    clock.now = 10.0
    shown = joint.update(0, step(50, 100))
    assert (shown.done, shown.total, shown.unit) == (50, 300, "frames")
    assert shown.eta_s == pytest.approx(10 / 50 * 250)


def test_the_slowest_phase_is_shown_and_later_phases_count_as_complete_in_it() -> None:
    joint = CombinedProgress([1, 1], Clock())
    joint.update(0, step(10, 10, "load"))
    joint.update(0, step(5, 20, "compose"))
    both = joint.update(1, step(4, 10, "load"))
    assert (both.phase, both.done, both.total) == ("load", 14, 20)
    last = joint.update(1, step(10, 20, "compose"))
    assert (last.phase, last.done, last.total) == ("compose", 15, 40)


def test_a_complete_share_no_longer_decides_the_phase_and_a_restarted_one_starts_at_nothing() -> None:
    joint = CombinedProgress([1, 1], Clock())
    joint.update(0, step(10, 20))
    joint.update(1, step(10, 20))
    joint.complete(0)
    shown = joint.update(1, step(15, 20))
    assert (shown.done, shown.total) == (35, 40), "all of the complete share is done"
    joint.reset(1)
    restarted = joint.update(1, step(0, 20))
    assert (restarted.done, restarted.total, restarted.eta_s) == (20, 40, 0.0)


def receipt(device: str, pid: int = 1, share: float | None = 1.0, **more: Any) -> Receipt:
    fields: dict[str, Any] = {
        "used": device,
        "fell_back": False,
        "engine": "torch",
        "runtime": "torch",
        "placement": Placement(share, [PlacementPart(device, share)], f"By the log of {device}."),
        "attempts": [Attempt(device, "torch", "torch", f"2026-01-01T00:00:0{pid}.000Z")],
        "memory": Memory(10, 30, 20),
        "times": Times(queued_s=pid, load_s=2.0, first_token_s=None, run_s=5.0, total_s=8.0 + pid),
        "counts": {"bars": 4},
        "audio_s": 6.0,
        "phases": {"render": float(pid)},
        "chosen": {"key": "D", "seeds": [pid]},
        "versions": {"torch": "2.1", device: "x"},
        "worker_pid": pid,
        **more,
    }
    return replace(Receipt("gpu", device, "Because."), **fields)


def combined(*receipts: Receipt, run_s: float | None = 4.0, refused: tuple[Attempt, ...] = ()) -> Receipt:
    done = [(ShareSpec(str(each.used), number, 1), each) for number, each in enumerate(receipts)]
    return combined_receipt("a, b", "They were named.", run_s, refused, done)


def test_the_receipt_of_a_shared_job_adds_up_its_shares() -> None:
    refused = Attempt("c", None, None, "2026-01-01T00:00:00.000Z", None, "device_not_ready")
    total = combined(receipt("a", 1), receipt("b", 2), refused=(refused,))
    assert (total.used, total.resolved, total.engine, total.fell_back) == ("a, b", "a, b", "torch", False)
    assert [attempt.device for attempt in total.attempts] == ["c", "a", "b"], "in the order of their start"
    assert total.counts == {"bars": 8} and total.audio_s == 12.0 and total.memory == Memory(20, 60, 40)
    assert total.rate and total.rate.value == pytest.approx(3.0), "audio of all devices in the time of the job"
    assert (total.times.queued_s, total.times.load_s, total.times.run_s, total.times.total_s) == (2, 2.0, 4.0, 10.0)
    assert total.phases == {"render": 2.0} and total.chosen == {"key": "D", "seeds": [1, 2]}
    assert total.versions == {"torch": "2.1", "a": "x", "b": "x"}
    assert [part.variations for part in total.parts] == [[1], [2]]


def test_two_shares_of_one_worker_count_its_memory_once() -> None:
    assert combined(receipt("a", 1), receipt("a", 1)).memory == Memory(10, 30, 20)


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"used": None}, "used", None),
        ({"fell_back": None}, "fell_back", None),
        ({"fell_back": True}, "fell_back", True),
        ({"audio_s": None}, "audio_s", 6.0),
        ({"reason": "It was slow."}, "reason", "It was slow."),
        ({"batched": True}, "batched", True),
    ],
)
def test_what_is_unknown_of_one_share_is_not_claimed_of_the_job(
    change: dict[str, Any], field: str, expected: object
) -> None:
    assert getattr(combined(receipt("a", 1), receipt("b", 2, **change)), field) == expected


def test_placement_is_that_of_the_worst_share_with_parts_weighted_by_variations() -> None:
    first = receipt("a")
    second = receipt("b", placement=Placement(0.6, [PlacementPart("b", 0.6), PlacementPart("cpu", 0.4)], "By hand."))
    done = [(ShareSpec("a", 0, 3), first), (ShareSpec("b", 3, 1), second)]
    placement = combined_receipt("a, b", "", None, (), done).placement
    assert placement and placement.on_device == 0.6
    shares = {part.where: part.share_of_nodes for part in placement.parts}
    assert shares == {"a": pytest.approx(0.75), "b": pytest.approx(0.15), "cpu": pytest.approx(0.1)}
    assert placement.evidence == "By the log of a. By hand."
    unknown = combined(first, receipt("a", 2, share=None)).placement
    assert unknown and unknown.on_device is None and unknown.parts[0].share_of_nodes is None
    assert combined(receipt("a", placement=None)).placement is None


def test_without_a_running_time_there_is_no_rate() -> None:
    assert combined(receipt("a"), run_s=None).rate is None
    assert combined(receipt("a", audio_s=None)).rate is None
