"""Quarantine of what kills workers repeatedly: an engine with a model on a device, or one request.

A death while a model loads, or of a worker that another program killed, counts against the engine with that model on
that device, and so does a wrong result of the device (`device_wrong`). A death while an ordinary request runs counts
once per distinct request. The third without a finished job in between starts the quarantine. A request that three
workers died on is quarantined alone, for that engine, model and device. A request with unusual options counts only
against that request, because the options may be the cause. A bad model does not quarantine the device: the device is
proved again, and that proof decides.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.common.errors import Quarantined, TouchstoneError

DEATHS = 3
_REQUESTS_LIMIT = 1000  # suspected requests in memory; the oldest are forgotten
_REPORTS_LIMIT = 64  # of a combination


class Combination(NamedTuple):
    """An engine with a model on a device."""

    device: str
    engine: str
    model: str


@dataclass(frozen=True)
class WorkerDeath:
    """A worker that died. `worker` is its process id, None if it died while it loaded the model.

    `request` is the fingerprint of the request that it ran; None if no request can be the cause. `is_unusual`: the
    request has options that few requests have. `engines` are all engines that can run the model.
    """

    place: Combination
    error: TouchstoneError
    worker: int | None = None
    request: str | None = None
    is_unusual: bool = False
    engines: tuple[str, ...] = ()


@dataclass
class _Deaths:
    """The deaths of a combination since its last finished job. Jobs that shared a worker report the same death."""

    reports: deque[WorkerDeath] = field(default_factory=lambda: deque(maxlen=_REPORTS_LIMIT))

    @property
    def count(self) -> int:
        """How many deaths count against the combination: of the same request alone only one."""
        suspects: dict[int | str, set[str]] = {}
        unusual: set[int | str] = set()
        for number, report in enumerate(self.reports):
            event = report.worker if report.worker is not None else f"load {number}"
            suspects.setdefault(event, set()).update([report.request] if report.request else [])
            unusual |= {event} if report.is_unusual else set()
        counted = {event: requests for event, requests in suspects.items() if event not in unusual}
        return len({frozenset(requests) or event for event, requests in counted.items()})


class Quarantine:
    """The worker deaths of all combinations and requests."""

    def __init__(self) -> None:
        self._deaths: dict[Combination, _Deaths] = {}
        self._requests: OrderedDict[tuple[Combination, str], set[int | None]] = OrderedDict()  # workers that died
        self._engines: dict[str, tuple[str, ...]] = {}  # that can run a model
        self.revision = 0  # increases with each change
        self.is_empty = True  # nothing died since the last finished job of each combination

    def record_death(self, death: WorkerDeath) -> bool:
        """Count a death. Return whether it starts the quarantine of the combination or of the request."""
        place = death.place
        was_quarantined = self._is_quarantined(place)
        starts_request = False
        self._engines[place.model] = death.engines or self._engines.get(place.model, ())
        self._deaths.setdefault(place, _Deaths()).reports.append(death)
        if death.request:
            workers = self._requests.setdefault((place, death.request), set())
            starts_request = len(workers) == DEATHS - 1 and death.worker not in workers
            workers.add(death.worker)
            self._requests.move_to_end((place, death.request))
            while len(self._requests) > _REQUESTS_LIMIT:
                self._requests.popitem(last=False)
        self._note_change()
        return starts_request or (self._is_quarantined(place) and not was_quarantined)

    def record_success(self, place: Combination, request: str | None = None) -> None:
        """Reset the count of a combination after a finished job, and that of the job's request."""
        self._deaths.pop(place, None)
        self._requests.pop((place, request or ""), None)
        self._note_change()

    def models(self, device: str, offered: Collection[str]) -> list[str]:
        """Return the models in quarantine on a device with every engine that it offers for them."""
        engines: dict[str, set[str]] = {}
        for place in self._deaths:
            if place.device == device and self._is_quarantined(place):
                engines.setdefault(place.model, set()).add(place.engine)
        return [
            model
            for model, quarantined in engines.items()
            if not (set(self._engines.get(model, ())) & set(offered)) - quarantined
        ]

    def refusal(self, place: Combination, fingerprint: Callable[[], str]) -> Quarantined | None:
        """Return why a request may not run there now, None if it may. `fingerprint` is called only if it matters."""
        if self._is_quarantined(place):
            return Quarantined(
                f"{place.model} with {place.engine} on {place.device} is quarantined: its worker died {DEATHS} times "
                "without finishing a job.",
                f"Use another device, engine or model, or retry with POST /api/devices/{place.device}/release.",
            )
        if self._requests and len(self._requests.get((place, fingerprint()), ())) >= DEATHS:
            return Quarantined(
                f"This request is quarantined for {place.model} with {place.engine} on {place.device}: {DEATHS} "
                "workers died while it ran. Other requests are not affected.",
                "Change the prompt or the options, use another device or engine, or retry with "
                f"POST /api/devices/{place.device}/release.",
            )
        return None

    def problems(self) -> Iterator[tuple[str, TouchstoneError]]:
        """Yield for each combination with a death, and each quarantined request, its device and an error."""
        for place, deaths in self._deaths.items():
            last = deaths.reports[-1].error
            refusal = self.refusal(place, str) if self._is_quarantined(place) else None
            if refusal:
                refusal.detail += f" The last time: {last.detail}"
            yield place.device, refusal or last
        for (place, request), workers in self._requests.items():
            if len(workers) >= DEATHS and not self._is_quarantined(place):
                refused = self.refusal(place, lambda request=request: request)  # type: ignore[misc]
                assert refused, "it has the deaths"
                yield place.device, refused

    def release(self, device: str, model: str | None = None) -> None:
        """Lift the quarantine of a model and its requests on a device. Default: of all its models."""
        for place in [each for each in self._deaths if each.device == device and model in (None, each.model)]:
            del self._deaths[place]
        for key in [key for key in self._requests if key[0].device == device and model in (None, key[0].model)]:
            del self._requests[key]
        self._note_change()

    def _note_change(self) -> None:
        self.revision += 1
        self.is_empty = not self._deaths and not self._requests

    def _is_quarantined(self, place: Combination) -> bool:
        deaths = self._deaths.get(place)
        return deaths is not None and deaths.count >= DEATHS
