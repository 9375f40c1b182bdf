"""Proof rows of each device and data type, with the worst error per tolerance of many seeds. Run by hand.

    python -m tests.slow.device_types [--seeds 200] [--only onnx-cuda] [--library torch]

It needs only this repository and the Python of the runtime that reaches the device. It prints the rows of one proof for
each device that the library lists, then the worst ratio of error to tolerance of each operation over all seeds, with
durations, as lines of text. It exits with 1 if a proof failed. A healthy device must never be refused, and no ratio is
close to 1, except for QLinearMatMul, where halves are rounded either way.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import DeviceAbsent, backends, backends_of, mechanism, prove


def main() -> int:
    """Run the proofs. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="proofs of each device (default: 20)")
    parser.add_argument("--only", help="a backend, such as cuda; default: all of the library")
    parser.add_argument("--library", help="the library that lists the devices (default: the backend's first, or torch)")
    arguments = parser.parse_args()
    arguments.library = arguments.library or (backends()[arguments.only].libraries[0] if arguments.only else "torch")
    start = time.perf_counter()
    access = mechanism(backends_of(arguments.library)[0], arguments.library)
    access.load(arguments.library)
    print(f"Python {platform.python_version()}, {access.versions(arguments.library)}")
    print(f"import of {arguments.library}: {time.perf_counter() - start:.2f} s")
    outcomes = [
        _report(backend, device, arguments.seeds) for backend, device in _devices(arguments.library, arguments.only)
    ]
    return 0 if outcomes and all(outcomes) else 1


def _devices(library: str, only: str | None) -> Iterator[tuple[str, DetectedDevice]]:
    for backend in backends_of(library) if only is None else [only]:
        try:
            listed = mechanism(backend, library).enumerate_devices(backends()[backend], library)
        except DeviceAbsent as error:
            print(f"{backend}: {error}")
            continue
        yield from ((backend, device) for device in listed)


def _report(backend: str, device: DetectedDevice, seeds: int) -> bool:
    """Prove a device with many seeds, print the rows and ratios, and return whether all proofs were right."""
    print(f"\n{backend}:{device.position} {device.name}")
    worst: dict[tuple[str, str], float] = defaultdict(float)
    durations, failures = [], []
    for seed in range(seeds):
        steps: list[tuple[str, float]] = []
        start = time.perf_counter()
        try:
            proof = prove(backend, device, lambda dtype, steps=steps: steps.append((dtype, time.perf_counter())))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 (whatever a proof raises is a result here)
            failures.append(f"proof {seed}: {type(error).__name__}: {error}")
            continue
        durations.append(time.perf_counter() - start)
        wrong = {row["dtype"] for row in proof.checks if "failed" in row} | {proof.model_dtype}
        failures += [f"proof {seed}: {reason}" for dtype, reason in proof.unusable.items() if dtype in wrong]
        for row in proof.checks:
            if "tolerance" in row:
                ratio = row["max_abs_error"] / row["tolerance"] if row["tolerance"] else float(row["max_abs_error"] > 0)
                key = (row["dtype"], re.sub(r"\d{3,}(?=×)|(?<=×)\d{3,}", "n", row["operation"]))  # sides are random
                worst[key] = max(worst[key], ratio)
        if seed == 0:
            _print_proof(proof, steps, start)
    if durations:
        print(f"  {len(durations)} proofs, {min(durations):.2f} to {max(durations):.2f} s")
        print("  worst error / tolerance:")
        for (dtype, name), ratio in sorted(worst.items(), key=lambda item: -item[1]):
            print(f"    {ratio:8.4f}  {dtype:9} {name}")
    for failure in failures[:20]:
        print(f"  FAILED {failure}")
    return not failures


def _print_proof(proof: Any, steps: list[tuple[str, float]], start: float) -> None:
    """Print the rows of a proof, and the time at which each data type began."""
    for row in proof.checks:
        outcome = row.get("failed") or row.get("skipped")
        words = outcome or f"error {row['max_abs_error']:.3g}, allowed {row['tolerance']:.3g}"
        print(f"    {row['dtype']:9} {row['operation']}: {words}")
    begun = ", ".join(f"{dtype} at {at - start:.2f} s" for dtype, at in steps)
    print(f"  models compute in {proof.model_dtype}; unusable: {proof.unusable or 'none'}")
    print(f"  {proof.seconds:.2f} s ({begun}); {proof.gflops:.0f} GFLOP/s; {proof.evidence}")


if __name__ == "__main__":
    sys.exit(main())
