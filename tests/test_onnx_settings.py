"""Settings of ONNX graphs: provider options and operator libraries; and the command `onnx`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend.cli.main import main
from backend.common.config.settings import load_settings
from backend.common.errors import Configuration, ModelLoadFailed
from backend.devices import backends, known_options, onnx_place
from backend.engines import LoadRequest, RunRequest
from backend.engines._onnx.memory_limit import within_free_memory
from backend.engines.onnxruntime import load
from backend.scheduling.provider_options import check_provider_options
from backend.tasks.options import parse_options
from tests.service import ROOT

CASES = ROOT / "tests" / "cases" / "onnx"


def settings_with(tmp_path: Path, device: str, **options: Any) -> Any:
    text = json.dumps({"devices": {device: {"provider_options": options}}})
    (tmp_path / "config.yaml").write_text(text)
    return load_settings({"config": tmp_path / "config.yaml"}, {})


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("onnx-cuda:0", {"use_tf32": 0, "gpu_mem_limit": 2_000_000_000}),
        ("onnx-tensorrt:0", {"trt_fp16_enable": True, "trt_engine_cache_enable": True}),
        ("onnx-openvino:0", {"precision": "ACCURACY"}),
        ("onnx-coreml", {"MLComputeUnits": "CPUAndNeuralEngine"}),
        ("onnx-vitisai", {"config_file": "vaip_config.json"}),
    ],
)
def test_what_a_provider_knows_is_accepted(tmp_path: Path, device: str, options: dict[str, Any]) -> None:
    check_provider_options(settings_with(tmp_path, device, **options))


@pytest.mark.parametrize(
    ("device", "option", "said"),
    [
        ("onnx-cuda:0", "use_tf23", "Did you mean use_tf32?"),
        ("onnx-cuda:1", "device_id", "write onnx-cuda:N"),
        ("cpu", "use_tf32", "Leave them out"),
        ("vulkan:0", "x", "Leave them out"),
    ],
)
def test_what_it_does_not_know_is_refused(tmp_path: Path, device: str, option: str, said: str) -> None:
    with pytest.raises(Configuration) as refusal:
        check_provider_options(settings_with(tmp_path, device, **{option: 1}))
    assert said in refusal.value.remedy and option in refusal.value.detail


def test_every_provider_but_the_processor_s_names_its_options() -> None:
    names = [name for name in backends() if name.startswith("onnx-")]
    assert all(known_options(name) for name in names) and len(names) > 8


def test_options_reach_the_provider() -> None:
    place, seen = onnx_place("cpu", None, {"one": True, "two": 2}), []
    library = SimpleNamespace(
        __version__=place.onnxruntime.__version__,
        SessionOptions=place.onnxruntime.SessionOptions,
        InferenceSession=lambda source, sess_options, providers, enable_fallback: seen.extend(providers),
    )
    replace(place, onnxruntime=library).session(CASES / "affine.onnx", provider_options={"two": "3"})
    assert seen == [("CPUExecutionProvider", {"one": "True", "two": "3"})]


SPINNING = ("session.intra_op.allow_spinning", "session.force_spinning_stop", "session.intra_op.spin_duration_us")


@pytest.mark.parametrize(
    ("version", "told"),
    [(None, ["1", "1", "7"]), ("1.26.0", ["1", "1", "7"]), ("1.25.1", ["0"]), ("1.4.0.dev1", ["0"])],
)
def test_threads_spin_briefly_and_not_at_all_where_the_library_cannot(version: str | None, told: list[str]) -> None:
    place, asked = onnx_place("cpu"), {}
    options = place.onnxruntime.SessionOptions

    def add(self: Any, name: str, value: str) -> None:
        asked[name] = value
        options.add_session_config_entry(self, name, value)

    library = SimpleNamespace(
        __version__=version or place.onnxruntime.__version__,
        SessionOptions=type("Options", (options,), {"add_session_config_entry": add}),
        InferenceSession=place.onnxruntime.InferenceSession,
    )
    ours = replace(place, onnxruntime=library)
    for make in (ours.session, ours.bare_session):
        asked.clear()
        assert make(CASES / "affine.onnx", 1).get_inputs()
        assert [asked[name] for name in SPINNING if name in asked] == told


def test_a_library_of_operators_that_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "ops.so").write_bytes(b"no library")
    request = LoadRequest("cpu", str(CASES / "affine.onnx"), 0, 1, operator_libraries=[str(tmp_path / "ops.so")])
    with pytest.raises(ModelLoadFailed, match="ops.so"):
        load(request)


def verb(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"TOUCHSTONE_DATA_DIR": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "backend", "onnx", *words]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def here(tmp_path: Path, *words: str) -> int:
    """Run the command in this process, without a worker. Returns its exit code."""
    facts = {"storage": {"data_dir": str(tmp_path / "data")}, "runtimes": {"convert": {"python": sys.executable}}}
    (tmp_path / "config.yaml").write_text(json.dumps(facts))
    return main(["onnx", "--config", str(tmp_path / "config.yaml"), *words])


def test_the_verb_inspects_a_file_without_any_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(tmp_path, "inspect", str(CASES / "affine.onnx")) == 0
    told = capsys.readouterr()
    assert "input   x: float32 [rows, 3]" in told.out and "added as affine" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No module named 'onnx'"),
        (("x=gone.npy",), "The .npy file 'gone.npy' does not exist"),
        (("x",), "is not an input"),
    ],
)
def test_a_quantisation_that_cannot_be_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Those that can be take the environment for conversions, which is made by hand (docs/testing.md)."""
    target = tmp_path / "small.onnx"
    code = here(tmp_path, "quantize", str(CASES / "affine.onnx"), *words, "--to", "fp16", "--out", str(target))
    assert code in (1, 2) and said in capsys.readouterr().err
    assert not target.exists()


def test_the_verb_runs_a_graph_and_saves_its_outputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 3), "float32"))
    graph, x = str(CASES / "affine.onnx"), f"x={tmp_path / 'x.npy'}"
    done = verb(tmp_path, "run", graph, x, "--device", "cpu", "--only", "y", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [[7.0, 10.0]] * 4
    assert "ran on cpu with onnxruntime" in done.stderr
    done = verb(tmp_path, "run", "affine", "x=[1]")
    assert done.returncode == 1 and "inputs.x: it should be float32 [rows, 3]" in done.stderr


class Liar:
    """A session whose results are wrong from the node that gives `wrong` on."""

    def __init__(self, session: Any, wrong: str, later: tuple[str, ...]) -> None:
        self._session, self._wrong = session, (wrong, *later)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: list[str], inputs: Any, running: Any = None) -> list[Any]:
        found = self._session.run(names, inputs, running)
        return [value + 1 if name in self._wrong else value for name, value in zip(names, found, strict=True)]


def test_the_first_node_that_differs_is_named() -> None:
    session: Any = load(LoadRequest("cpu", str(CASES / "affine.onnx"), 0, 1))
    honest = session.place.session
    session.place.session = lambda *given, **named: Liar(honest(*given, **named), "product", ("y",))
    session.session = session.place.session(CASES / "affine.onnx")
    request = RunRequest(None, None, parse_options("onnx", {"action": "check"}), 7, False)
    said: list[str] = []
    session.run(request, lambda event, data: said.append(data.get("text", "")))
    found = json.loads("".join(said))
    assert not found["agrees"] and [each["agrees"] for each in found["outputs"]] == [False, True]
    first = found["first_difference"]
    assert (first["node"], first["operator"], first["name"]) == ("multiply", "MatMul", "product")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_graph_may_take_no_more_than_is_free() -> None:
    with within_free_memory(True, lambda: 400_000_000):
        np.zeros(100_000_000, "uint8")
        with pytest.raises(MemoryError):
            np.zeros(600_000_000, "uint8")
    np.zeros(600_000_000, "uint8")
    with within_free_memory(False, lambda: 400_000_000):
        np.zeros(600_000_000, "uint8")
