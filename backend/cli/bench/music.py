"""`bench music`: speed of tunes relative to real time, by phase, and the gain of a batch of variations."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from backend.cli.bench.harness.isolated_server import Service
from backend.common.types import JsonObject
from backend.manager.benchmarks.rows import Row, row

SECONDS, BATCH, BATCH_BARS, BATCHES = 30, 16, 16, 3
REQUEST = {"form": "reel", "key": "D", "mode": "major", "seconds": SECONDS}


def measure(runs: int, device: str) -> list[Row]:
    """Measure 30 s tunes with all files on a warm server, then 16 variations one by one and as one batch."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), {})
        with service.running():
            cold = _generate(service, device, seed=0, **REQUEST)
            jobs = [_generate(service, device, seed=seed, **REQUEST) for seed in range(1, runs + 1)]
            batch, serial = [], []
            for number in range(min(runs, BATCHES)):
                seed = 100 * (number + 1)
                request = {**REQUEST, "seconds": None, "bars": BATCH_BARS, "backing": "none"}
                batch.append(_generate(service, device, seed=seed, variations=BATCH, **request))
                serial.append([_generate(service, device, seed=seed + each, **request) for each in range(BATCH)])
    on = {name: jobs[-1][key] for name, key in (("device", "used"), ("engine", "engine"))}
    times = [job["times"]["run_s"] for job in jobs]
    rows = [
        row(f"{SECONDS} s of audio, first job", [cold["times"]["run_s"]], "s", **on),
        row(f"{SECONDS} s of audio, all files", times, "s", **on),
        row("whole job", [job["rate"]["value"] for job in jobs], "× real time", **on),
    ]
    for phase in jobs[-1]["phases"]:
        rates = [job["audio_s"] / job["phases"][phase] for job in jobs]
        rows.append(row(phase, rates, "× real time", **on))
    together = [job["phases"]["composing"] for job in batch]
    alone = [sum(job["phases"]["composing"] for job in jobs) for jobs in serial]
    gain = statistics.median(one / many for one, many in zip(alone, together, strict=True))
    notes = [job["counts"]["notes"] / job["phases"]["composing"] for job in batch]
    return [
        *rows,
        row(f"composing {BATCH} tunes one by one", alone, "s", **on),
        row(f"composing {BATCH} tunes as one batch", together, "s", ratio=1 / gain, **on),
        row("composing in that batch", notes, "notes/s", **on),
    ]


def _generate(service: Service, device: str, **options: Any) -> JsonObject:
    """Run a job and return its receipt. Raises RuntimeError if it fails."""
    body = {"task": "music", "device": device, "fallback": "never", "options": options}
    job = service.ask("POST", "/api/generate", body)
    if job.get("status") != "done":
        raise RuntimeError(str(job.get("detail", job)))
    receipt: JsonObject = job["receipt"]
    return receipt
