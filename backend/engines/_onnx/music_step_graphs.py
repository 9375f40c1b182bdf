"""Choose the graph of the music model for a device: the first that runs completely on it and agrees with the CPU.

Float32 is preferred to float16, because it gives the same tune for a seed on every device. Dynamic shapes are preferred
to fixed ones, which compute one row at a time, except where each shape is compiled. Keys and values in the device's own
memory, if it has some, are preferred to the host's.
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

GRAPH = graph_name(half=False, device=False)  # the graph of the CPU, which is the reference
# By whether it computes with fewer bits than float32. Float16 on the CPU itself differs by up to 0.1.
TOLERANCES = {False: TOLERANCE, True: 0.2}


@dataclass(frozen=True)
class Chosen:
    """A decoder on a device, its session and graph file, the evidence, and the number of CPU threads."""

    decoder: Decoder
    session: Any
    file: str
    placement: Placement
    threads: int | None = None


@dataclass(frozen=True)
class _GraphVariant:
    """One variant of the graph: precision, shapes, and where keys and values are."""

    half: bool
    fixed: bool
    keep: bool  # keys and values in the device's own memory

    @property
    def file(self) -> str:
        return graph_name(self.half, self.keep)


def choose_graph(place: OnnxPlace, weights: Weights, folder: Path, threads: int | None) -> Chosen:
    """Choose a graph. `threads`: the most to use; on the CPU the best number is measured.

    Raises ModelLoadFailed if no graph agrees with the CPU's logits, or ONNX Runtime's exception for the first graph.
    """
    if place.is_processor:
        return _tune_threads(place, weights, folder, threads)
    trusted = _processor(_cpu_place(place), weights, folder, threads).decoder
    best: Chosen | None = None
    errors: list[Exception] = []
    for variant in _graph_variants(place, folder):
        try:
            candidate = _load_and_verify(place, variant, weights, folder, threads, trusted)
        except Exception as error:  # noqa: BLE001 (its exceptions share no base; another graph may work)
            errors.append(error)
            continue
        if best is None or _share(candidate) > _share(best):
            best = candidate
        if _share(best) == 1:
            break
    if best is None:
        raise errors[0]
    return best


def _tune_threads(place: OnnxPlace, weights: Weights, folder: Path, threads: int | None) -> Chosen:
    from backend.common.system.resources import usable_threads
    from backend.tasks.music.thread_tuning import fastest_thread_count, thread_counts

    candidates = {
        count: _processor(place, weights, folder, count) for count in thread_counts(threads or usable_threads())
    }
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    count, measured = fastest_thread_count({count: candidate.decoder for count, candidate in candidates.items()})
    placement = candidates[count].placement
    return replace(candidates[count], placement=replace(placement, evidence=f"{placement.evidence} {measured}"))


def _processor(place: OnnxPlace, weights: Weights, folder: Path, threads: int | None) -> Chosen:
    from backend.tasks.music.decoder_onnx import HostDecoder

    session = place.session(folder / GRAPH, threads)
    return Chosen(HostDecoder(weights, session), session, GRAPH, place.placement([session]), threads)


def _cpu_place(place: OnnxPlace) -> OnnxPlace:
    """Return the CPU as a device of the same library."""
    facts = OnnxProvider(names=("cpu",))
    return replace(
        place, device="cpu", provider="CPUExecutionProvider", ep_device=None, provider_facts=facts, options={}
    )


def _graph_variants(place: OnnxPlace, folder: Path) -> Iterator[_GraphVariant]:
    for half in TOLERANCES:
        for fixed in (True, False) if place.compiles_shapes else (False, True):
            for keep in (True, False) if place.memory else (False,):
                if (folder / (variant := _GraphVariant(half, fixed, keep)).file).is_file():
                    yield variant


def _load_and_verify(
    place: OnnxPlace, variant: _GraphVariant, weights: Weights, folder: Path, threads: int | None, trusted: Decoder
) -> Chosen:
    """Compute some tokens on both devices. Raises ModelLoadFailed if they differ, and ONNX Runtime's exceptions."""
    from backend.tasks.music.agreement import check_agreement
    from backend.tasks.music.composer import TOKENS_MAX
    from backend.tasks.music.decoder import RowByRow
    from backend.tasks.music.decoder_onnx import fixed_shapes

    dimensions = fixed_shapes(TOKENS_MAX) if variant.fixed else None
    exact = {**(place.exact_options or {}), **place.options}
    session = place.session(folder / variant.file, threads, provider_options=exact, dimensions=dimensions)
    placement = place.placement([session])

    def make() -> Decoder:
        return _decoder(place, variant, weights, session)

    decoder = RowByRow(make) if variant.fixed else make()
    agreement = check_agreement(trusted, decoder, TOLERANCES[variant.half or place.rounds_inputs])
    placement = replace(placement, evidence=f"{placement.evidence} {agreement}")
    return Chosen(decoder, session, variant.file, placement, threads)


def _decoder(place: OnnxPlace, variant: _GraphVariant, weights: Weights, session: Any) -> Decoder:
    from backend.tasks.music.decoder_onnx import DeviceDecoder, HostDecoder

    if variant.keep:
        assert place.memory
        return DeviceDecoder(weights, session, place.memory, variant.fixed)
    return HostDecoder(weights, session, variant.fixed)


def _share(chosen: Chosen) -> float:
    """Return the share of nodes on the device; an unknown share counts as 1."""
    return 1.0 if chosen.placement.on_device is None else chosen.placement.on_device
