"""Makes a smaller ONNX graph of another and says how far their outputs are apart. A program of its own, run by an
interpreter that has onnx, onnxruntime and NumPy:

    python quantizing.py SOURCE TARGET int8|int8-static|fp16 [NAME=FILE.npy …]

Each file has one more side in front than the input: its entries are samples, for `int8-static` those that ranges are
taken from. Without files eight samples are made up, which is enough to see a mistake and not to judge a model by.
`int8` (dynamic) and `int8-static` are ONNX Runtime's own quantisation, `fp16` its conversion with inputs and outputs
left as they are. The last line printed is JSON: `{bytes, source_bytes, samples, made_up, outputs: {NAME: {difference,
snr_db}}}`, where `difference` is the largest one as a share of the output's largest number.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

KINDS = ("int8", "int8-static", "fp16")
SAMPLES, SIDE = 8, 1  # made up; what an open side is then


def main(words: list[str]) -> int:
    """Writes TARGET whole or not at all."""
    import onnxruntime

    source, target, kind = Path(words[0]), Path(words[1]), words[2]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    before = onnxruntime.InferenceSession(str(source), options, ["CPUExecutionProvider"])
    samples = _samples(before.get_inputs(), words[3:])
    partial = target.with_name(target.name + ".partial")
    try:
        _write(source, partial, kind, samples)
        after = onnxruntime.InferenceSession(str(partial), options, ["CPUExecutionProvider"])
        outputs = _apart(before, after, samples)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    facts = {
        "bytes": target.stat().st_size,
        "source_bytes": source.stat().st_size,
        "samples": len(samples),
        "made_up": not words[3:],
        "outputs": outputs,
    }
    print(json.dumps(facts))  # noqa: T201 (what this program is asked for)
    return 0


def _write(source: Path, target: Path, kind: str, samples: list[dict[str, Any]]) -> None:
    if kind == "fp16":
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)
        return
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc,unused-ignore]
        """The samples, one after the other."""

        def __init__(self) -> None:
            self._left = list(samples)

        def get_next(self) -> dict[str, Any] | None:
            """The next one, None at the end."""
            return self._left.pop(0) if self._left else None

    if kind == "int8":
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8)
    else:
        quantize_static(str(source), str(target), Reader(), per_channel=True)


def _samples(slots: list[Any], words: list[str]) -> list[dict[str, Any]]:
    import numpy

    if words:
        arrays = {
            name: numpy.load(file, allow_pickle=False) for name, _, file in (word.partition("=") for word in words)
        }
        counts = {len(array) for array in arrays.values()}
        if set(arrays) != {slot.name for slot in slots} or len(counts) != 1:
            sys.exit(f"error: it takes as many samples for each of {', '.join(slot.name for slot in slots)}")
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


def _apart(before: Any, after: Any, samples: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """How far each output of two sessions is apart over all samples."""
    import numpy

    found = {}
    pairs = [(before.run(None, sample), after.run(None, sample)) for sample in samples]
    for place, slot in enumerate(before.get_outputs()):
        wanted = numpy.concatenate([numpy.ravel(first[place]).astype("float64") for first, _ in pairs])
        made = numpy.concatenate([numpy.ravel(second[place]).astype("float64") for _, second in pairs])
        noise, signal = float(((made - wanted) ** 2).sum()), float((wanted**2).sum())
        scale = float(numpy.abs(wanted).max(initial=0.0)) or 1.0
        snr = 10 * math.log10(signal / noise) if noise and signal else None
        found[slot.name] = {"difference": float(numpy.abs(made - wanted).max(initial=0.0)) / scale, "snr_db": snr}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
