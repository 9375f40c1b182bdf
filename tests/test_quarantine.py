"""Quarantine: three worker deaths of an engine, model and device, or of one request; a success or a release ends it."""

from __future__ import annotations

import pytest

from backend.common.errors import TouchstoneError, WorkerCrashed
from backend.jobs.job_request import JobRequest
from backend.scheduling.quarantine import DEATHS, Combination, Quarantine, WorkerDeath
from backend.tasks.options import parse_options
from backend.tasks.options.unusual_options import unusual_options

ERROR = WorkerCrashed("It died.", "Rerun it.")
PLACE = Combination("cpu", "torch", "m")
ENGINES = ("torch", "llama.cpp")


class Deaths:
    """Reports deaths, each of a new worker."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self._pid = 0

    def die(self, *requests: str | None, place: Combination = PLACE, unusual: str = "", loading: bool = False) -> bool:
        """One worker dies; each of the requests that it ran reports it."""
        self._pid += 1
        worker = None if loading else self._pid
        started = [
            self.quarantine.record_death(
                WorkerDeath(place, ERROR, worker, request, request == unusual != "", engines=ENGINES)
            )
            for request in requests or (None,)
        ]
        return any(started)

    def refusal(self, request: str = "other", place: Combination = PLACE) -> TouchstoneError | None:
        return self.quarantine.refusal(place, lambda: request)


@pytest.fixture
def deaths() -> Deaths:
    return Deaths()


def test_the_third_death_in_a_row_starts_the_quarantine(deaths: Deaths) -> None:
    assert [deaths.die() for _ in range(DEATHS + 1)] == [False, False, True, False]
    refusal = deaths.refusal()
    assert refusal and "m with torch on cpu is quarantined: its worker died 3 times" in refusal.detail
    assert "/api/devices/cpu/release" in refusal.remedy


@pytest.mark.parametrize("loading", [True, False])
def test_deaths_that_no_request_caused_count_each(deaths: Deaths, loading: bool) -> None:
    assert [deaths.die(loading=loading) for _ in range(DEATHS)] == [False, False, True]


def test_three_different_requests_quarantine_the_model_and_not_themselves(deaths: Deaths) -> None:
    assert [deaths.die(request) for request in "abc"] == [False, False, True]
    assert deaths.refusal("a") and deaths.refusal("new")
    deaths.quarantine.record_success(PLACE, "a")
    assert not deaths.refusal("b")


def test_the_same_request_three_times_is_refused_and_others_are_not(deaths: Deaths) -> None:
    assert [deaths.die("a") for _ in range(DEATHS)] == [False, False, True], "then the device is proved again"
    refusal = deaths.refusal("a")
    assert refusal and refusal.code == "quarantined" and "Other requests are not affected" in refusal.detail
    assert not deaths.refusal("b") and deaths.quarantine.models("cpu", ENGINES) == []
    assert [error.code for _, error in deaths.quarantine.problems()] == ["worker_crashed", "quarantined"]
    deaths.quarantine.record_success(PLACE, "b")
    assert deaths.refusal("a"), "another request's success proves nothing about this one"


def test_requests_with_unusual_options_never_quarantine_the_model(deaths: Deaths) -> None:
    for number in range(20):
        assert not deaths.die(f"odd {number}", unusual=f"odd {number}"), "no quarantine starts"
    assert not deaths.refusal()
    for _ in range(DEATHS):
        deaths.die("odd", unusual="odd")
    assert deaths.refusal("odd") and not deaths.refusal()


def test_one_death_of_a_shared_worker_is_one_death(deaths: Deaths) -> None:
    deaths.die("a", "b", "c")
    assert not deaths.refusal()
    deaths.die("a", "odd", "c", unusual="odd")
    deaths.die("a", "odd", unusual="odd")
    assert not deaths.refusal(), "only the first of them counts"
    assert deaths.refusal("a") and not deaths.refusal("b"), "suspected until it finishes a job"
    deaths.quarantine.record_success(PLACE, "a")
    assert not deaths.refusal("a")


def test_engines_devices_and_models_do_not_mix(deaths: Deaths) -> None:
    for place in (PLACE, PLACE._replace(engine="llama.cpp"), PLACE._replace(device="cuda:0")) * 2:
        deaths.die(place=place)
    deaths.die()
    assert deaths.refusal() and not deaths.refusal(place=PLACE._replace(engine="llama.cpp"))
    assert deaths.quarantine.models("cpu", ENGINES) == [], "llama.cpp still runs it"
    assert deaths.quarantine.models("cpu", ["torch"]) == ["m"], "the device offers no other engine for it"
    deaths.die(place=PLACE._replace(engine="llama.cpp"))
    assert deaths.quarantine.models("cpu", ENGINES) == ["m"]


def test_a_finished_job_between_deaths_resets_the_count(deaths: Deaths) -> None:
    for _ in range(5):
        deaths.die("a")
        deaths.die("b")
        assert [(device, error.code) for device, error in deaths.quarantine.problems()] == [("cpu", "worker_crashed")]
        deaths.quarantine.record_success(PLACE, "a")
        deaths.quarantine.record_success(PLACE, "b")
    assert not deaths.refusal() and deaths.quarantine.is_empty


def test_a_quarantine_is_a_problem_that_names_the_last_error(deaths: Deaths) -> None:
    for request in "abc":
        deaths.die(request)
    [(device, error)] = deaths.quarantine.problems()
    assert (device, error.code) == ("cpu", "quarantined") and error.detail.endswith("The last time: It died.")


def test_a_release_is_for_one_model_or_the_whole_device(deaths: Deaths) -> None:
    for model in "ab":
        for _ in range(DEATHS):
            deaths.die(place=PLACE._replace(model=model))
            deaths.die("request", place=PLACE._replace(model=model))
    deaths.quarantine.release("cpu", "a")
    assert deaths.quarantine.models("cpu", ["torch"]) == ["b"]
    assert not deaths.refusal("request", PLACE._replace(model="a"))
    deaths.quarantine.release("cpu")
    assert deaths.quarantine.is_empty


def test_a_fuzzer_does_not_fill_the_memory(deaths: Deaths) -> None:
    for number in range(1200):
        deaths.die(f"{number}", unusual=f"{number}")
    assert len(deaths.quarantine._requests) == 1000 and len(deaths.quarantine._deaths[PLACE].reports) == 64


def test_the_fingerprint_is_what_the_worker_computes() -> None:
    def request(device: str = "cpu", seed: int = 1, prompt: str = "Hi", **options: object) -> str:
        parsed = parse_options("text", {"seed": seed, **options})
        return JobRequest("text", "m", device, options=parsed, prompt=prompt).fingerprint

    assert request() == request("gpu") == request(seed=2)
    assert len({request(), request(prompt="Ho"), request(top_k=1)}) == 3


@pytest.mark.parametrize(
    ("options", "unusual"),
    [
        ({}, []),
        ({"temperature": 0, "max_tokens": 9, "seed": 3, "stop": ["a"], "top_p": 0.9, "top_k": 0}, []),
        ({"top_p": 1e-300}, ["top_p"]),
        ({"repetition_penalty": 0.01, "temperature": 1.9}, ["temperature", "repetition_penalty"]),
        ({"logit_bias": {"1": 5}, "response_format": {"type": "json_object"}}, ["logit_bias", "response_format"]),
    ],
)
def test_unusual_options_are_those_that_few_requests_have(options: dict[str, object], unusual: list[str]) -> None:
    assert unusual_options(parse_options("text", options)) == unusual
