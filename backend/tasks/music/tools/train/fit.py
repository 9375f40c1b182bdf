"""Training of one configuration, with a checkpoint of the best validation score."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from backend.tasks.music import tokens
from backend.tasks.music.network import Shape
from backend.tasks.music.tools.train.batches import Batches, count_notes
from backend.tasks.music.tools.train.model import Model


@dataclass(frozen=True)
class Config:
    """The hyperparameters of a run; the defaults are those of the released weights.

    `balance` 0 samples each tune once per epoch, 1 samples all forms equally often; `mode_balance` likewise.
    """

    width: int = 256
    layers: int = 6
    heads: int = 8
    hidden: int = 1024
    dropout: float = 0.2
    attention_dropout: float = 0.1
    batch: int = 32
    steps: int = 3000
    rate: float = 1e-3
    warmup: int = 200
    decay: float = 0.5
    balance: float = 0.0
    mode_balance: float = 0.0
    made: float = 0.0  # fraction of added tunes that were converted to another mode
    unnamed: float = 0.05  # probability of replacing the form, or the mode, by "any"
    noise: float = 0.1  # probability of masking a token id
    blind: float = 0.15  # probability of masking an echo
    average: float = 0.998  # decay of the exponential moving average of the weights
    seed: int = 1

    @property
    def shape(self) -> Shape:
        """The shape of the network."""
        return Shape(self.width, self.layers, self.heads, self.hidden)


def fit(data: Path, folder: Path, config: Config, device: str, limit_s: float = math.inf) -> float:
    """Train, write best.pt and curve.json to `folder`, and return the best validation score in bits per note.

    `limit_s` shortens the schedule if the steps would take longer; such a run is not reproducible.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    random = np.random.default_rng(config.seed)
    batches = Batches(data, device)
    model = Model(config.shape, config.dropout, config.attention_dropout).to(device)
    average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = _optimizer(model, config, device)
    weights = _weights(batches, config)
    transposed = batches.select("train", made=True)
    curve: list[dict[str, float]] = []
    best, step, started = math.inf, 0, time.monotonic()
    train = batches.select("train")
    finished = False
    while not finished:
        sampled = random.choice(train, len(train), p=weights) if config.balance or config.mode_balance else train
        extra = random.choice(transposed, int(config.made * len(train)), replace=False)
        for numbers in batches.epoch(np.concatenate([sampled, extra]), config.batch, random):
            schedule_share = max(step / config.steps, (time.monotonic() - started) / limit_s)
            rate = (
                config.rate
                * min(1, (step + 1) / config.warmup)
                * (0.02 + 0.98 * (1 + math.cos(math.pi * min(1, schedule_share))) / 2)
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = _train_step(model, optimizer, batches, numbers, config)
            keep = min(config.average, (step + 1) / (step + 10))
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.values()), [weight.detach() for weight in model.parameters()], 1 - keep
                )
            step += 1
            finished = schedule_share >= 1
            if step % 250 == 0 or finished:
                bits = _with_weights(model, average, lambda: bits_per_note(model, batches, batches.select("valid")))
                curve.append({"step": step, "seconds": time.monotonic() - started, "loss": float(loss), "valid": bits})
                (folder / "curve.json").write_text(json.dumps({"config": asdict(config), "curve": curve}), "utf-8")
                if bits < best:
                    best = bits
                    torch.save(
                        {"config": asdict(config), "weights": average, "step": step, "valid": bits}, folder / "best.pt"
                    )
            if finished:
                break
    return best


def _optimizer(model: Model, config: Config, device: str) -> torch.optim.Optimizer:
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": config.decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.rate, betas=(0.9, 0.98), fused=device.startswith("cuda"))


def _weights(batches: Batches, config: Config) -> NDArray[np.float64]:
    """Return the sampling probability of each training tune; rare forms and modes have higher ones."""
    train = batches.select("train")
    weights = np.ones(len(train))
    for labels, power in ((batches.form[train], config.balance), (batches.mode[train], config.mode_balance)):
        weights *= (1.0 / np.bincount(labels, minlength=16)[labels]) ** power
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _train_step(
    model: Model, optimizer: torch.optim.Optimizer, batches: Batches, numbers: NDArray[np.int64], config: Config
) -> Tensor:
    model.train()
    ids, sides, targets, kinds = batches.batch(numbers)
    ids, sides = _mask_inputs(ids, sides, config)
    with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
        logits = model(ids, sides)
    loss = F.cross_entropy(logits[kinds > 0].float(), targets[kinds > 0])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def _mask_inputs(ids: Tensor, sides: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Mask labels, ids and echoes at random, with the probabilities of the configuration."""
    ids, sides = ids.clone(), sides.clone()
    rows = len(ids)
    for column, unknown in ((1, tokens.FORM), (3, tokens.MODE)):
        hidden = torch.rand(rows, device=ids.device) < config.unnamed
        ids[:, column] = torch.where(hidden, unknown, ids[:, column])
    if config.noise:
        hidden = (torch.rand(ids.shape, device=ids.device) < config.noise) & (ids >= tokens.PITCH)
        ids = torch.where(hidden, tokens.HOLD, ids)
    if config.blind:
        hidden = torch.rand((*sides.shape[:2], 4), device=ids.device) < config.blind
        sides[..., 4:] = torch.where(hidden, 0, sides[..., 4:])
    return ids, sides


def _with_weights(model: Model, weights: dict[str, Tensor], function):  # type: ignore[no-untyped-def]
    """Return the result of `function` while the model has other weights."""
    saved = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    model.load_state_dict(weights, strict=False)
    try:
        return function()
    finally:
        model.load_state_dict(saved, strict=False)


@torch.no_grad()
def bits_per_note(model: Model, batches: Batches, numbers: NDArray[np.int64]) -> float:
    """Return the bits of all pitches, ties, rests and durations per note, without the grid's mask."""
    model.eval()
    bits, notes = 0.0, 0
    for start in range(0, len(numbers), 32):
        ids, sides, targets, kinds = batches.batch(numbers[start : start + 32])
        with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
            logits = model(ids, sides)
        counted = kinds > 1
        bits += float(F.cross_entropy(logits[counted].float(), targets[counted], reduction="sum")) / math.log(2)
        notes += int(count_notes(targets[counted]))
    return bits / notes
