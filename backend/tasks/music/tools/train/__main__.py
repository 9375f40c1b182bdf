"""`python -m backend.tasks.music.tools.train STEP`.

Steps, in order: prepare, fit or sweep, export, evaluate, parity, speed, plots.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from pathlib import Path

DATA = Path(".train-data")


def main() -> int:
    """Runs one step; what it found goes to standard output as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="python -m backend.tasks.music.tools.train", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    prepare = steps.add_parser("prepare", help="read music21's corpus, write tunes.npz")
    prepare.add_argument("--without-campin", action="store_true", help="leave out the collections of Jack Campin")
    prepare.add_argument("--seed", type=int, help="draw a new split; without it, the one of the released weights")
    fit = steps.add_parser("fit", help="train one configuration")
    fit.add_argument("--config", default="{}", help="JSON with what differs from the defaults of fit.Config")
    sweep = steps.add_parser("sweep", help="train several configurations side by side")
    sweep.add_argument("--configs", type=Path, required=True, help="JSON: an object of configurations by name")
    sweep.add_argument("--keep", type=int, default=1, help="how many of the best to keep as float16")
    export = steps.add_parser("export", help="write what the service reads")
    export.add_argument("--checkpoint", type=Path, default=DATA / "fit" / "best.pt")
    evaluate = steps.add_parser("evaluate", help="measure exported files")
    evaluate.add_argument("--samples", type=int, default=128, help="tunes composed of each form")
    evaluate.add_argument("--test", action="store_true", help="read the test tunes too: once, at the end")
    evaluate.add_argument("--device", default="cpu", help="a torch device to compose on")
    parity = steps.add_parser("parity", help="compare both engines on the CPU, tune by tune")
    parity.add_argument("--tunes", type=int, default=500)
    speed = steps.add_parser("speed", help="time both engines, one tune and sixteen")
    speed.add_argument("--device", default="cpu", help="a torch device beside the CPU")
    plots = steps.add_parser("plots", help="draw the pictures of docs/music.md")
    plots.add_argument("--sweeps", type=Path, nargs="*", default=[DATA / "fit" / "sweep.json"])
    plots.add_argument("--evaluation", type=Path, required=True, help="what evaluate printed")
    plots.add_argument("--pictures", type=Path, default=Path("docs/music"))
    for step in (export, evaluate, parity, speed):
        step.add_argument("--model", type=Path, default=DATA / "model", help="folder of the exported files")
    for step in (fit, sweep):
        step.add_argument("--limit-s", type=float, default=math.inf, help="shorten the schedule to this long")
        step.add_argument("--device", default="cpu", help="a torch device")
    for step in (prepare, fit, sweep, export, evaluate):
        step.add_argument("--data", type=Path, default=DATA / "tunes.npz")
    for step in (fit, sweep):
        step.add_argument("--out", type=Path, default=DATA / "fit")
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(run(arguments), indent=1) + "\n")
    return 0


def run(arguments: argparse.Namespace) -> object:
    """The step's result."""
    if arguments.step == "prepare":
        from backend.tasks.music.tools.train.prepare import prepare

        return prepare(arguments.data, arguments.without_campin, arguments.seed)
    if arguments.step == "fit":
        from backend.tasks.music.tools.train.fit import Config, fit

        config = Config(**json.loads(arguments.config))
        return fit(arguments.data, arguments.out, config, arguments.device, arguments.limit_s)
    if arguments.step == "export":
        from backend.tasks.music.tools.train.export import export

        return export(arguments.checkpoint, arguments.data, arguments.model)
    if arguments.step == "evaluate":
        from backend.tasks.music.tools.train.evaluate import evaluate

        return evaluate(arguments.model, arguments.data, arguments.device, arguments.samples, arguments.test)
    if arguments.step == "plots":
        from backend.tasks.music.tools.train.plots import plots

        return plots(arguments.sweeps, arguments.evaluation, arguments.pictures)
    if arguments.step in ("parity", "speed"):
        import torch

        from backend.tasks.music.tools.train.parity import parity, speeds
        from backend.tasks.music.weights import read_weights

        torch.set_num_threads(1)
        weights = read_weights(arguments.model / "weights.safetensors")
        if arguments.step == "parity":
            return parity(weights, arguments.model, arguments.tunes)
        return speeds(weights, arguments.model, arguments.device)
    from backend.tasks.music.tools.train.sweep import sweep

    configs = json.loads(arguments.configs.read_text("utf-8"))
    return sweep(arguments.data, arguments.out, configs, arguments.device, arguments.limit_s, arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
