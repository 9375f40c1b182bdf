"""The task onnx: any graph, with files and arrays in and out, through a real server and a real worker."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.refusals import refused
from tests.service import ROOT, Server, start_server, stream_events
from tests.slow.onnx_conformance import judge

CASES = ROOT / "tests" / "cases" / "onnx"
X = [[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]
Y = [[17.0, 23.0], [3.0, 4.0]]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose models folder holds the graphs of the cases."""
    folder = tmp_path_factory.mktemp("graphs") / "data"
    (folder / "models").mkdir(parents=True)
    for file in (*CASES.glob("*.onnx"), *(CASES / "reports").glob("*.onnx")):
        shutil.copy(file, folder / "models")
    outside = tmp_path_factory.mktemp("outside") / "weights.bin"
    outside.write_bytes((CASES / "reports" / "external_good" / "weights.bin").read_bytes())
    for name in ("beside", "gone", "away"):
        shutil.copytree(CASES / "reports" / "external_good", folder / "models" / name)
    (folder / "models" / "gone" / "weights.bin").unlink()
    (folder / "models" / "away" / "weights.bin").unlink()
    (folder / "models" / "away" / "weights.bin").symlink_to(outside)
    server = start_server(folder)
    server.http.get("/api/devices", params={"wait_s": 60})
    yield server
    assert server.stop() == 0


def run(server: Server, model: str, inputs: Any, **options: Any) -> Any:
    body = {"task": "onnx", "model": model, "inputs": inputs, "options": options, "device": "cpu"}
    return server.http.post("/api/generate", json=body)


def sent(server: Server, name: str, content: bytes) -> str:
    return str(server.http.put(f"/api/files/{name}", content=content).json()["id"])


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def output(server: Server, job: Any, name: str) -> Any:
    artifact = next(each for each in job["output"]["artifacts"] if each["name"] == name)
    content = server.http.get(artifact["url"]).content
    assert len(content) == artifact["bytes"]
    return json.loads(content) if name.endswith(".json") else np.load(io.BytesIO(content), allow_pickle=False)


def test_a_model_tells_what_it_takes(graphs: Server) -> None:
    models = {model["id"]: model for model in graphs.http.get("/api/models").json()["models"]}
    affine = models["affine"]
    assert (affine["task"], affine["engines"], affine["state"]) == ("onnx", ["onnxruntime"], "ready")
    assert affine["details"]["inputs"] == [{"name": "x", "type": "float32", "shape": ["rows", 3], "kind": "tensor"}]
    assert [each["name"] for each in affine["details"]["outputs"]] == ["y", "z/all"]
    assert affine["details"]["operators"] == {"MatMul": 1, "Add": 1, "ReduceSum": 1}
    assert affine["details"]["weight_bytes"] == 28
    assert set(affine["options_schema"]["properties"]) >= {"outputs", "each", "only"}


@pytest.mark.parametrize(
    ("model", "status", "code", "said"),
    [
        ("future_ir", 422, "model_incompatible", "IR version 99; this runtime reads up to"),
        ("future_opset", 422, "model_incompatible", "operator set 99 of ai.onnx; this runtime supports up to"),
        ("unknown_operator", 422, "model_incompatible", "the operator own.test::Sparkle"),
        ("truncated", 422, "model_broken", "is not an ONNX file, or is truncated"),
        ("empty", 422, "model_broken", "is empty"),
        ("away/model.onnx", 422, "model_broken", "is outside its folder"),
        ("gone/model.onnx", 422, "model_broken", "needs the file weights.bin"),
    ],
)
def test_what_cannot_be_loaded_says_why(graphs: Server, model: str, status: int, code: str, said: str) -> None:
    answer = run(graphs, model, {"x": [1.0, 2.0, 3.0, 4.0]})
    refused(answer, status, code)
    assert said in answer.json()["detail"]


def test_broken_graphs_are_listed_as_such(graphs: Server) -> None:
    models = {model["id"]: model for model in graphs.http.get("/api/models").json()["models"]}
    assert {name: models[name]["state"] for name in ("truncated", "empty", "future_ir")} == {
        "truncated": "broken",
        "empty": "broken",
        "future_ir": "ready",  # what the runtime reads is known to the worker alone
    }


def test_weights_beside_the_graph(graphs: Server) -> None:
    job = run(graphs, "beside/model.onnx", {"x": [0.0, 0.0, 0.0, 0.0]}).json()
    weights = np.frombuffer((CASES / "reports" / "external_good" / "weights.bin").read_bytes(), "<f4")
    assert output(graphs, job, "y.npy").tolist() == weights[:4].tolist()


def test_an_array_in_and_files_out(graphs: Server) -> None:
    answer = run(graphs, "affine", {"x": X})
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert [each["name"] for each in job["output"]["artifacts"]] == ["y.npy", "z_all.npy"]
    y, z = output(graphs, job, "y.npy"), output(graphs, job, "z_all.npy")
    assert (y.dtype, y.tolist(), float(z)) == (np.float32, Y, 7.0)
    receipt = job["receipt"]
    assert (receipt["used"], receipt["fell_back"], receipt["engine"]) == ("cpu", False, "onnxruntime")
    assert receipt["placement"]["on_device"] == 1.0 and "record of the assignment" in receipt["placement"]["evidence"]
    assert receipt["chosen"]["outputs"][1] == {"name": "z/all", "file": "z_all.npy", "type": "float32", "shape": []}
    assert receipt["model_file"] == "affine.onnx"


def test_json_out_is_the_text_as_well(graphs: Server) -> None:
    job = run(graphs, "affine", {"x": X}, outputs="json", only=["y"]).json()
    assert json.loads(job["output"]["text"]) == {"y": Y}
    assert output(graphs, job, "y.json") == Y


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", npy(np.array(X, "float64"))),
        ("x.npy", npy(np.array(X, "int8"))),
        ("anything.npz", npz(x=np.array(X, "float32"))),
        ("x.npz", npz(only=np.array(X, "float16"))),
    ],
)
def test_files_of_numpy(graphs: Server, name: str, content: bytes) -> None:
    job = run(graphs, "affine", {"x": sent(graphs, name, content)}).json()
    assert output(graphs, job, "y.npy").tolist() == Y


def test_an_archive_fills_all_inputs_by_name(graphs: Server) -> None:
    content = npz(times=np.array(0), x=np.ones((256, 256), "float32"))
    job = run(graphs, "long", {"all": sent(graphs, "all.npz", content)}).json()
    assert output(graphs, job, "y.npy").tolist() == np.ones((256, 256)).tolist()


def wav(channels: int) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.linspace(-0.5, 0.5, 12).reshape(-1, channels), 8000, format="WAV", subtype="FLOAT")
    return out.getvalue()


@pytest.mark.parametrize(("channels", "shape"), [(1, [1, 1, 12]), (2, [1, 2, 6])])
def test_a_sound(graphs: Server, channels: int, shape: list[int]) -> None:
    job = run(graphs, "sound", {"x": sent(graphs, "x.wav", wav(channels))}).json()
    y = output(graphs, job, "y.npy")
    assert list(y.shape) == shape
    assert y[0, 0, 0] == pytest.approx(0.5) and y.min() >= 0


def test_a_sound_for_a_flat_input_is_the_mean_of_its_channels(graphs: Server) -> None:
    job = run(graphs, "log", {"x": sent(graphs, "x.wav", wav(2))}).json()
    assert output(graphs, job, "y.npy").shape == (6,)


def png(pixels: Any, filters: int, colour: int) -> bytes:
    """A picture whose rows are all filtered in one way, by the formulas of the specification."""
    height, width, step = pixels.shape
    raw = bytearray()
    for y in range(height):
        raw.append(filters)
        for at in range(width * step):
            here = int(pixels[y].reshape(-1)[at])
            left = int(pixels[y].reshape(-1)[at - step]) if at >= step else 0
            up = int(pixels[y - 1].reshape(-1)[at]) if y else 0
            corner = int(pixels[y - 1].reshape(-1)[at - step]) if y and at >= step else 0
            guess = left + up - corner
            paeth = min((left, up, corner), key=lambda each: abs(guess - each))
            raw.append(here - (0, left, up, (left + up) // 2, paeth)[filters] & 255)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(raw))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("filters", range(5))
def test_a_picture_lies_as_the_input_wants_it(graphs: Server, filters: int) -> None:
    pixels = np.random.default_rng(filters).integers(0, 256, (4, 5, 4), "uint8")
    job = run(graphs, "picture", {"x": sent(graphs, "x.png", png(pixels, filters, 6))}).json()
    wanted = pixels[:, :, :3].transpose(2, 0, 1)[None].astype("float32") / 255
    assert np.array_equal(output(graphs, job, "y.npy"), wanted)


def test_texts(graphs: Server) -> None:
    job = run(graphs, "texts", {"x": ["tämä", "", "🎵"]}).json()
    assert output(graphs, job, "y.npy").tolist() == ["tämä", "", "🎵"]
    job = run(graphs, "texts", {"x": sent(graphs, "x.npy", npy(["a", "bc"]))}, outputs="json").json()
    assert output(graphs, job, "y.json") == ["a", "bc"]


def test_each_entry_by_itself(graphs: Server) -> None:
    job = run(graphs, "affine", {"x": [X, X, X]}, each=True).json()
    assert output(graphs, job, "y.npy").tolist() == [Y, Y, Y]
    assert job["receipt"]["counts"] == {"runs": 3}


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        ("affine", {}, "inputs.x: it is missing; it should be float32 [rows, 3]"),
        ("affine", {"y": [1]}, "inputs.y: the graph has no such input"),
        ("affine", {"x": [[1, 2]]}, "it should be float32 [rows, 3], but is [1, 2]"),
        ("affine", {"x": [[1, 2, 3], [1]]}, "its rows differ in length"),
        ("affine", {"x": [["a", "b", "c"]]}, "it is not an array of float32"),
        ("affine", {"x": 1.0}, "but is []"),
        ("affine", {"x": [[1e308, 1, 1]]}, "float32 cannot represent its"),
        ("bytes", {"x": [1.5]}, "uint8 cannot represent its"),
        ("bytes", {"x": [256]}, "uint8 cannot represent its"),
        ("bytes", {"x": [-1]}, "uint8 cannot represent its"),
        ("texts", {"x": [1]}, "it should hold strings"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(graphs: Server, model: str, inputs: Any, said: str) -> None:
    answer = run(graphs, model, inputs)
    refused(answer, 422, "validation_error")
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    "content",
    [
        b"plain text",
        b"\x93NUMPY\x01\x00",
        b"PK\x03\x04 no archive",
        b"\x89PNG\r\n\x1a\n",
        png(np.zeros((4, 5, 3), "uint8"), 0, 2)[:60],
        b"RIFF\0\0\0\0WAVE",
        wav(1)[:30],
        npy([[1.0, np.inf, 3.0]])[:-4],
    ],
)
def test_files_that_are_none_are_refused(graphs: Server, content: bytes) -> None:
    refused(run(graphs, "affine", {"x": sent(graphs, "x.npy", content)}), 422, "validation_error")


def test_no_pickle_is_opened(graphs: Server, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    answer = run(graphs, "texts", {"x": sent(graphs, "x.npy", (tmp_path / "x.npy").read_bytes())})
    refused(answer, 422, "validation_error")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": "0" * 32}, "Unknown file"),
        ({"x": None}, "should be the id of a file, or an array"),
        ({"x": {"a": 1}}, "should be the id of a file, or an array"),
        ({"x": [[1, 2, {"a": 3}]]}, "neither a number nor a text"),
        ({"x": [0.0] * 20_000}, "the limit is 16384"),
    ],
)
def test_what_no_graph_takes_is_refused_before_there_is_a_job(graphs: Server, inputs: Any, said: str) -> None:
    before = graphs.http.get("/api/jobs").json()["jobs"]
    answer = run(graphs, "affine", inputs)
    refused(answer, 422, "validation_error")
    assert said in answer.json()["detail"]
    assert graphs.http.get("/api/jobs").json()["jobs"] == before


def test_what_is_no_number_goes_out_as_a_file_and_is_counted(graphs: Server) -> None:
    job = run(graphs, "log", {"x": [1.0, 0.0, -1.0]}).json()
    y = output(graphs, job, "y.npy")
    assert y[0] == 0 and np.isinf(y[1]) and np.isnan(y[2])
    assert job["receipt"]["chosen"]["outputs"][0]["not_finite"] == 2
    answer = run(graphs, "log", {"x": [-1.0]}, outputs="json")
    refused(answer, 422, "validation_error")
    assert "JSON cannot represent" in answer.json()["detail"]


def test_an_output_beyond_the_memory_is_an_error_in_words_and_the_next_job_runs(graphs: Server) -> None:
    answer = run(graphs, "huge", {"sides": [1_000_000, 1_000_000]})
    refused(answer, 507, "out_of_memory")
    assert "4000.0 GB at once" in answer.json()["detail"]
    assert run(graphs, "huge", {"sides": [2, 3]}).status_code == 200


def test_a_cancel_is_heard_in_the_middle_of_a_run(graphs: Server) -> None:
    body = {
        "model": "long",
        "inputs": {"x": sent(graphs, "x.npy", npy(np.ones((256, 256), "float32"))), "times": 10**7},
    }
    for event in stream_events(graphs, {**body, "device": "cpu"}):
        if event.event == "running":
            graphs.http.post(f"/api/jobs/{event.data['job_id']}/cancel")
        last = event
    assert last.event == "cancelled"
    assert (
        last.data["receipt"]["worker_pid"]
        == run(graphs, "long", {"x": [[0.0] * 2], "times": 1}).json()["job"]["receipt"]["worker_pid"]
    )


def test_words_are_refused(graphs: Server) -> None:
    answer = graphs.http.post("/api/generate", json={"model": "affine", "prompt": "x", "inputs": {"x": X}})
    refused(answer, 422, "validation_error")


def test_check_agrees_with_the_processor(graphs: Server) -> None:
    said = json.loads(run(graphs, "affine", None, action="check", dimensions={"rows": 4}).json()["output"]["text"])
    assert said["agrees"] and said["made_up"] and said["first_difference"] is None
    assert [each["name"] for each in said["outputs"]] == ["y", "z/all"]


def test_bench_compares_with_a_bare_session(graphs: Server) -> None:
    said = json.loads(run(graphs, "affine", {"x": X}, action="bench", runs=5).json()["output"]["text"])
    assert said["runs"] == 5 and 0 < said["run_ms"]["low"] <= said["run_ms"]["median"] <= said["run_ms"]["high"]
    assert said["inputs"] == {"x": ["float32", [2, 3]]}


def test_inspect_tells_where_the_nodes_lie(graphs: Server) -> None:
    said = json.loads(run(graphs, "affine", None, action="inspect").json()["output"]["text"])
    assert said["nodes_on_device"] == said["nodes_after_optimisation"] > 0 and said["elsewhere"] == {}
    assert said["provider"] == "CPUExecutionProvider" and said["operator_sets"] == {"ai.onnx": 17}


@pytest.mark.parametrize("name", sorted(case.name for case in (CASES / "conformance").iterdir()))
def test_a_sample_of_onnx_s_own_data_passes_with_every_node_on_the_device(name: str) -> None:
    assert judge(CASES / "conformance" / name, "cpu") == {"name": name, "verdict": "passed", "why": ""}


def test_wrong_numbers_do_not_pass(tmp_path: Path) -> None:
    case = shutil.copytree(CASES / "conformance" / "add", tmp_path / "add")
    np.save(case / "output_0.npy", np.load(case / "output_0.npy") * 1.01)
    assert judge(case, "cpu")["verdict"] == "wrong"
