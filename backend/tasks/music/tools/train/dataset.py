"""Tokenization of tunes with their side ids, and the dataset: one .npz, split into sets by cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.tasks.music import tokens
from backend.tasks.music.grid import SIDES, Heading, Slot, TuneGrid
from backend.tasks.music.tools.train.clusters import find_clusters
from backend.tasks.music.tools.train.normalise import Event, UnusableTune, WrittenSection, WrittenTune

SPLITS = ("train", "valid", "test")
SHARE = 0.055  # fraction of the tunes in each of valid and test
RELEASED = Path(__file__).parent / "held-out.json"  # names of the tunes held out from the released weights
KINDS = {Slot.PICKUP: 1, Slot.PITCH: 2, Slot.DURATION: 3}  # the kind of a target; 0 is a forced token
# The replaced scale degrees when a tune is converted to a parallel mode.
PARALLEL = {
    ("major", "mixolydian"): {11: 10},
    ("major", "dorian"): {4: 3, 11: 10},
    ("minor", "dorian"): {8: 9},
}
SCALES = {
    "major": {0, 2, 4, 5, 7, 9, 11}, "minor": {0, 2, 3, 5, 7, 8, 10},
    "dorian": {0, 2, 3, 5, 7, 9, 10}, "mixolydian": {0, 2, 4, 5, 7, 9, 10},
}  # fmt: skip


@dataclass(frozen=True)
class Encoded:
    """A tokenized tune: ids [tokens], sides [tokens, SIDES], and the kind of each token's successor [tokens]."""

    ids: NDArray[np.int16]
    sides: NDArray[np.int16]
    kinds: NDArray[np.int8]
    illegal: int  # number of tokens that the grid's mask does not allow


def encode(tune: WrittenTune) -> Encoded:
    """Tokenize a tune. Raises Unusable("grid") for a rhythm that the durations cannot represent."""
    runs = _runs(tune.sections)
    first, sections = max(runs, key=lambda run: len(run[1]))
    after = len(tune.sections) - first - len(sections)
    bars = tuple(len(section.bars) for section in sections)
    row = TuneGrid(Heading(tune.form, tune.meter, tune.mode, bars, first, after))
    ids: list[int] = []
    sides: list[tuple[int, ...]] = []
    kinds: list[int] = []
    illegal = 0
    for token in _tokens(sections, row):
        kinds.append(KINDS.get(row.slot, 0))
        illegal += row.slot is not Slot.FORCED and not row.allowed_tokens()[token]
        row.push(token)
        ids.append(token)
        sides.append(row.side_ids())
    if row.slot is not Slot.DONE:
        raise UnusableTune("grid")
    return Encoded(np.array(ids, np.int16), np.array(sides, np.int16), np.array([*kinds[1:], 0], np.int8), illegal)


def _runs(sections: Sequence[WrittenSection | None]) -> list[tuple[int, list[WrittenSection]]]:
    """Return the runs of consecutive usable sections, each with the index of its first section."""
    runs: list[tuple[int, list[WrittenSection]]] = []
    for number, section in enumerate(sections):
        if section is None:
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == number:
            runs[-1][1].append(section)
        else:
            runs.append((number, [section]))
    return runs


def _tokens(sections: Sequence[WrittenSection], row: TuneGrid) -> Iterator[int]:
    for section in sections:
        while row.slot is Slot.FORCED:
            yield row.forced_token
        pickup = sum(event.ticks for event in section.pickup)
        if pickup not in tokens.PICKUPS:
            raise UnusableTune("grid")
        yield tokens.PICKUP + tokens.PICKUPS.index(pickup)
        for event in (event for bar in (section.pickup, *section.bars) for event in bar):
            if row.slot is not Slot.PITCH:
                raise UnusableTune("bars")
            yield from _event(event, row)


def _event(event: Event, row: TuneGrid) -> Iterator[int]:
    token = tokens.REST if event.pitch is None else tokens.TIE if event.tie else tokens.pitch_token(event.pitch)
    remaining = event.ticks
    while remaining:
        fits = [ticks for ticks in tokens.DURATIONS if ticks == remaining or (ticks < remaining and ticks % 3 == 0)]
        if not fits or row.slot is not Slot.PITCH:
            raise UnusableTune("grid")
        yield token
        yield tokens.DURATION + tokens.DURATIONS.index(fits[-1])
        remaining -= fits[-1]
        token = token if token == tokens.REST else tokens.TIE


def written_pitches(tune: WrittenTune) -> list[int]:
    """Return the pitches of a tune's notes in written order."""
    events = [event for section in tune.sections if section for bar in (section.pickup, *section.bars) for event in bar]
    return [event.pitch for event in events if event.pitch is not None and not event.tie]


def convert_mode(tune: WrittenTune, mode: str) -> WrittenTune | None:
    """Return the tune in a parallel mode; None if it has chromatic notes or there is no rule for the mode."""
    degree_map = PARALLEL.get((tune.mode, mode))
    if degree_map is None or any(pitch % 12 not in SCALES[tune.mode] for pitch in written_pitches(tune)):
        return None

    def moved(event: Event) -> Event:
        if event.pitch is None:
            return event
        return replace(event, pitch=event.pitch - event.pitch % 12 + degree_map.get(event.pitch % 12, event.pitch % 12))

    def section(written: WrittenSection) -> WrittenSection:
        bars = tuple(tuple(moved(event) for event in bar) for bar in written.bars)
        return WrittenSection(tuple(moved(event) for event in written.pickup), bars)

    return replace(tune, mode=mode, sections=tuple(part and section(part) for part in tune.sections))


def build_dataset(tunes: Sequence[WrittenTune], path: Path, seed: int | None = None) -> dict[str, int]:
    """Encode, cluster and split the tunes, write the dataset and return counts.

    `seed` is optional: draws a new split; default: the released one. In the file, `start` is the first token of each
    tune; `made` marks tunes that were converted to another mode (train only); `cluster` is the cluster id.
    """
    # Complete and longer variants first, since the first of several duplicates is kept.
    tunes = sorted(tunes, key=lambda tune: (None in tune.sections, -len(written_pitches(tune)), tune.name))
    clusters = find_clusters([written_pitches(tune) for tune in tunes])
    names: set[str] = set()
    if seed is None:
        split, names = _load_released_split(tunes, clusters.cluster)
    else:
        split = _draw_split(clusters.cluster, clusters.duplicates, seed)
    rows: list[tuple[WrittenTune, Encoded, int, bool, int]] = []
    counts = {"tunes": len(tunes), "clusters": len(set(clusters.cluster)), "duplicates": len(clusters.duplicates)}
    for number, tune in enumerate(tunes):
        part = split[clusters.cluster[number]]
        if (
            number in clusters.duplicates
            or (part and None in tune.sections)
            or (part and names and tune.name not in names)
        ):
            continue
        variants = [(tune, False)]
        if part == 0:
            variants += [(other, True) for mode in ("mixolydian", "dorian") if (other := convert_mode(tune, mode))]
        for variant, made in variants:
            try:
                encoded = encode(variant)
            except UnusableTune:
                counts["unspelled"] = counts.get("unspelled", 0) + 1
                break
            if encoded.illegal:
                counts["illegal"] = counts.get("illegal", 0) + 1
                break
            rows.append((variant, encoded, part, made, clusters.cluster[number]))
    for number, name in enumerate(SPLITS):
        chosen = [row for row in rows if row[2] == number and not row[3]]
        counts[name] = len(chosen)
        counts[f"{name} tokens"] = sum(len(row[1].ids) for row in chosen)
        counts[f"{name} notes"] = sum(
            int(((row[1].ids >= tokens.PITCH) & (row[1].ids < tokens.TIE)).sum()) for row in chosen
        )
    counts["made"] = sum(row[3] for row in rows)
    np.savez_compressed(
        path,
        ids=np.concatenate([row[1].ids for row in rows]),
        sides=np.concatenate([row[1].sides for row in rows]),
        kinds=np.concatenate([row[1].kinds for row in rows]),
        start=np.cumsum([0, *(len(row[1].ids) for row in rows)]),
        split=np.array([row[2] for row in rows], np.int8),
        made=np.array([row[3] for row in rows]),
        form=np.array([tokens.FORMS.index(row[0].form) for row in rows], np.int8),
        meter=np.array([tokens.METERS.index(row[0].meter) for row in rows], np.int8),
        mode=np.array([tokens.MODES.index(row[0].mode) for row in rows], np.int8),
        cluster=np.array([row[4] for row in rows]),
        source=np.array([row[0].name for row in rows]),
        side_sizes=np.array(SIDES),
    )
    return counts


def _load_released_split(tunes: Sequence[WrittenTune], cluster: Sequence[int]) -> tuple[dict[int, int], set[str]]:
    """Return the released split: the index in SPLITS of each cluster, and the names of the held-out tunes."""
    lists = json.loads(RELEASED.read_text("utf-8"))
    part = {name: SPLITS.index(split) for split in lists for name in lists[split]}
    split = dict.fromkeys(cluster, 0)
    for tune, cluster_id in zip(tunes, cluster, strict=True):
        split[cluster_id] = max(split[cluster_id], part.get(tune.name, 0))
    return split, set(part)


def _draw_split(cluster: Sequence[int], duplicates: frozenset[int], seed: int) -> dict[int, int]:
    """Return a random split: the index in SPLITS of each cluster."""
    sizes: dict[int, int] = {}
    for number, cluster_id in enumerate(cluster):
        sizes[cluster_id] = sizes.get(cluster_id, 0) + (number not in duplicates)
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    target_size = SHARE * sum(sizes.values())
    split = dict.fromkeys(order, 0)
    taken = [0.0, 0.0, 0.0]
    for cluster_id in order:
        for part in (1, 2):
            # Large clusters are families of common tunes; they stay in the training set.
            if taken[part] < target_size and sizes[cluster_id] <= 4:
                split[cluster_id] = part
                taken[part] += sizes[cluster_id]
                break
    return split
