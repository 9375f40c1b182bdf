"""The order in which `auto` takes devices and engines: by what was measured here, else by the documented order.

What was measured with the model is ordered by speed, in the places that the documented order gives to the measured
ones; so a device that was not measured keeps its place. Within the noise nothing is ranked: the documented order stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.common.types import Device, Speed
from backend.devices import backends, split_id

NOISE = 0.05  # a machine's pace changes by that much from one minute to another, whatever the spread of a few runs


@dataclass(frozen=True)
class RankingQuery:
    """What is to be run: the model, the engines that may run it in their documented order, and under which load."""

    model: str | None = None
    engines: tuple[str, ...] = ()
    several: bool = False  # several jobs of the model at once


ANY = RankingQuery()  # nothing in particular, of which nothing was measured


@dataclass(frozen=True)
class SpeedFigure:
    """How fast a device is with an engine, under the load that was asked about."""

    device: str
    engine: str
    value: float
    low: float
    high: float
    unit: str
    streams: int  # of which the value is the sum

    @property
    def words(self) -> str:
        """The value as it is said."""
        digits = 0 if self.value >= 10 else 1
        alone = "" if self.streams == 1 else f" in {self.streams} streams"
        return f"{self.value:.{digits}f} {self.unit}{alone}"


def by_preference(devices: Iterable[Device], task: str, wish: RankingQuery = ANY) -> list[Device]:
    """Ready devices with an engine for the task, best first; emulated ones are never chosen by themselves.

    The documented order, except that what computes more slowly than the processor comes after it, and so does what may
    not lead before it was measured with the model; then the measured ones by their speed, in the places they have.
    """
    ready = [d for d in devices if d.state == "ready" and d.kind != "emulated" and task in d.tasks]
    ordered = sorted(ready, key=lambda d: (_behind(d, wish), backends()[d.backend].rank, split_id(d.id)))
    best = [found for d in ordered if (found := fastest(d, wish))]
    ranked = iter(by_speed(best))
    of = {d.id: d for d in ordered}
    measured = {figure.device for figure in best}
    return [of[next(ranked).device] if d.id in measured else d for d in ordered]


def by_speed(figures: Sequence[SpeedFigure]) -> list[SpeedFigure]:
    """The fastest first; of those that are equal within the noise, the one that stood first."""
    left, ranked = list(figures), list[SpeedFigure]()
    while left:
        fastest = max(left, key=lambda figure: figure.value)
        ranked.append(next(figure for figure in left if figure is fastest or equal(figure, fastest)))
        left.remove(ranked[-1])
    return ranked


def equal(one: SpeedFigure, other: SpeedFigure) -> bool:
    """Whether two figures cannot be told apart: their spreads meet, or they differ by less than a machine's pace."""
    slow, fast = sorted((one, other), key=lambda figure: figure.value)
    return slow.unit == fast.unit and (slow.high >= fast.low or slow.value >= (1 - NOISE) * fast.value)


def figures(device: Device, wish: RankingQuery) -> list[SpeedFigure]:
    """What was measured on a device with the model, one of each engine, in the engines' documented order."""
    known = {speed.engine: speed for speed in device.speed if speed.model == wish.model}
    return [_figure(device.id, known[name], wish.several) for name in wish.engines if name in known]


def fastest(device: Device, wish: RankingQuery) -> SpeedFigure | None:
    """The figure of the engine that is fastest on a device; None where nothing was measured."""
    return next(iter(by_speed(figures(device, wish))), None)


def engines_by_speed(device: Device, wish: RankingQuery) -> list[str]:
    """The engines of the wish as they are to be tried: measured ones by their speed, in the places that they have."""
    known = figures(device, wish)
    ranked, measured = iter(by_speed(known)), {figure.engine for figure in known}
    return [next(ranked).engine if name in measured else name for name in wish.engines]


def explain_choice(ordered: Sequence[Device], wish: RankingQuery) -> str:
    """In a sentence with its figures why the first of these devices is taken."""
    first, others = ordered[0], ordered[1:]
    won = fastest(first, wish)
    if won is None:
        if not others:
            return f"{first.name} was chosen because it is the only device that is ready."
        order = "it comes first in the documented order, in which devices slower than the CPU come last"
        known = [found for device in others if (found := fastest(device, wish))]
        if known:
            seen = ", ".join(f"{found.device} ({found.words})" for found in known)
            return f"{first.name} was chosen because {order}; of those behind it were measured: {seen}."
        measured = f"; nothing was measured with {wish.model} here" if wish.model else ""
        return f"{first.name} was chosen because {order}{measured}."
    rivals = [one for device in ordered for one in figures(device, wish) if one.engine != won.engine or device != first]
    unmeasured = [device.id for device in others if fastest(device, wish) is None]
    rest = f"; not measured with it: {', '.join(unmeasured)}" if unmeasured else ""
    name = f"{first.id} with the engine {won.engine}"
    if not rivals:
        only = "the only one measured" if unmeasured else "the only device that is ready"
        return f"{name} was chosen because it is {only} with {wish.model}: {won.words}{rest}."
    ahead = [one for one in rivals if one.value > won.value]
    best = max(rivals, key=lambda one: one.value)
    if ahead or equal(won, best):
        return (
            f"{name} was chosen because it comes first among those that {wish.model} runs on equally fast within the "
            f"noise: {won.words}, against {best.words} on {best.device} with {best.engine}{rest}."
        )
    return (
        f"{name} was chosen because it is the fastest measured with {wish.model}: {won.words}, against {best.words} on "
        f"{best.device} with {best.engine}{rest}."
    )


def explain_engine(device: Device, wish: RankingQuery) -> str:
    """Why an engine is taken on a device that was asked for, if it is for its speed; else empty."""
    known = figures(device, wish)
    won = next(iter(by_speed(known)), None)
    others = [one for one in known if one is not won]
    if won is None or not others or equal(won, best := max(others, key=lambda one: one.value)):
        return ""
    return (
        f" The engine {won.engine} is the fastest measured there: {won.words}, against {best.words} by {best.engine}."
    )


def _figure(device: str, speed: Speed, several: bool) -> SpeedFigure:
    low, high = speed.low or speed.value, speed.high or speed.value
    if several and speed.together is not None and speed.streams:
        scale = speed.together / speed.value  # the same spread as alone
        return SpeedFigure(device, speed.engine, speed.together, low * scale, high * scale, speed.unit, speed.streams)
    return SpeedFigure(device, speed.engine, speed.value, low, high, speed.unit, 1)


def _behind(device: Device, wish: RankingQuery) -> bool:
    """Whether it comes after the processor where that was not measured."""
    return device.note is not None or not (backends()[device.backend].leads_unmeasured or fastest(device, wish))
