"""The command line of the training: `python -m backend.tasks.music.tools.train STEP`.

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
    """Run one step and print its result to stdout as JSON. Returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="python -m backend.tasks.music.tools.train", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    prepare = steps.add_parser("prepare", help="parse music21's corpus and write tunes.npz")
    prepare.add_argument("--without-campin", action="store_true", help="exclude the collections of Jack Campin")
    prepare.add_argument(
        "--seed", type=int, help="random seed of a new split (default: the split of the released weights)"
    )
    fit = steps.add_parser("fit", help="train one configuration")
    fit.add_argument(
        "--config", default="{}", help="fields of fit.Config as JSON (default: those of the released weights)"
    )
    sweep = steps.add_parser("sweep", help="train several configurations in parallel")
    sweep.add_argument("--configs", type=Path, required=True, help="JSON file with an object of configurations by name")
    sweep.add_argument("--keep", type=int, default=1, help="number of best models to keep, as float16 (default: 1)")
    export = steps.add_parser("export", help="write the files that the service reads")
    export.add_argument("--checkpoint", type=Path, default=DATA / "fit" / "best.pt")
    evaluate = steps.add_parser("evaluate", help="evaluate an exported model")
    evaluate.add_argument("--samples", type=int, default=128, help="number of tunes to compose per form (default: 128)")
    evaluate.add_argument("--test", action="store_true", help="include the test split; use it once, at the end")
    evaluate.add_argument("--device", default="cpu", help="torch device for composing (default: cpu)")
    parity = steps.add_parser("parity", help="compare the tunes of both engines on the CPU")
    parity.add_argument("--tunes", type=int, default=500)
    speed = steps.add_parser("speed", help="measure the time of both engines for one tune and for sixteen")
    speed.add_argument("--device", default="cpu", help="torch device to measure besides the CPU (default: cpu)")
    plots = steps.add_parser("plots", help="draw the figures of docs/music.md")
    plots.add_argument("--sweeps", type=Path, nargs="*", default=[DATA / "fit" / "sweep.json"])
    plots.add_argument("--evaluation", type=Path, required=True, help="file with the output of evaluate")
    plots.add_argument("--pictures", type=Path, default=Path("docs/music"))
    for step in (export, evaluate, parity, speed):
        step.add_argument("--model", type=Path, default=DATA / "model", help="folder of the exported model")
    for step in (fit, sweep):
        step.add_argument(
            "--limit-s", type=float, default=math.inf, help="time limit; shortens the schedule (default: none)"
        )
        step.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    for step in (prepare, fit, sweep, export, evaluate):
        step.add_argument("--data", type=Path, default=DATA / "tunes.npz")
    for step in (fit, sweep):
        step.add_argument("--out", type=Path, default=DATA / "fit")
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(run(arguments), indent=1) + "\n")
    return 0


def run(arguments: argparse.Namespace) -> object:
    """Run a step and return its result."""
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

        from backend.tasks.music.tools.train.parity import count_equal_tunes, measure_speed
        from backend.tasks.music.weights import read_weights

        torch.set_num_threads(1)
        weights = read_weights(arguments.model / "weights.safetensors")
        if arguments.step == "parity":
            return count_equal_tunes(weights, arguments.model, arguments.tunes)
        return measure_speed(weights, arguments.model, arguments.device)
    from backend.tasks.music.tools.train.sweep import sweep

    configs = json.loads(arguments.configs.read_text("utf-8"))
    return sweep(arguments.data, arguments.out, configs, arguments.device, arguments.limit_s, arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
