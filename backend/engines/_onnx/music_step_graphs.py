"""Which graph of the music model a device gets: the first that it computes whole, and as the processor does.

Float32 comes before float16, since with it a seed's tune is the same on every device; any shape before fixed ones,
which take one row at a time, but not where each shape is compiled; keys and values in the device's own memory, where it
has some, before the host's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.common.device_api import OnnxProvider
from backend.common.types import Placement
from backend.engines._audio.tune_session import TOLERANCE
from backend.tasks.music.network import graph_name

if TYPE_CHECKING:
    from backend.devices._mechanisms.onnx_placement import OnnxPlace
    from backend.tasks.music.decoder import Decoder
    from backend.tasks.music.weights import Weights

GRAPH = graph_name(half=False, device=False)  # the processor's, with which every other is compared
# By whether it is computed with fewer bits than float32. Float16 on the processor itself is off by up to 0.1.
TOLERANCES = {False: TOLERANCE, True: 0.2}


@dataclass(frozen=True)
class Chosen:
    """A decoder on a device, the file that it computes, the evidence, and the threads of the processor."""

    decoder: Decoder
    file: str
    placement: Placement
    threads: int | None = None


@dataclass(frozen=True)
class _Way:
    """One way to compute a step."""

    half: bool
    fixed: bool
    keep: bool  # keys and values in the device's own memory

    @property
    def file(self) -> str:
        return graph_name(self.half, self.keep)


def choose(place: OnnxPlace, weights: Weights, folder: Path, threads: int | None) -> Chosen:
    """`threads` are the most to use. On the processor it is measured how many of them are best.

    Raises ModelLoadFailed where no graph gives the processor's logits, else what ONNX Runtime said of the first.
    """
    if place.is_processor:
        return _paced(place, weights, folder, threads)
    trusted = _processor(_beside(place), weights, folder, threads).decoder
    best: Chosen | None = None
    troubles: list[Exception] = []
    for way in _ways(place, folder):
        try:
            found = _tried(place, way, weights, folder, threads, trusted)
        except Exception as error:  # noqa: BLE001 (its exceptions share no base; another graph may do)
            troubles.append(error)
            continue
        if best is None or _share(found) > _share(best):
            best = found
        if _share(best) == 1:
            break
    if best is None:
        raise troubles[0]
    return best


def _paced(place: OnnxPlace, weights: Weights, folder: Path, threads: int | None) -> Chosen:
    from backend.common.system.resources import usable_threads
    from backend.tasks.music.thread_tuning import fastest_thread_count, thread_counts

    found = {count: _processor(place, weights, folder, count) for count in thread_counts(threads or usable_threads())}
    if len(found) == 1:
        return next(iter(found.values()))
    count, said = fastest_thread_count({count: one.decoder for count, one in found.items()})
    placement = found[count].placement
    return replace(found[count], placement=replace(placement, evidence=f"{placement.evidence} {said}"))


def _processor(place: OnnxPlace, weights: Weights, folder: Path, threads: int | None) -> Chosen:
    from backend.tasks.music.decoder_onnx import HostDecoder

    session = place.session(folder / GRAPH, threads)
    return Chosen(HostDecoder(weights, session), GRAPH, place.placement([session]), threads)


def _beside(place: OnnxPlace) -> OnnxPlace:
    """The processor, through the same library."""
    facts = OnnxProvider(names=("cpu",))
    return replace(
        place, device="cpu", provider="CPUExecutionProvider", ep_device=None, provider_facts=facts, options={}
    )


def _ways(place: OnnxPlace, folder: Path) -> Iterator[_Way]:
    for half in TOLERANCES:
        for fixed in (True, False) if place.compiles_shapes else (False, True):
            for keep in (True, False) if place.memory else (False,):
                if (folder / (way := _Way(half, fixed, keep)).file).is_file():
                    yield way


def _tried(
    place: OnnxPlace, way: _Way, weights: Weights, folder: Path, threads: int | None, trusted: Decoder
) -> Chosen:
    """Computes some tokens both ways. Raises ModelLoadFailed where they differ, and what ONNX Runtime raises."""
    from backend.tasks.music.agreement import check_agreement
    from backend.tasks.music.composer import TOKENS_MAX
    from backend.tasks.music.decoder import RowByRow
    from backend.tasks.music.decoder_onnx import fixed_shapes

    dimensions = fixed_shapes(TOKENS_MAX) if way.fixed else None
    exact = {**(place.exact_options or {}), **place.options}
    session = place.session(folder / way.file, threads, provider_options=exact, dimensions=dimensions)
    placement = place.placement([session])

    def make() -> Decoder:
        return _decoder(place, way, weights, session)

    decoder = RowByRow(make) if way.fixed else make()
    said = check_agreement(trusted, decoder, TOLERANCES[way.half or place.rounds_inputs])
    return Chosen(decoder, way.file, replace(placement, evidence=f"{placement.evidence} {said}"), threads)


def _decoder(place: OnnxPlace, way: _Way, weights: Weights, session: Any) -> Decoder:
    from backend.tasks.music.decoder_onnx import DeviceDecoder, HostDecoder

    if way.keep:
        assert place.memory
        return DeviceDecoder(weights, session, place.memory, way.fixed)
    return HostDecoder(weights, session, way.fixed)


def _share(chosen: Chosen) -> float:
    """Of its nodes on the device; one that is not told counts as whole."""
    return 1.0 if chosen.placement.on_device is None else chosen.placement.on_device
