"""Convert files and nested arrays to input tensors of a graph, and outputs to files. Runs in a child process.

Pickle is never used: object arrays are rejected as inputs, and strings are written as arrays of fixed width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from backend.common.errors import Validation
from backend.common.files import open_regular_file
from backend.engines._onnx.png import read_png

_NUMPY = {
    **{"float": "float32", "double": "float64", "float16": "float16", "bool": "bool", "string": "object"},
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{"complex64": "complex64", "complex128": "complex128"},
}
Arrays = dict[str, Any]  # NumPy arrays by name; the runtimes of the user may have no types for NumPy
_SEND = "Send a .npy, .npz, WAV or PNG file, or a nested array."


def to_inputs(slots: Sequence[Any], inputs: Mapping[str, Any], more_sides: int = 0) -> Arrays:
    """Return arrays for a session's inputs (`get_inputs()`). `more_sides`: extra leading dimensions of each input.

    Raises Validation with the input's name, the expected and the actual shape.
    """
    by_name = {slot.name: slot for slot in slots}
    given = dict(_opened(inputs, by_name))
    if unknown := next((name for name in given if name not in by_name), None):
        near = get_close_matches(unknown, by_name, 1, 0.5)
        raise _refusal(
            unknown, "the graph has no such input", f"Did you mean {near[0]!r}?" if near else _known(by_name)
        )
    if missing := next((name for name in by_name if name not in given), None):
        raise _refusal(missing, f"it is missing; it should be {describe(by_name[missing])}", _SEND)
    return {name: _fitting(by_name[name], value, more_sides) for name, value in given.items()}


def describe(slot: Any) -> str:
    """Return type and shape, such as `float32 [1, 3, height, width]`."""
    sides = ", ".join("?" if side is None else str(side) for side in slot.shape or ())
    return f"{_dtype(slot) or slot.type} [{sides}]"


def random_inputs(slots: Sequence[Any], seed: int, sizes: Mapping[str, int]) -> Arrays:
    """Return arrays that fit a session's inputs: normally distributed floats; integers 0 or 1, which are valid indices.

    Dynamic dimensions are 1, or taken from `sizes` by name. Raises Validation for a type without numbers.
    """
    import numpy

    random, made = numpy.random.default_rng(seed), {}
    for slot in slots:
        dtype = _dtype(slot)
        if dtype is None or dtype == "object":
            raise _refusal(slot.name, f"no random input can be made for {slot.type}", "Send inputs.")
        sides = [side if isinstance(side, int) else sizes.get(str(side), 1) for side in slot.shape]
        if math.prod(sides) > 1 << 28:
            raise _refusal(slot.name, f"{describe(slot)} is too large for a random input", "Send inputs.")
        is_integer = numpy.dtype(dtype).kind in "iub"
        values = random.integers(0, 2, sides) if is_integer else random.standard_normal(sides)
        made[slot.name] = numpy.asarray(values).astype(dtype)
    return made


def write_output(folder: Path, name: str, value: Any, as_json: bool) -> tuple[str, str, Any]:
    """Write an output; return the file name, the media type and the JSON value. Raises Validation for NaN in JSON."""
    import numpy

    if not isinstance(value, numpy.ndarray):  # a sequence or a map
        as_json, plain = True, _plain(value)
    elif as_json:
        plain = value.tolist()
    if as_json:
        try:
            content = json.dumps(plain, allow_nan=False, ensure_ascii=False)
        except (ValueError, TypeError):
            raise Validation(
                f"The output {name} has numbers that JSON cannot represent (NaN, infinite or complex).",
                "Request files: leave out options.outputs, or set it to npy.",
            ) from None
        (folder / f"{name}.json").write_text(content, encoding="utf-8")
        return f"{name}.json", "application/json", plain
    stored = value.astype(str) if value.dtype == object else value
    numpy.save(folder / f"{name}.npy", stored, allow_pickle=False)
    return f"{name}.npy", "application/octet-stream", None


def count_non_finite(value: Any) -> int:
    """Return how many entries are NaN or infinite."""
    import numpy

    if not isinstance(value, numpy.ndarray) or value.dtype.kind not in "fc":
        return 0
    with numpy.errstate(all="ignore"):
        if value.dtype != numpy.float16 and numpy.isfinite(value.sum()):
            return 0
    return int(value.size - numpy.isfinite(value).sum())


def _opened(inputs: Mapping[str, Any], slots: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return each input as an array or a nested list; an .npz file that is not an input expands to all its arrays."""
    entries: list[tuple[str, Any]] = []
    for name, value in inputs.items():
        if not isinstance(value, dict):
            entries.append((name, value))
            continue
        content = _read(name, value, slots.get(name))
        if isinstance(content, dict):
            entries += content.items() if name not in slots else [(name, _only(name, content))]
        else:
            entries.append((name, content))
    return entries


def _only(name: str, arrays: Arrays) -> Any:
    if name in arrays or len(arrays) == 1:
        return arrays.get(name, next(iter(arrays.values())))
    raise _refusal(name, f"the .npz has several arrays: {', '.join(arrays)[:200]}", "Name one of them as the input.")


def _read(name: str, file: Mapping[str, str], slot: Any) -> Any:
    """Return an array, or for .npz several by name."""
    import numpy

    path = Path(file["path"])
    with open_regular_file(path) as opened:
        start = opened.read(12)
    try:
        if start[:6] == b"\x93NUMPY":
            return numpy.load(path, allow_pickle=False)
        if start[:4] == b"PK\x03\x04":
            with numpy.load(path, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        if start[:8] == b"\x89PNG\r\n\x1a\n":
            return _picture(read_png(path), slot)
        if start[:4] in (b"RIFF", b"RF64") and start[8:12] == b"WAVE":
            return _sound(path, slot)
    except Validation as error:
        raise _refusal(name, error.detail, error.remedy) from None
    except Exception as error:  # noqa: BLE001 (readers of untrusted files may raise any exception)
        raise _refusal(name, f"{file['name'][:100]!r} cannot be read: {error}", _SEND) from None
    raise _refusal(name, f"{file['name'][:100]!r} is not a .npy, .npz, WAV or PNG file", _SEND)


def _sound(path: Path, slot: Any) -> Any:
    """Return samples from -1 to 1: [channels, frames] with leading dimensions of 1, or a mean of channels [frames]."""
    import soundfile

    samples, _ = soundfile.read(path, dtype="float32", always_2d=True)
    sides = len(slot.shape) if slot is not None else 2
    sound = samples.mean(axis=1) if sides == 1 else samples.T
    wanted = slot.shape[-2] if slot is not None and sides > 1 else None
    if wanted == 1 and len(sound) > 1:
        sound = sound.mean(axis=0, keepdims=True)
    return sound.reshape((1,) * max(0, sides - sound.ndim) + sound.shape)


def _picture(pixels: Any, slot: Any) -> Any:
    """Return pixels [height, width, channels] in the input's layout; floats are scaled to 0 to 1."""
    import numpy

    if slot is None:
        return pixels
    shape = slot.shape
    first = len(shape) >= 3 and shape[-3] in (1, 3, 4) and shape[-1] not in (1, 3, 4)
    wanted = shape[-3] if first else shape[-1] if len(shape) >= 3 else 1
    if wanted == 1 and pixels.shape[2] in (3, 4):
        raise Validation("the picture is in colour, but the input is greyscale", "Send a greyscale picture.")
    if wanted == 3:
        pixels = numpy.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, :3]
    if numpy.dtype(_dtype(slot) or "float32").kind == "f":
        pixels = pixels.astype("float32") / numpy.iinfo(pixels.dtype).max
    pixels = pixels.transpose(2, 0, 1) if first else pixels[:, :, 0] if len(shape) < 3 else pixels
    return pixels.reshape((1,) * max(0, len(shape) - pixels.ndim) + pixels.shape)


def _fitting(slot: Any, value: Any, more_sides: int) -> Any:
    """Return the value with the input's type and a shape that the graph accepts."""
    import numpy

    dtype = _dtype(slot)
    if dtype is None:
        raise _refusal(
            slot.name, f"inputs of the type {slot.type} are not supported", "Use a graph with tensors as inputs."
        )
    try:
        array = value if isinstance(value, numpy.ndarray) else _from_lists(value, dtype)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise _refusal(slot.name, f"it is not an array of {dtype}, or its rows differ in length", _SEND) from None
    array = _typed(slot, array, dtype)
    expected = slot.shape or []
    sides = array.shape[more_sides:]
    wrong = len(sides) != len(expected) or any(
        isinstance(want, int) and want != have for want, have in zip(expected, sides, strict=True)
    )
    if wrong or array.ndim < more_sides:
        each = " for each entry" if more_sides else ""
        raise _refusal(
            slot.name, f"it should be {describe(slot)}{each}, but is {list(array.shape)}", "Send it in that shape."
        )
    return numpy.ascontiguousarray(array) if array.ndim else array


def _from_lists(value: Any, dtype: str) -> Any:
    import numpy

    if dtype == "object":
        array = numpy.array(value, dtype=object)
        return array if all(isinstance(each, str) for each in array.flat) else numpy.asarray(value)
    array = numpy.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        raise ValueError
    return array


def _typed(slot: Any, array: Any, dtype: str) -> Any:
    """Return the same numbers in the input's type. Raises Validation if it cannot represent them."""
    import numpy

    if dtype == "object":
        if array.dtype.kind not in "OUS":
            raise _refusal(slot.name, f"it should hold strings, but holds {array.dtype}", _SEND)
        texts = array.astype(str) if array.dtype.kind == "U" else array
        return texts.astype(object)
    if array.dtype.kind not in "biufc":
        raise _refusal(slot.name, f"it should hold {dtype}, but holds {array.dtype}", _SEND)
    if array.dtype == dtype:
        return array
    kind = numpy.dtype(dtype).kind
    with numpy.errstate(all="ignore"):
        cast = array.astype(dtype)
    if kind in "fc" and (array.dtype.kind in "biuf" or kind == array.dtype.kind):  # rounded, but not to infinity
        held = bool((numpy.isfinite(cast) | ~numpy.isfinite(array)).all())
    else:
        held = array.dtype.kind != "c" and numpy.array_equal(cast, array)
    if not held:
        raise _refusal(
            slot.name, f"{dtype} cannot represent its {array.dtype} numbers", f"Send numbers in the range of {dtype}."
        )
    return cast


def _dtype(slot: Any) -> str | None:
    kind = str(slot.type)
    return _NUMPY.get(kind[7:-1]) if kind.startswith("tensor(") else None


def _plain(value: Any) -> Any:
    """Return sequences and maps of a graph as JSON values."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _known(slots: Mapping[str, Any]) -> str:
    return f"Inputs: {', '.join(f'{slot.name} {describe(slot)}' for slot in slots.values())[:1000]}."


def _refusal(name: str, what: str, remedy: str) -> Validation:
    return Validation(f"inputs.{name[:100]}: {what}.", remedy, fields=[f"inputs.{name}"])
