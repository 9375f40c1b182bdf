"""Training of several configurations in parallel on one device, each in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from backend.common.types import JsonObject


def sweep(
    data: Path, folder: Path, configs: dict[str, JsonObject], device: str, limit_s: float, keep: int
) -> JsonObject:
    """Train, write sweep.json and NAME.pt of the `keep` best to `folder`, and return the results, best first."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    work = folder.parent / "sweep-work"
    processes = {}
    for name, config in configs.items():
        command = [sys.executable, "-m", "backend.tasks.music.tools.train", "fit"]
        command += ["--data", str(data), "--out", str(work / name)]
        command += ["--device", device, "--limit-s", str(limit_s), "--config", json.dumps(config)]
        work.mkdir(parents=True, exist_ok=True)
        log = (work / f"{name}.log").open("w")
        processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
    for process in processes.values():
        process.wait()
    results: dict[str, JsonObject] = {}
    for name in configs:
        try:
            state = torch.load(work / name / "best.pt", map_location="cpu")
            curve = json.loads((work / name / "curve.json").read_text("utf-8"))
        except OSError:
            results[name] = {"valid": 99.0, "log": (work / f"{name}.log").read_text("utf-8")[-600:]}
            continue
        last = curve["curve"][-1]
        results[name] = {
            "valid": state["valid"],
            "step": state["step"],
            "steps": last["step"],
            "last": last["valid"],
            **curve,
        }
    ranked = dict(sorted(results.items(), key=lambda item: float(item[1]["valid"])))
    (folder / "sweep.json").write_text(json.dumps(ranked), "utf-8")
    for name in list(ranked)[:keep]:
        if (work / name / "best.pt").exists():
            state = torch.load(work / name / "best.pt", map_location="cpu")
            state["weights"] = {key: weight.half() for key, weight in state["weights"].items()}
            torch.save(state, folder / f"{name}.pt")
    return {
        name: {key: value for key, value in each.items() if key not in ("curve", "config")}
        for name, each in ranked.items()
    }
