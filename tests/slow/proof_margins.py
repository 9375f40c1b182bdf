"""Repeat the proof of a device and print how close its results come to their tolerances, by data type and operation.

Run it by hand, from the root of the repository, with the Python of the runtime that reaches the device:

    python -m tests.slow.proof_margins onnx-cuda 50

It needs only the libraries of that runtime. A healthy device must never be refused: the last line is
`50 proofs, 0 refused`, and no ratio of error and tolerance is close to 1, except for QLinearMatMul, where halves are
rounded either way.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

from backend.common.device_api import WrongResult
from backend.devices import backends, mechanism, prove


def main(arguments: list[str]) -> int:
    """Prove the first device of a backend several times. Returns 1 if one proof refused it or one of its types."""
    name, times = arguments[0], int(arguments[1]) if len(arguments) > 1 else 20
    backend = backends()[name]
    library = arguments[2] if len(arguments) > 2 else backend.libraries[0]
    access = mechanism(name, library)
    access.load(library)
    detected = access.enumerate_devices(backend, library)[0]
    print(f"{name} through {library}: {detected.name}")
    worst: dict[tuple[str, str], float] = defaultdict(float)
    seconds: list[float] = []
    skipped: set[tuple[str, str, str]] = set()
    refused = 0
    for _ in range(times):
        try:
            proof = prove(name, detected, lambda dtype: None)
        except WrongResult as error:
            refused += 1
            print(f"refused: {error}")
            continue
        seconds.append(proof.seconds)
        refused += bool(proof.unusable)
        for dtype, reason in proof.unusable.items():
            print(f"without {dtype}: {reason}")
        for row in proof.checks:
            operation = (str(row["dtype"]), re.sub(r"\d{3,}(?=×)|(?<=×)\d{3,}", "n", row["operation"]))
            if "skipped" in row:
                skipped.add((*operation, row["skipped"]))
            elif row.get("tolerance"):
                worst[operation] = max(worst[operation], row["max_abs_error"] / row["tolerance"])
            else:
                worst[operation] += 0.0
    for (dtype, name), ratio in worst.items():
        print(f"{dtype:10} {name:48} error / tolerance at most {ratio:.3f}")
    for dtype, name, reason in sorted(skipped):
        print(f"{dtype:10} {name:48} skipped: {reason}")
    if seconds:
        print(f"seconds: first {seconds[0]:.2f}, then {min(seconds):.2f} to {max(seconds):.2f}")
    print(f"{times} proofs, {refused} refused")
    return int(refused > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
