"""`bench music`: how much faster than real time a tune is made, by phase, and what a batch of variations gains."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from backend.cli.bench.harness.isolated_server import Service
from backend.manager.benchmarks.rows import Row, row

SECONDS, BATCH, BATCH_BARS, BATCHES = 30, 16, 16, 3
WISH = {"form": "reel", "key": "D", "mode": "major", "seconds": SECONDS}


def measure(runs: int, device: str) -> list[Row]:
    """Tunes of 30 s with all their files by a server that has the model loaded, then 16 variations both ways."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), {})
        with service.running():
            cold = _made(service, device, seed=0, **WISH)
            jobs = [_made(service, device, seed=seed, **WISH) for seed in range(1, runs + 1)]
            batch, serial = [], []
            for number in range(min(runs, BATCHES)):
                seed = 100 * (number + 1)
                wish = {**WISH, "seconds": None, "bars": BATCH_BARS, "backing": "none"}
                batch.append(_made(service, device, seed=seed, variations=BATCH, **wish))
                serial.append([_made(service, device, seed=seed + each, **wish) for each in range(BATCH)])
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


def _made(service: Service, device: str, **options: Any) -> dict[str, Any]:
    """The receipt of a job that was waited for. Raises RuntimeError if it failed."""
    body = {"task": "music", "device": device, "fallback": "never", "options": options}
    job = service.ask("POST", "/api/generate", body)
    if job.get("status") != "done":
        raise RuntimeError(str(job.get("detail", job)))
    receipt: dict[str, Any] = job["receipt"]
    return receipt
