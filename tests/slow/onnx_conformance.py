"""Run the package onnx's test data with the engine on a device: passed, failed, not taken.

    python -m tests.slow.onnx_cases /tmp/cases        in an environment with the package onnx: writes some 2,000 cases
    python -m tests.slow.onnx_conformance /tmp/cases --device cpu [--json FILE]

A case passes with the right numbers and every node on the device by ONNX Runtime's record; with the right numbers and
a node elsewhere it is `not taken`, and so is what the library says that it cannot compute. No case may run on the
processor in silence. Cases run one after the other in a child, which a crash ends and the next case replaces.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.common.errors import ModelIncompatible, TouchstoneError
from backend.engines import LoadRequest, RunRequest
from backend.engines.onnxruntime import load
from backend.tasks.options import parse_options
from tests.service import ROOT

LIMIT_S = 120
FAILED = ("wrong", "failed", "crashed")


def judge(case: Path, device: str) -> dict[str, Any]:
    """What came of one case: `{name, verdict, why}`."""
    verdict, why = _judged(case, device)
    return {"name": case.name, "verdict": verdict, "why": why[:300]}


def _judged(case: Path, device: str) -> tuple[str, str]:
    facts = json.loads((case / "case.json").read_text(encoding="utf-8"))
    if facts["odd"]:
        return "not taken", f"no file of NumPy holds it: {facts['odd']}"
    try:
        session = load(LoadRequest(device, str(case / "model.onnx"), 0, 2))
    except ModelIncompatible as error:
        return "not taken", error.detail
    except TouchstoneError as error:
        return "failed", error.detail
    with tempfile.TemporaryDirectory() as folder:
        try:
            outputs = _outputs(session, case, folder)
        except ModelIncompatible as error:
            return "not taken", error.detail
        except TouchstoneError as error:
            return ("not taken" if "inputs of the type" in error.detail else "failed"), error.detail
    if wrong := _difference(outputs, case, facts):
        return "wrong", wrong
    here = session.placement.on_device
    if session.placement.parts and here != 1.0:
        return "not taken", session.placement.evidence
    return ("passed", "") if session.placement.parts else ("passed, nothing to place", session.placement.evidence)


def _outputs(session: Any, case: Path, folder: str) -> list[Any]:
    import numpy

    slots = session.session.get_inputs()
    files = [case / f"input_{number}.npy" for number in range(len(slots))]
    inputs = {
        slot.name: {"path": str(file), "name": file.name, "media_type": ""}
        for slot, file in zip(slots, files, strict=True)
        if file.exists()
    }
    request = RunRequest(None, None, parse_options("onnx", {}), 0, False, folder, inputs=inputs)
    said: list[Any] = session.run(request, lambda event, data: False).chosen["outputs"]
    found = []
    for output in said:
        file = Path(folder) / output["file"]
        found.append(numpy.load(file) if file.suffix == ".npy" else json.loads(file.read_text(encoding="utf-8")))
    return found


def _difference(outputs: list[Any], case: Path, facts: dict[str, Any]) -> str:
    """The first output that is not what it should be, or nothing."""
    import numpy

    for number, found in enumerate(outputs):
        file = case / f"output_{number}.npy"
        if not file.exists():
            continue
        wanted = numpy.load(file)
        if not isinstance(found, numpy.ndarray) or (found.shape, found.dtype.kind) != (wanted.shape, wanted.dtype.kind):
            return f"output {number} should be {wanted.dtype} {list(wanted.shape)}"
        if wanted.dtype.kind in "USb":
            if not numpy.array_equal(found, wanted):
                return f"output {number} is another one"
        elif not numpy.allclose(found, wanted, facts["rtol"] or 1e-3, facts["atol"] or 1e-7, equal_nan=True):
            apart = abs(found.astype("complex128") - wanted.astype("complex128")).max()
            return f"output {number} is apart by up to {apart:.2g}"
    return ""


def run(folder: Path, device: str) -> Iterator[dict[str, Any]]:
    """All cases of a folder, in a child that is replaced after a crash."""
    left = sorted(case.name for case in folder.iterdir() if (case / "case.json").exists())
    while left:
        command = [sys.executable, "-m", "tests.slow.onnx_conformance", str(folder), "--device", device, "--child"]
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin and child.stdout
        with child:
            child.stdin.write("\n".join(left))
            child.stdin.close()
            for line in child.stdout:
                if line.startswith("{"):
                    left.pop(0)
                    yield json.loads(line)
        if left:
            yield {"name": left.pop(0), "verdict": "crashed", "why": f"exit code {child.returncode}"}


def main() -> int:
    """Prints the counts and what failed; 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="where all verdicts go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        for name in sys.stdin.read().split():
            print(json.dumps(judge(args.folder / name, args.device)), flush=True)
        return 0
    found = list(run(args.folder, args.device))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    for verdict, count in Counter(each["verdict"] for each in found).most_common():
        print(f"{count:5} {verdict}")
    failed = [each for each in found if each["verdict"] in FAILED]
    for each in failed:
        print(f"{each['verdict']:8} {each['name']}: {each['why']}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
