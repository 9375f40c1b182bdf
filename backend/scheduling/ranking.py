"""Ranking: the order in which `auto` takes devices and engines, by measured throughput, else the documented order.

Measured devices are sorted by speed among the places that the documented order gives them, so a device without a
measurement keeps its place. Figures that differ by less than the noise keep the documented order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.common.types import Device, Speed
from backend.devices import backends, split_id

NOISE = 0.05  # throughput varies by this much from minute to minute, however small the spread of a few runs


@dataclass(frozen=True)
class RankingQuery:
    """What to rank for: the model, the engines that may run it in their documented order, and the load."""

    model: str | None = None
    engines: tuple[str, ...] = ()
    several: bool = False  # several jobs of the model at once


ANY = RankingQuery()  # no model, so no measurement matches


@dataclass(frozen=True)
class SpeedFigure:
    """Throughput of a device with an engine, under the load of the query."""

    device: str
    engine: str
    value: float
    low: float
    high: float
    unit: str
    streams: int  # the value is the sum over these

    @property
    def words(self) -> str:
        """The value with its unit, as sentences show it."""
        digits = 0 if self.value >= 10 else 1
        alone = "" if self.streams == 1 else f" in {self.streams} streams"
        return f"{self.value:.{digits}f} {self.unit}{alone}"


def by_preference(devices: Iterable[Device], task: str, query: RankingQuery = ANY) -> list[Device]:
    """Return the ready devices with an engine for the task, best first, without emulated ones.

    The documented order applies, with two exceptions: devices slower than the CPU, and devices that may not lead before
    they are measured with the model, come after the CPU. Then measured devices are sorted by speed in their places.
    """
    ready = [d for d in devices if d.state == "ready" and d.kind != "emulated" and task in d.tasks]
    ordered = sorted(ready, key=lambda d: (_ranks_below_cpu(d, query), backends()[d.backend].rank, split_id(d.id)))
    best = [figure for d in ordered if (figure := fastest(d, query))]
    ranked = iter(by_speed(best))
    by_id = {d.id: d for d in ordered}
    measured = {figure.device for figure in best}
    return [by_id[next(ranked).device] if d.id in measured else d for d in ordered]


def by_speed(figures: Sequence[SpeedFigure]) -> list[SpeedFigure]:
    """Return the figures, fastest first; figures that are equal within the noise keep their order."""
    left, ranked = list(figures), list[SpeedFigure]()
    while left:
        fastest = max(left, key=lambda figure: figure.value)
        ranked.append(next(figure for figure in left if figure is fastest or equal(figure, fastest)))
        left.remove(ranked[-1])
    return ranked


def equal(first: SpeedFigure, second: SpeedFigure) -> bool:
    """Return whether two figures are equal within the noise: their spreads meet, or they differ by less than NOISE."""
    slow, fast = sorted((first, second), key=lambda figure: figure.value)
    return slow.unit == fast.unit and (slow.high >= fast.low or slow.value >= (1 - NOISE) * fast.value)


def figures(device: Device, query: RankingQuery) -> list[SpeedFigure]:
    """Return the figures of a device with the query's model, one for each engine, in the engines' documented order."""
    speeds = {speed.engine: speed for speed in device.speed if speed.model == query.model}
    return [_figure(device.id, speeds[name], query.several) for name in query.engines if name in speeds]


def fastest(device: Device, query: RankingQuery) -> SpeedFigure | None:
    """Return the figure of the fastest engine on a device, None without a measurement."""
    return next(iter(by_speed(figures(device, query))), None)


def engines_by_speed(device: Device, query: RankingQuery) -> list[str]:
    """Return the engines of the query in the order to try them: measured ones by speed, in their places."""
    measured_figures = figures(device, query)
    ranked, measured = iter(by_speed(measured_figures)), {figure.engine for figure in measured_figures}
    return [next(ranked).engine if name in measured else name for name in query.engines]


def explain_choice(ordered: Sequence[Device], query: RankingQuery) -> str:
    """Return a sentence, with figures, on why the first of these devices is chosen."""
    first, others = ordered[0], ordered[1:]
    won = fastest(first, query)
    if won is None:
        if not others:
            return f"{first.name} was chosen because it is the only device that is ready."
        order = "it comes first in the documented order, in which devices slower than the CPU come last"
        behind = [figure for device in others if (figure := fastest(device, query))]
        if behind:
            listed = ", ".join(f"{figure.device} ({figure.words})" for figure in behind)
            return f"{first.name} was chosen because {order}; measured devices behind it: {listed}."
        measured = f"; nothing was measured with {query.model} here" if query.model else ""
        return f"{first.name} was chosen because {order}{measured}."
    rivals = [
        figure
        for device in ordered
        for figure in figures(device, query)
        if figure.engine != won.engine or device != first
    ]
    unmeasured = [device.id for device in others if fastest(device, query) is None]
    rest = f"; not measured with it: {', '.join(unmeasured)}" if unmeasured else ""
    name = f"{first.id} with the engine {won.engine}"
    if not rivals:
        only = "the only one measured" if unmeasured else "the only device that is ready"
        return f"{name} was chosen because it is {only} with {query.model}: {won.words}{rest}."
    ahead = [figure for figure in rivals if figure.value > won.value]
    best = max(rivals, key=lambda figure: figure.value)
    if ahead or equal(won, best):
        return (
            f"{name} was chosen because it comes first among those that {query.model} runs on equally fast within the "
            f"noise: {won.words}, against {best.words} on {best.device} with {best.engine}{rest}."
        )
    return (
        f"{name} was chosen because it is the fastest measured with {query.model}: {won.words}, against {best.words} "
        f"on {best.device} with {best.engine}{rest}."
    )


def explain_engine(device: Device, query: RankingQuery) -> str:
    """Return why an engine is chosen on a requested device if speed decides; else an empty string."""
    measured = figures(device, query)
    won = next(iter(by_speed(measured)), None)
    others = [figure for figure in measured if figure is not won]
    if won is None or not others or equal(won, best := max(others, key=lambda figure: figure.value)):
        return ""
    return (
        f" The engine {won.engine} is the fastest measured there: {won.words}, against {best.words} by {best.engine}."
    )


def engine_reason(device: Device, query: RankingQuery) -> str:
    """Return a sentence on why the first engine of `engines_by_speed` is used on a device."""
    if len(query.engines) < 2:
        return f"It is the only engine that {device.id} offers for this model."
    if fastest_measured := explain_engine(device, query).strip():
        return fastest_measured
    measured = [f"{figure.engine} {figure.words}" for figure in figures(device, query)]
    if len(measured) > 1:
        return f"It comes first in the documented order; measured equal within the noise: {', '.join(measured)}."
    return f"It comes first in the documented order; `bench` measures it against {', '.join(query.engines[1:])}."


def _figure(device: str, speed: Speed, several: bool) -> SpeedFigure:
    low, high = speed.low or speed.value, speed.high or speed.value
    if several and speed.together is not None and speed.streams:
        scale = speed.together / speed.value  # the spread is that of one stream
        return SpeedFigure(device, speed.engine, speed.together, low * scale, high * scale, speed.unit, speed.streams)
    return SpeedFigure(device, speed.engine, speed.value, low, high, speed.unit, 1)


def _ranks_below_cpu(device: Device, query: RankingQuery) -> bool:
    """Return whether a device comes after an unmeasured CPU."""
    return device.note is not None or not (backends()[device.backend].leads_unmeasured or fastest(device, query))
