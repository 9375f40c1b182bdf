"""Evaluation of an exported model on held-out tunes, and of generated tunes against real ones. See docs/music.md."""

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

from backend.common.types import JsonObject
from backend.tasks.music import tokens
from backend.tasks.music.composer import compose_rows
from backend.tasks.music.decoder_torch import TorchDecoder
from backend.tasks.music.grid import Heading, Slot, TuneGrid
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.plan import FORMS, Plan
from backend.tasks.music.tools.train.batches import Batches
from backend.tasks.music.tools.train.measures import Copies, distance, duration_distribution, scale_share, texture
from backend.tasks.music.tools.train.model import Model
from backend.tasks.music.tools.train.ngram import NGram
from backend.tasks.music.weights import Weights, read_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TuneScore:
    """The scores of a tune: bits of all predicted tokens without and with the grid's mask, and the allowed mass."""

    number: int
    notes: int
    bits: float
    masked_bits: float
    legal: float
    tokens: int


def build_model(weights: Weights) -> Model:
    """Return the network in float32 with exported weights."""
    model = Model(weights.shape, 0.0, 0.0).eval()
    with torch.no_grad():
        for name, array in weights.arrays.items():
            model.weight(name).copy_(torch.from_numpy(array.astype(np.float32)))
    return model


@torch.no_grad()
def score_tunes(model: Model, batches: Batches, numbers: NDArray[np.int64]) -> list[TuneScore]:
    """Return the scores of real tunes with teacher forcing."""
    scores = []
    for number in numbers:
        ids, sides, targets, kinds = batches.batch(np.array([number]))
        logits = model(ids, sides)[0].double()
        counted = (kinds[0] > 1).numpy()
        mask = torch.from_numpy(_masks(ids[0].tolist(), kinds[0].tolist(), batches, int(number)))
        neg_log_probs = -torch.log_softmax(logits, -1)
        masked_neg_log_probs = -torch.log_softmax(logits.masked_fill(~mask, -math.inf), -1)
        target_column = targets[0][:, None]
        legal_mass = torch.softmax(logits, -1).mul(mask).sum(-1)
        counted_targets = targets[0].numpy()[counted]
        scores.append(
            TuneScore(
                int(number),
                int(((counted_targets >= tokens.PITCH) & (counted_targets < tokens.TIE)).sum()),
                float(neg_log_probs.gather(1, target_column)[:, 0][counted].sum()) / math.log(2),
                float(masked_neg_log_probs.gather(1, target_column)[:, 0][counted].sum()) / math.log(2),
                float(legal_mass[counted].sum()),
                int(counted.sum()),
            )
        )
    return scores


def _masks(ids: list[int], kinds: list[int], batches: Batches, number: int) -> NDArray[np.bool_]:
    complete = real_grid(batches, number)
    masks = np.ones((len(ids), tokens.VOCABULARY), bool)
    grid = TuneGrid(complete.heading)
    for position, token in enumerate(ids[: int(batches.length[number])]):
        grid.push(token)
        if kinds[position] > 1:
            masks[position] = grid.allowed_tokens()
    return masks


def real_grid(batches: Batches, number: int) -> TuneGrid:
    """Return a tune of the dataset as a complete grid."""
    ids, sides, _, _ = batches.batch(np.array([number]))
    ids_of_tune = ids[0].tolist()[: int(batches.length[number])]
    bars = tuple(token - tokens.BARS + 1 for token in ids_of_tune if tokens.BARS <= token < tokens.PICKUP)
    section_ids = [int(each[3]) - 1 for each in sides[0].tolist() if each[3]]
    total = ids_of_tune[4] - tokens.SECTIONS + 1
    first = section_ids[0] // 4
    heading = Heading(
        tokens.FORMS[ids_of_tune[1] - tokens.FORM], tokens.METERS[ids_of_tune[2] - tokens.METER],
        tokens.MODES[ids_of_tune[3] - tokens.MODE], bars, first, total - first - len(bars),
    )  # fmt: skip
    row = TuneGrid(heading)
    for token in ids_of_tune:
        row.push(token)
    return row


def bits_per_note(scored: Sequence[TuneScore], masked: bool = False) -> float:
    """Return the bits per note over all tunes."""
    return sum(each.masked_bits if masked else each.bits for each in scored) / max(
        1, sum(each.notes for each in scored)
    )


def bits_by_label(scored: Sequence[TuneScore], key: Callable[[int], str]) -> dict[str, float]:
    """Return the bits per note for each label of the tunes."""
    groups: dict[str, list[TuneScore]] = {}
    for each in scored:
        groups.setdefault(key(each.number), []).append(each)
    return {name: round(bits_per_note(each), 3) for name, each in sorted(groups.items())}


def score_ngram(batches: Batches, model: NGram, order: int, numbers: NDArray[np.int64]) -> list[TuneScore]:
    """Return the scores of an n-gram model."""
    scores = []
    for number in numbers:
        ids = _ids(batches, int(number))
        kinds = batches.batch(np.array([number]))[3][0].tolist()
        bits = sum(model.bits(ids, position + 1, order) for position in range(len(ids) - 1) if kinds[position] > 1)
        notes = sum(tokens.PITCH <= token < tokens.TIE for token in ids)
        scores.append(TuneScore(int(number), notes, bits, bits, 0.0, 0))
    return scores


def _ids(batches: Batches, number: int) -> list[int]:
    ids: list[int] = batches.batch(np.array([number]))[0][0].tolist()
    return ids[: int(batches.length[number])]


def evaluate(folder: Path, data: Path, device: str, samples: int, test: bool) -> JsonObject:
    """Return all results.

    `test` includes the test split, which should be used once. `samples` tunes per form are composed on `device`.
    """
    torch.set_num_threads(1)
    batches = Batches(data, "cpu")
    weights = read_weights(folder / "weights.safetensors")
    model = build_model(weights)
    ngram = NGram(7)
    for number in batches.select("train"):
        ngram.learn(_ids(batches, int(number)))
    results: JsonObject = {"parameters": int(sum(array.size for array in weights.arrays.values()))}
    forms = lambda number: tokens.FORMS[batches.form[number]]  # noqa: E731
    modes = lambda number: tokens.MODES[batches.mode[number]]  # noqa: E731
    for split in ("valid", "test") if test else ("valid",):
        numbers = batches.select(split)
        scored = score_tunes(model, batches, numbers)
        results[split] = {
            "bits per note": bits_per_note(scored),
            "bits per note, masked": bits_per_note(scored, masked=True),
            "legal mass": sum(each.legal for each in scored) / sum(each.tokens for each in scored),
            "by form": bits_by_label(scored, forms),
            "by mode": bits_by_label(scored, modes),
        }
        for order in (3, 5, 7):
            grams = score_ngram(batches, ngram, order, numbers)
            results[split][f"n-gram {order}"] = bits_per_note(grams)
            if order == 5:
                results[split]["n-gram 5 by form"] = bits_by_label(grams, forms)
        log.info("%s %s", split, results[split])
    decoder = TorchDecoder(weights, device)
    results["samples"] = _evaluate_samples(batches, decoder, folder, samples)
    return results


def _evaluate_samples(batches: Batches, decoder: Any, folder: Path, count: int) -> JsonObject:
    guard = CopyGuard.read(folder)
    real = {
        split: [real_grid(batches, int(number)) for number in batches.select(split)]
        for split in ("train", "valid", "test")
    }
    held_out = [*real["valid"], *real["test"]]
    all_real = [*real["train"], *held_out]
    rows: list[TuneGrid] = []
    random = np.random.default_rng(7)
    results: JsonObject = {"rhythm": {}, "scale": {}}
    for form in tokens.FORMS[1:]:
        real_of_form = [row for row in all_real if row.heading.form == form and row.heading.meter in FORMS[form]]
        headings = [real_of_form[pick].heading for pick in random.choice(len(real_of_form), count)]
        plans = [Plan(form, heading.meter, heading.mode, "D", 32) for heading in headings]
        generated = _compose(decoder, guard, plans, random)
        rows += generated
        held_out_of_form = [row for row in held_out if row.heading.form == form]
        results["rhythm"][form] = {
            "to all real": distance(duration_distribution(generated), duration_distribution(real_of_form)),
            "to held-out": distance(duration_distribution(generated), duration_distribution(held_out_of_form)),
            "held-out to all real": distance(
                duration_distribution(held_out_of_form), duration_distribution(real_of_form)
            ),
            "generated": duration_distribution(generated),
            "real": duration_distribution(real_of_form),
        }
        log.info("%s %s", form, list(results["rhythm"][form].values())[:3])
    for mode in tokens.MODES[1:]:
        generated = [row for row in rows if row.heading.mode == mode]
        if mode != "major":
            styles = [(form, meter) for form, meters in FORMS.items() for meter in meters]
            plans = [Plan(form, meter, mode, "D", 32) for form, meter in styles * max(1, count // len(styles))]
            generated += _compose(decoder, guard, plans, random)
        results["scale"][mode] = {
            "generated": scale_share(generated, mode),
            "held-out": scale_share([row for row in held_out if row.heading.mode == mode], mode),
            "all real": scale_share([row for row in all_real if row.heading.mode == mode], mode),
            "tunes": len(generated),
        }
        log.info("%s %s", mode, results["scale"][mode])
    results["texture"] = {"generated": texture(rows), "held-out": texture(held_out)}
    copies = Copies(real["train"])
    results["copying"] = {}
    for name, tunes in (("generated", rows), ("held-out", held_out)):
        longest = sorted(copies.longest(row) for row in tunes)
        results["copying"][name] = {
            **{f"{length} in a row": copies.share(tunes, length) for length in (8, 12, 16)},
            "longest, median": longest[len(longest) // 2],
            "longest, most": longest[-1],
        }
    results["exact bars"] = sum(row.slot is Slot.DONE for row in rows) / len(rows)
    return results


def _compose(decoder: Any, guard: CopyGuard, plans: Sequence[Plan], random: np.random.Generator) -> list[TuneGrid]:
    seeds = [int(seed) for seed in random.integers(2**31, size=len(plans))]
    return compose_rows(decoder, plans, seeds, guard=guard)
