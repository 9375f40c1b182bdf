"""List and prove the cards that a build of llama.cpp reaches, each in a process that sees only that card. By hand:

    python -m tests.slow.llama_devices [FOLDER|PYTHON] [--only cuda]

FOLDER holds llama.cpp's shared libraries (an unpacked wheel, a release archive, an own build); PYTHON is an interpreter
whose environment has one. Default: this environment. It prints one line for each device: name, identity, seconds to
list and to prove, GFLOP/s, data types that are unusable, and checks that were skipped.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from backend.child.wire_protocol import Channel
from backend.runtimes.user_environments import make_environment

CHILD = Path(__file__).parents[2] / "backend" / "child"


def run_probe(python: str, arguments: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Run the probe program; return its frames and the seconds."""
    started = time.perf_counter()
    command = [python, "-I", str(CHILD), "probe", *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, input=b"", check=False)
    channel = Channel(io.BytesIO(ended.stdout), io.BytesIO())
    frames: list[dict[str, Any]] = [dict(received[0]) for received in iter(channel.receive, None)]
    if ended.returncode:
        frames.append({"op": "ended", "code": ended.returncode})
    return frames, time.perf_counter() - started


def show_proof(name: str, device: dict[str, Any], frames: list[dict[str, Any]], seconds: float) -> bool:
    """Print the result of a proof; return whether it succeeded."""
    proof = next((frame["proof"] for frame in frames if frame["op"] == "proved"), None)
    identity = " ".join(f"{key}={value}" for key, value in device["identity"].items()) or "no identity"
    print(f"{name}: {device['name']} ({device['kind']}, {identity}), {device['memory_bytes']} bytes")
    if proof is None:
        print(f"  NOT PROVED after {seconds:.1f} s: {frames[-1]}")
        return False
    free = next(frame["memory_free_bytes"] for frame in frames if frame["op"] == "proved")
    skipped = [f"{row['operation']} {row['dtype']}: {row['skipped']}" for row in proof["checks"] if "skipped" in row]
    print(f"  proved in {seconds:.1f} s: {len(proof['checks'])} checks, {proof['gflops']:.0f} GFLOP/s, free {free}")
    print(f"  {proof['evidence']}; versions {proof['versions']}")
    for dtype, reason in proof["unusable"].items():
        print(f"  unusable {dtype}: {reason}")
    for line in skipped:
        print(f"  skipped {line}")
    return True


def main() -> int:
    """List, then prove each device twice: the first proof compiles kernels. Exit 1 if there is none, or one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", nargs="?", default=sys.executable)
    parser.add_argument("--only", help="one backend, such as cuda or vulkan")
    options = parser.parse_args()
    place = Path(options.place)
    python = str(place if place.is_file() else make_environment(Path(tempfile.mkdtemp()) / "own", place.resolve()))
    frames, seconds = run_probe(python, ["list", "own", *([options.only] if options.only else [])])
    print(f"listed in {seconds:.1f} s")
    proved = []
    for frame in frames:
        if frame["op"] in ("absent", "missing", "failed", "ended"):
            print(f"{frame['op']}: {frame}")
        if frame["op"] != "listed" or frame["library"] != "ggml":
            continue
        for device in frame["devices"]:
            (backend,) = frame["backends"]
            name = f"{backend}:{device['position']}"
            request = {"backend": backend, "found": device, "runtime": "own", "device": name}
            for _ in range(2):
                answer, seconds = run_probe(python, ["prove", json.dumps(request)])
                proved.append(show_proof(name, device, answer, seconds))
    return 0 if proved and all(proved) else 1


if __name__ == "__main__":
    sys.exit(main())
