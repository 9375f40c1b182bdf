"""Measures exported weights: on held-out tunes, on tunes that they compose, against real ones. See docs/music.md."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.tasks.music import tokens
from backend.tasks.music.composer import compose_rows
from backend.tasks.music.decoder_torch import TorchDecoder
from backend.tasks.music.grid import Heading, Slot, TuneGrid
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.plan import FORMS, Plan
from backend.tasks.music.tools.train.batches import Batches
from backend.tasks.music.tools.train.measures import Copies, distance, durations, in_scale, texture
from backend.tasks.music.tools.train.model import Model
from backend.tasks.music.tools.train.ngram import NGram
from backend.tasks.music.weights import Weights, read_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """Bits of every predicted token of a tune, without and with the grid's mask, and the mass that it allows."""

    number: int
    notes: int
    bits: float
    masked_bits: float
    legal: float
    tokens: int


def model_of(weights: Weights) -> Model:
    """The network in float32 with exported weights."""
    model = Model(weights.shape, 0.0, 0.0).eval()
    with torch.no_grad():
        for name, array in weights.arrays.items():
            model.weight(name).copy_(torch.from_numpy(array.astype(np.float32)))
    return model


@torch.no_grad()
def score(model: Model, batches: Batches, numbers: NDArray[np.int64]) -> list[Scored]:
    """Teacher forcing over real tunes."""
    found = []
    for number in numbers:
        ids, sides, targets, kinds = batches.batch(np.array([number]))
        logits = model(ids, sides)[0].double()
        counted = (kinds[0] > 1).numpy()
        mask = torch.from_numpy(_masks(ids[0].tolist(), kinds[0].tolist(), batches, int(number)))
        lost = -torch.log_softmax(logits, -1)
        kept = -torch.log_softmax(logits.masked_fill(~mask, -math.inf), -1)
        picked = targets[0][:, None]
        shares = torch.softmax(logits, -1).mul(mask).sum(-1)
        chosen = targets[0].numpy()[counted]
        found.append(
            Scored(
                int(number),
                int(((chosen >= tokens.PITCH) & (chosen < tokens.TIE)).sum()),
                float(lost.gather(1, picked)[:, 0][counted].sum()) / math.log(2),
                float(kept.gather(1, picked)[:, 0][counted].sum()) / math.log(2),
                float(shares[counted].sum()),
                int(counted.sum()),
            )
        )
    return found


def _masks(ids: list[int], kinds: list[int], batches: Batches, number: int) -> NDArray[np.bool_]:
    row = real_row(batches, number)
    masks = np.ones((len(ids), tokens.VOCABULARY), bool)
    fresh = TuneGrid(row.heading)
    for at, token in enumerate(ids[: int(batches.length[number])]):
        fresh.push(token)
        if kinds[at] > 1:
            masks[at] = fresh.allowed_tokens()
    return masks


def real_row(batches: Batches, number: int) -> TuneGrid:
    """A tune of the data as a complete row."""
    ids, sides, _, _ = batches.batch(np.array([number]))
    own = ids[0].tolist()[: int(batches.length[number])]
    bars = tuple(token - tokens.BARS + 1 for token in own if tokens.BARS <= token < tokens.PICKUP)
    places = [int(each[3]) - 1 for each in sides[0].tolist() if each[3]]
    total = own[4] - tokens.SECTIONS + 1
    first = places[0] // 4
    heading = Heading(
        tokens.FORMS[own[1] - tokens.FORM], tokens.METERS[own[2] - tokens.METER], tokens.MODES[own[3] - tokens.MODE],
        bars, first, total - first - len(bars),
    )  # fmt: skip
    row = TuneGrid(heading)
    for token in own:
        row.push(token)
    return row


def per_note(scored: Sequence[Scored], masked: bool = False) -> float:
    """Bits per note over tunes."""
    return sum(one.masked_bits if masked else one.bits for one in scored) / max(1, sum(one.notes for one in scored))


def grouped(scored: Sequence[Scored], key: Callable[[int], str]) -> dict[str, float]:
    """Bits per note by a label of the tune."""
    groups: dict[str, list[Scored]] = {}
    for one in scored:
        groups.setdefault(key(one.number), []).append(one)
    return {name: round(per_note(each), 3) for name, each in sorted(groups.items())}


def ngram_scores(batches: Batches, model: NGram, order: int, numbers: NDArray[np.int64]) -> list[Scored]:
    """The same for an n-gram."""
    found = []
    for number in numbers:
        own = _ids(batches, int(number))
        kinds = batches.batch(np.array([number]))[3][0].tolist()
        bits = sum(model.bits(own, at + 1, order) for at in range(len(own) - 1) if kinds[at] > 1)
        notes = sum(tokens.PITCH <= token < tokens.TIE for token in own)
        found.append(Scored(int(number), notes, bits, bits, 0.0, 0))
    return found


def _ids(batches: Batches, number: int) -> list[int]:
    own: list[int] = batches.batch(np.array([number]))[0][0].tolist()
    return own[: int(batches.length[number])]


def evaluate(folder: Path, data: Path, device: str, samples: int, test: bool) -> dict[str, Any]:
    """The whole table.

    `test` reads the test tunes, which is to be done once; `samples` tunes of each form are composed on `device`.
    """
    torch.set_num_threads(1)
    batches = Batches(data, "cpu")
    weights = read_weights(folder / "weights.safetensors")
    model = model_of(weights)
    ngram = NGram(7)
    for number in batches.of("train"):
        ngram.learn(_ids(batches, int(number)))
    found: dict[str, Any] = {"parameters": int(sum(array.size for array in weights.arrays.values()))}
    forms = lambda number: tokens.FORMS[batches.form[number]]  # noqa: E731
    modes = lambda number: tokens.MODES[batches.mode[number]]  # noqa: E731
    for split in ("valid", "test") if test else ("valid",):
        numbers = batches.of(split)
        scored = score(model, batches, numbers)
        found[split] = {
            "bits per note": per_note(scored),
            "bits per note, masked": per_note(scored, masked=True),
            "legal mass": sum(one.legal for one in scored) / sum(one.tokens for one in scored),
            "by form": grouped(scored, forms),
            "by mode": grouped(scored, modes),
        }
        for order in (3, 5, 7):
            grams = ngram_scores(batches, ngram, order, numbers)
            found[split][f"n-gram {order}"] = per_note(grams)
            if order == 5:
                found[split]["n-gram 5 by form"] = grouped(grams, forms)
        log.info("%s %s", split, found[split])
    decoder = TorchDecoder(weights, device)
    found["samples"] = _samples(batches, decoder, folder, samples)
    return found


def _samples(batches: Batches, decoder: Any, folder: Path, count: int) -> dict[str, Any]:
    guard = CopyGuard.read(folder)
    real = {
        split: [real_row(batches, int(number)) for number in batches.of(split)] for split in ("train", "valid", "test")
    }
    held = [*real["valid"], *real["test"]]
    everything = [*real["train"], *held]
    rows: list[TuneGrid] = []
    random = np.random.default_rng(7)
    found: dict[str, Any] = {"rhythm": {}, "scale": {}}
    for form in tokens.FORMS[1:]:
        alike = [row for row in everything if row.heading.form == form and row.heading.meter in FORMS[form]]
        headings = [alike[pick].heading for pick in random.choice(len(alike), count)]
        plans = [Plan(form, heading.meter, heading.mode, "D", 32) for heading in headings]
        own = _composed(decoder, guard, plans, random)
        rows += own
        held_alike = [row for row in held if row.heading.form == form]
        found["rhythm"][form] = {
            "to all real": distance(durations(own), durations(alike)),
            "to held-out": distance(durations(own), durations(held_alike)),
            "held-out to all real": distance(durations(held_alike), durations(alike)),
            "generated": durations(own),
            "real": durations(alike),
        }
        log.info("%s %s", form, list(found["rhythm"][form].values())[:3])
    for mode in tokens.MODES[1:]:
        own = [row for row in rows if row.heading.mode == mode]
        if mode != "major":
            more = [(form, meter) for form, meters in FORMS.items() for meter in meters]
            plans = [Plan(form, meter, mode, "D", 32) for form, meter in more * max(1, count // len(more))]
            own += _composed(decoder, guard, plans, random)
        found["scale"][mode] = {
            "generated": in_scale(own, mode),
            "held-out": in_scale([row for row in held if row.heading.mode == mode], mode),
            "all real": in_scale([row for row in everything if row.heading.mode == mode], mode),
            "tunes": len(own),
        }
        log.info("%s %s", mode, found["scale"][mode])
    found["texture"] = {"generated": texture(rows), "held-out": texture(held)}
    copies = Copies(real["train"])
    found["copying"] = {}
    for name, tunes in (("generated", rows), ("held-out", held)):
        longest = sorted(copies.longest(row) for row in tunes)
        found["copying"][name] = {
            **{f"{length} in a row": copies.share(tunes, length) for length in (8, 12, 16)},
            "longest, median": longest[len(longest) // 2],
            "longest, most": longest[-1],
        }
    found["exact bars"] = sum(row.slot is Slot.DONE for row in rows) / len(rows)
    return found


def _composed(decoder: Any, guard: CopyGuard, plans: Sequence[Plan], random: np.random.Generator) -> list[TuneGrid]:
    seeds = [int(seed) for seed in random.integers(2**31, size=len(plans))]
    return compose_rows(decoder, plans, seeds, guard=guard)
