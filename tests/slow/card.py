"""`python -m tests.slow.card FOLDER PYTHON [MODEL]`: the service on real hardware. PYTHON has torch for the card.

Models with random weights in two sizes are written to FOLDER. It prints the device list with its proof, the list under
several values of `CUDA_VISIBLE_DEVICES`, the list and a job while another program uses the card's memory, and what
happens to a job whose worker is killed. With MODEL it only runs a job of one size. Lines that start
with WRONG were not as expected; then it exits with 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.cli.bench.harness.bare_torch import SHAPES, write_folder
from tests.service import Server, start_server, wait_for

MODELS = {"random-135m": "smollm2-135m", "random-8b": "llama-8b"}
# Writes the weights in a separate process, so that this one holds no memory of the card.
_WRITE = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1])
torch.manual_seed(1)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.save_pretrained(sys.argv[1])
"""
_FILL = """
import sys, torch
free, total = torch.cuda.mem_get_info(0)
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info(0)[0], flush=True)
sys.stdin.read()
"""


class Report:
    """Prints facts and counts those that were not as expected."""

    def __init__(self) -> None:
        self.wrong = 0

    def check(self, ok: bool, text: str) -> None:
        """Print a line, with WRONG in front if it is not as expected."""
        self.wrong += not ok
        print(f"{'ok   ' if ok else 'WRONG'} {text}", flush=True)


def main(folder: Path, python: str, only: str | None = None) -> int:
    """Run all parts; return 1 if a line is not as expected."""
    report = Report()
    names = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    print(names.stdout.strip(), flush=True)
    uuid = names.stdout.split(",")[0].strip()
    for name in [only] if only else MODELS:
        write_model(folder / "models" / name, MODELS[name], python)
    if only:
        with running(folder, python) as server:
            devices(server)
            job(server, only, report)
        return 1 if report.wrong else 0
    visibility(folder, python, uuid, report)
    with running(folder, python) as server:
        proofs(server, report)
        for name in MODELS:
            job(server, name, report)
        killed_worker(server, report)
    full_card(folder, python, report)
    print(f"{report.wrong} wrong", flush=True)
    return 1 if report.wrong else 0


def write_model(path: Path, shape: str, python: str) -> None:
    """Write a model folder with random weights."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_folder(path, SHAPES[shape])
    (path / "model.safetensors").unlink()
    started_at = time.monotonic()
    subprocess.run([python, "-c", _WRITE, str(path)], check=True)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"{path.name}: {size / 1e9:.2f} GB written in {time.monotonic() - started_at:.0f} s", flush=True)


@contextlib.contextmanager
def running(folder: Path, python: str, **environ: str) -> Iterator[Server]:
    """A server with that interpreter as the runtime `cuda`."""
    config = folder / "config.json"
    config.write_text(json.dumps({"runtimes": {"cuda": {"python": python}}}))
    server = start_server(folder, "--config", str(config), environ=environ)
    try:
        yield server
    finally:
        server.stop()


def devices(server: Server) -> dict[str, dict[str, Any]]:
    """Return the devices by id, after all probes."""
    listed = server.http.get("/api/devices", params={"wait_s": 120}).json()["devices"]
    return {device["id"]: device for device in listed}


def proofs(server: Server, report: Report) -> None:
    """Print each check of the card's proof."""
    card = devices(server)["cuda:0"]
    report.check(card["state"] == "ready", f"{card['id']} {card['name']}: {card['state']}, {card['reason']}")
    print(f"      engines {card['engines']}, lacks {card['lacks']}, {card['versions']}")
    proof = card["proof"] or {"checks": [], "seconds": 0}
    for check in proof["checks"]:
        print(f"      {json.dumps(check)}")
    print(f"      {len(proof['checks'])} checks in {proof['seconds']:.2f} s; {proof.get('evidence')}", flush=True)


def visibility(folder: Path, python: str, uuid: str, report: Report) -> None:
    """Print the card's state under values that show it and values that hide it."""
    shown = {"0": True, uuid: True, uuid[:12]: True, "": False, "-1": False, "1": False, "NoDevFiles": False}
    for value, is_shown in shown.items():
        started_at = time.monotonic()
        with running(folder, python, CUDA_VISIBLE_DEVICES=value) as server:
            card = devices(server)["cuda:0"]
            print(f"      all probed {time.monotonic() - started_at:.1f} s after the start")
        line = f"CUDA_VISIBLE_DEVICES={value!r}: {card['state']}, {card['reason']} {card['remedy'] or ''}"
        report.check((card["state"] == "ready") == is_shown, line)


def job(server: Server, model: str, report: Report, **wishes: Any) -> dict[str, Any]:
    """Run one text job on the card; print its receipt."""
    body = {"model": model, "device": "cuda:0", "prompt": "A mill.", "options": {"max_tokens": 64, "seed": 1}, **wishes}
    started_at = time.monotonic()
    ended = server.generate(**body)
    receipt = ended.get("receipt") or {}
    facts = {name: receipt.get(name) for name in ("used", "fell_back", "engine", "model_stamp", "placement", "rate")}
    text = f"{model}: {ended.get('status')} in {time.monotonic() - started_at:.1f} s, {json.dumps(facts)}"
    report.check(ended.get("status") == "done" and receipt.get("used") == "cuda:0", text)
    if ended.get("error") or "code" in ended:
        print(f"      {ended.get('error') or ended}", flush=True)
    return ended


def killed_worker(server: Server, report: Report) -> None:
    """Kill the worker in the middle of a job: the job ends with an error, and the next one runs."""
    body: dict[str, Any] = {"model": "random-135m", "device": "cuda:0", "fallback": "never", "prompt": "A mill."}
    body["options"] = {"max_tokens": 4000}
    accepted = server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"}).json()
    running_job = server.until(accepted["id"], "running")
    pid = wait_for(lambda: (server.job(accepted["id"])["receipt"] or {}).get("worker_pid"))
    os.kill(pid, signal.SIGKILL)
    ended = server.until(accepted["id"], "done", "error", "interrupted")
    error = ended["error"] or {}
    ok = ended["status"] == "error" and ended["receipt"]["used"] in (None, "cuda:0")
    report.check(ok, f"worker {pid} killed: {running_job['status']} → {ended['status']}, {error.get('detail')}")
    job(server, "random-135m", report)


def full_card(folder: Path, python: str, report: Report) -> None:
    """List the devices and run a job while another program holds all but 200 MB of the card."""
    command = [python, "-c", _FILL, str(200 << 20)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdin
        print(f"      another program leaves {holder.stdout.readline().strip()} bytes", flush=True)
        with running(folder, python) as server:
            card = devices(server)["cuda:0"]
            print(f"      {card['state']}, {card['reason']} {card['remedy']} free {card['memory_free_bytes']}")
            ended = server.generate(model="random-8b", device="cuda:0", fallback="never", prompt="A mill.")
            error = ended.get("error") or ended
            report.check(ended.get("status") != "done", f"full card: {error.get('code')}, {error.get('detail')}")
            print(f"      {error.get('remedy')}", flush=True)
        holder.stdin.close()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).absolute(), *sys.argv[2:4]))
