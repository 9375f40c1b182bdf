"""Demucs graphs with random weights: loading, selection of stems, exact sums, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import ModelBroken, ModelNotDownloaded
from backend.common.formats.onnx.writer import Node, Value, Weight, write
from backend.engines import LoadRequest, RunRequest, load_engine
from backend.models import Catalogue, download
from backend.models.file_checks import check
from backend.tasks.stems.choices import DEMUCS_STEMS
from tests.stems.sounds import RATE, noise, read
from tests.stems.sounds import write as write_sound

FRAMES = 2 * RATE


def graph(seed: int, stems: int = 4) -> tuple[bytes, Any]:
    """Write a graph whose four stems mix the two channels, and return the weights [stem, out, in]."""
    kernel = np.random.default_rng(seed).normal(0, 0.3, (stems * 2, 2, 1)).astype(np.float32)
    shape = np.array([1, stems, 2, FRAMES], np.int64)
    nodes = [Node("Conv", ["mix", "kernel"], ["flat"]), Node("Reshape", ["flat", "shape"], ["stems"])]
    weights = [
        Weight("kernel", "float32", kernel.shape, kernel.tobytes()),
        Weight("shape", "int64", [4], shape.tobytes()),
    ]
    inputs, outputs = [Value("mix", "float32", [1, 2, FRAMES])], [Value("stems", "float32", [1, stems, 2, FRAMES])]
    return write("demucs", nodes, inputs, outputs, weights), kernel.reshape(stems, 2, 2)


def run(folder: Path, tmp_path: Path, seconds: float = 5) -> tuple[Any, dict[str, Any], Any]:
    path = write_sound(tmp_path / "in.wav", noise(round(seconds * RATE), 2))
    session = load_engine("onnxruntime").load(LoadRequest("cpu", str(folder), 0, 1))
    options = {"stems": None, "format": "wav", "chunk_seconds": None}
    inputs = {"audio": {"path": str(path), "name": "in.wav", "media_type": "audio/wav"}}
    session.run(RunRequest(None, None, options, 1, False, str(tmp_path), inputs=inputs), lambda *told: False)
    return session, {stem: read(tmp_path / f"{stem}.wav") for stem in DEMUCS_STEMS}, read(path)


def expected(sound: Any, kernels: Any) -> Any:
    """Return the expected stems [stem, frame, channel], with the remainder of the sum distributed evenly."""
    stems = np.einsum("soi,fi->sfo", kernels.astype(float), sound)
    return stems + (sound - stems.sum(0)) / 4


def test_one_graph_gives_all_four_stems(tmp_path: Path) -> None:
    model = tmp_path / "mine"
    model.mkdir()
    content, kernels = graph(1)
    (model / "htdemucs.onnx").write_bytes(content)
    session, stems, sound = run(model, tmp_path)
    for stem, truth in zip(DEMUCS_STEMS, expected(sound, kernels), strict=True):
        assert np.abs(stems[stem] - truth).max() < 1e-5
    assert np.abs(sum(stems.values()) - sound).max() < 1e-6
    assert session.placement.on_device == 1 and session.model_file == "htdemucs.onnx"


def test_of_four_graphs_each_gives_its_own_stem(tmp_path: Path) -> None:
    model = tmp_path / "mine"
    model.mkdir()
    kernels = []
    for number, stem in enumerate(DEMUCS_STEMS):
        content, kernel = graph(number)
        (model / f"htdemucs_ft_{stem}.onnx").write_bytes(content)
        kernels.append(kernel[number])
    _, stems, sound = run(model, tmp_path)
    for stem, truth in zip(DEMUCS_STEMS, expected(sound, np.stack(kernels)), strict=True):
        assert np.abs(stems[stem] - truth).max() < 1e-5


def test_graphs_of_another_shape_are_refused(tmp_path: Path) -> None:
    (tmp_path / "htdemucs.onnx").write_bytes(graph(1, stems=6)[0])
    with pytest.raises(ModelBroken, match="are not Demucs graphs"):
        load_engine("onnxruntime").load(LoadRequest("cpu", str(tmp_path), 0, 1))


def test_the_catalogue_fetches_each_file_into_the_model_s_folder(tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    catalogue = Catalogue(settings)
    entry = catalogue.resolve("htdemucs_ft")
    assert entry.task == "stems" and catalogue.model(entry).state == "downloadable"
    assert download.arguments(entry) == ["download", "https"]
    order = download.order(entry, {}).decode()
    for stem in DEMUCS_STEMS:
        assert f"htdemucs-ft-onnx/resolve/main/htdemucs_ft_{stem}.onnx" in order
        assert str(settings.models_dir / "htdemucs_ft" / f"htdemucs_ft_{stem}.onnx") in order


def test_a_folder_that_came_in_part_is_fetched_on(tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    folder = settings.models_dir / "htdemucs_ft"
    folder.mkdir(parents=True)
    for stem in DEMUCS_STEMS[:2]:
        (folder / f"htdemucs_ft_{stem}.onnx").write_bytes(graph(1)[0])
    entry = Catalogue(settings).resolve("htdemucs_ft")
    refused = check(entry, 4096)
    assert isinstance(refused, ModelNotDownloaded) and "htdemucs_ft_other.onnx is missing" in refused.detail
    for stem in DEMUCS_STEMS[2:]:
        (folder / f"htdemucs_ft_{stem}.onnx").write_bytes(graph(1)[0])
    assert check(entry, 4096) is None


def test_a_folder_of_the_graphs_under_any_name_is_a_model_for_stems(tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    folder = settings.models_dir / "mine"
    folder.mkdir(parents=True)
    (folder / "htdemucs.onnx").write_bytes(graph(1)[0])
    entry = Catalogue(settings).resolve("mine")
    assert entry.task == "stems" and entry.engines == ("onnxruntime",)
