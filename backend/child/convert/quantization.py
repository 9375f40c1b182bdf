"""Quantize an ONNX graph and measure how far the outputs differ. Run as a script by an interpreter with onnx,
onnxruntime and NumPy:

    python quantization.py SOURCE TARGET int8|int8-static|fp16 [NAME=FILE.npy …]

Each file holds samples of an input along one more dimension in front; `int8-static` is calibrated with them. Without
files eight random samples are used: enough to find a mistake, too few to judge a model. `int8` (dynamic) and
`int8-static` are ONNX Runtime's quantization, `fp16` its conversion, which keeps the types of inputs and outputs.
The last line printed is JSON: `{bytes, source_bytes, samples, made_up, outputs: {NAME: {difference, snr_db}}}`, where
`difference` is the largest difference divided by the output's largest number.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, TypedDict

KINDS = ("int8", "int8-static", "fp16")
Sample = dict[str, Any]  # NumPy arrays by input name; a script has no types of NumPy
SAMPLES, SIDE = 8, 1  # random samples; the size of a dynamic dimension in them


class OutputDifference(TypedDict):
    """The largest difference of an output, divided by its largest number, and its signal-to-noise ratio in dB."""

    difference: float
    snr_db: float | None


class Report(TypedDict):
    """The sizes of both files, the number of samples, whether they are random, and the differences by output."""

    bytes: int
    source_bytes: int
    samples: int
    made_up: bool
    outputs: dict[str, OutputDifference]


def main(arguments: list[str]) -> int:
    """Write TARGET, complete or not at all, and print the figures."""
    import onnxruntime

    source, target, kind = Path(arguments[0]), Path(arguments[1]), arguments[2]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    before = onnxruntime.InferenceSession(str(source), options, ["CPUExecutionProvider"])
    samples = _samples(before.get_inputs(), arguments[3:])
    partial = target.with_name(target.name + ".partial")
    try:
        _write(source, partial, kind, samples)
        after = onnxruntime.InferenceSession(str(partial), options, ["CPUExecutionProvider"])
        outputs = _compare_outputs(before, after, samples)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    report: Report = {
        "bytes": target.stat().st_size,
        "source_bytes": source.stat().st_size,
        "samples": len(samples),
        "made_up": not arguments[3:],
        "outputs": outputs,
    }
    print(json.dumps(report))  # noqa: T201 (the result of this program)
    return 0


def _write(source: Path, target: Path, kind: str, samples: list[Sample]) -> None:
    if kind == "fp16":
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)
        return
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc,unused-ignore]
        """The samples, in order."""

        def __init__(self) -> None:
            self._left = list(samples)

        def get_next(self) -> Sample | None:
            """Return the next sample, None at the end."""
            return self._left.pop(0) if self._left else None

    if kind == "int8":
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8)
    else:
        quantize_static(str(source), str(target), Reader(), per_channel=True)


def _samples(slots: list[Any], arguments: list[str]) -> list[Sample]:
    import numpy

    if arguments:
        arrays = {
            name: numpy.load(file, allow_pickle=False) for name, _, file in (word.partition("=") for word in arguments)
        }
        counts = {len(array) for array in arrays.values()}
        if set(arrays) != {slot.name for slot in slots} or len(counts) != 1:
            sys.exit(f"error: pass the same number of samples for each of {', '.join(slot.name for slot in slots)}")
        return [{name: array[number] for name, array in arrays.items()} for number in range(counts.pop())]
    random, types = numpy.random.default_rng(0), {"float": "float32", "double": "float64"}
    made = []
    for _ in range(SAMPLES):
        sample = {}
        for slot in slots:
            sides = [side if isinstance(side, int) else SIDE for side in slot.shape]
            kind = numpy.dtype(types.get(slot.type[7:-1], slot.type[7:-1]))
            values = random.standard_normal(sides) if kind.kind == "f" else random.integers(0, 2, sides)
            sample[slot.name] = numpy.asarray(values).astype(kind)
        made.append(sample)
    return made


def _compare_outputs(before: Any, after: Any, samples: list[Sample]) -> dict[str, OutputDifference]:
    """Return the difference and the signal-to-noise ratio of each output of two sessions over all samples."""
    import numpy

    differences: dict[str, OutputDifference] = {}
    pairs = [(before.run(None, sample), after.run(None, sample)) for sample in samples]
    for place, slot in enumerate(before.get_outputs()):
        wanted = numpy.concatenate([numpy.ravel(first[place]).astype("float64") for first, _ in pairs])
        made = numpy.concatenate([numpy.ravel(second[place]).astype("float64") for _, second in pairs])
        noise, signal = float(((made - wanted) ** 2).sum()), float((wanted**2).sum())
        scale = float(numpy.abs(wanted).max(initial=0.0)) or 1.0
        snr = 10 * math.log10(signal / noise) if noise and signal else None
        differences[slot.name] = {"difference": float(numpy.abs(made - wanted).max(initial=0.0)) / scale, "snr_db": snr}
    return differences


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
