"""The list of a library's cards, in which a card that cannot be described does not hide the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from backend.common.device_api import DetectedDevice
from backend.devices._mechanisms.identity import hardware_id

_TEXT_LIMIT = 500


@dataclass(frozen=True)
class _Watch:
    on_card: Callable[[int], None] = lambda position: None
    faults: Mapping[int, str] = field(default_factory=dict)


_watch = _Watch()


@contextlib.contextmanager
def watched_cards(on_card: Callable[[int], None], faults: Mapping[int, str]) -> Iterator[None]:
    """Call `on_card` with the position of each card before it is described, where there are several.

    `faults`: why cards are not to be described, by position: their description ended an earlier process.
    """
    global _watch
    _watch = _Watch(on_card, faults)
    try:
        yield
    finally:
        _watch = _Watch()


def describe_all(
    describe: Callable[[int], DetectedDevice],
    count: int,
    vendor: str,
    library: str,
    address: Callable[[int], str | None] = lambda position: None,
) -> list[DetectedDevice]:
    """Return the description of each position; a card whose description fails has the `fault` instead.

    `vendor` names such a card; `address`: optional, returns its PCI address. Raises what `describe` raises if it fails
    for all cards.
    """
    cards: list[DetectedDevice] = []
    failures: list[Exception] = []
    for position in range(count):
        try:
            if count > 1:
                _watch.on_card(position)
            if position in _watch.faults:
                raise _KnownFault(_watch.faults[position])
            cards.append(describe(position))
        except Exception as error:  # noqa: BLE001 (the libraries' exceptions have no common base class)
            failures.append(error)
            place = address(position)
            identity = {"pci": place} if place else {}
            cards.append(
                DetectedDevice(
                    name=f"{vendor} card {position}",
                    kind="gpu",
                    hardware_id=hardware_id(identity),
                    memory_bytes=None,
                    memory_free_bytes=None,
                    library=library,
                    position=position,
                    count=count,
                    identity=identity,
                    fault=_one_line(error),
                )
            )
    if len(failures) == count:
        raise failures[0]
    return cards


class _KnownFault(Exception):
    """The fault of an earlier process."""


def _one_line(error: Exception) -> str:
    if isinstance(error, _KnownFault):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:_TEXT_LIMIT]}" if lines else type(error).__name__
