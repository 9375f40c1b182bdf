"""Conversion: its tokenizer equals llama.cpp's, forms are found, and unsupported models fail early."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import shutil
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.child.convert import FORMS, MANIFEST, offsets, openvino_config, place_of
from backend.child.convert import comparison as comparing
from backend.child.convert.step_runner import run_step
from backend.child.programs import convert
from backend.common.config.settings import load_settings
from backend.common.config.settings.schema import RuntimeRules, Settings
from backend.common.errors import DiskFull, ModelBroken, ModelIncompatible, TouchstoneError, Validation
from backend.common.formats.gguf import read_header, tokenizer
from backend.common.formats.gguf.vocabulary import Vocabulary, read_vocabulary
from backend.common.types import Progress
from backend.engines._openvino.model_files import open_folder
from backend.models import Catalogue, registration
from backend.models import conversion as conversions
from backend.runtimes.store import InstalledRuntime, RuntimeStore
from backend.tasks.options import fill_defaults, parse_options
from tests import tiny_genai
from tests.faulty_stacks.environments import PACKAGES
from tests.service import ROOT, Server
from tests.test_safetensors import safetensors

TEXTS = [
    "Hello world",
    "  two  spaces\n\n\nand lines\t\ttabs \r\n",
    "Don't we'll I'm you've HE'S they'd",
    "1234567890 12,345.67 2026-11-28",
    "Ünïcödé 日本語 тест עברית العربية ไทย",
    "😀 👨‍👩‍👧 🇨🇭 ❤️",
    "x=1;for(i=0;i<10;i++){a[i]+=b*c;}",
    "\u00a0nbsp\u2028line\u200bzero\ufeffbom",
    "a" * 300,
    "trailing   ",
    "\n",
    " ",
    "…—“”‘’«»",
    "e\u0301 vs é",
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.fixture(scope="module")
def vocabulary(model_file: Path) -> Vocabulary:
    return read_vocabulary(model_file)


class _Socket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


@pytest.fixture(scope="module")
def llama(model_file: Path) -> Iterator[Any]:
    """llama.cpp's own tokenizer, by its server's route."""
    xllamacpp = pytest.importorskip("xllamacpp")
    with tempfile.TemporaryDirectory() as folder:
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.fit_params = str(model_file), 64, False
        params.hostnames, params.api_keys = [f"{folder}/s.sock"], [secrets.token_urlsafe(8)]
        server = xllamacpp.Server(params)

        def tokens(text: str) -> list[int]:
            body = json.dumps({"content": text, "add_special": False, "parse_special": True})
            with contextlib.closing(_Socket(Path(folder, "s.sock"))) as line:
                headers = {"Authorization": f"Bearer {params.api_keys[0]}", "Content-Type": "application/json"}
                line.request("POST", "/tokenize", body, headers)
                found: list[int] = json.loads(line.getresponse().read())["tokens"]
                return found

        yield tokens
        del server


def test_the_tokenizer_made_of_a_gguf_file_cuts_as_llama_cpp_does(
    vocabulary: Vocabulary, llama: Any, tmp_path: Path
) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    tokenizer.write(vocabulary, tmp_path, 2048)
    (tmp_path / "genai_config.json").write_text(json.dumps(tiny_genai.config(len(vocabulary.tokens))))
    made = genai.Tokenizer(str(tmp_path))
    files = [ROOT / "README.md", *sorted((ROOT / "tests" / "cases" / "prompts").glob("*.txt"))]
    prompts = [file.read_bytes().decode("utf-8", "ignore").replace("\0", "") for file in files]
    different = [text for text in TEXTS + prompts if [int(token) for token in made.encode(text)] != llama(text)]
    assert different == []


def test_the_template_and_the_marks_come_along(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tokenizer.write(vocabulary, tmp_path, 2048)
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == vocabulary.chat_template
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    added = tokenizer.tokenizer_json(vocabulary)["added_tokens"]
    assert [token["content"] for token in added] == vocabulary.control_marks()
    assert len(added) == 17


@pytest.mark.parametrize(("model", "pre"), [("llama", None), ("gpt2", "some-day"), ("bert", "default")])
def test_a_tokenizer_of_another_kind_is_refused_by_name(vocabulary: Vocabulary, model: str, pre: str | None) -> None:
    with pytest.raises(ModelIncompatible, match=f"{model}, {pre}"):
        tokenizer.tokenizer_json(replace(vocabulary, model=model, pre=pre))


def settings_of(folder: Path, model_file: Path) -> Settings:
    models = folder / "models"
    models.mkdir(parents=True)
    (models / model_file.name).hardlink_to(model_file)
    return load_settings({"storage.data_dir": str(folder)})


def form(settings: Settings, name: str, source_bytes: int, model: str = "smollm2-135m-instruct") -> Path:
    place = place_of(settings.models_dir, model, name)
    tiny_genai.make(place)
    comparison = {"tokens": 10, "tokens_alike": 7, "differences": []}
    made = {"source": {"name": "x", "bytes": source_bytes}, "comparison": comparison, "bytes": 5}
    (place / MANIFEST).write_text(json.dumps(made))
    return place


def test_a_form_is_another_engine_of_the_same_model(tmp_path: Path, model_file: Path) -> None:
    settings = settings_of(tmp_path / "d", model_file)
    own = Catalogue(settings).resolve("smollm2-135m-instruct").engines
    place = form(settings, "onnx-int4", model_file.stat().st_size)
    catalogue = Catalogue(settings)
    entry = catalogue.resolve("smollm2-135m-instruct")
    assert entry.engines == (*own, "onnx-genai")
    assert (entry.path_for("onnx-genai"), entry.path_for("llama.cpp")) == (place, entry.target)
    told = catalogue.model(entry)
    assert (told.state, told.engines) == ("ready", [*own, "onnx-genai"])
    assert told.details["forms"]["onnx-genai"] == {"form": "onnx-int4", "bytes": 5, "tokens": 10, "tokens_alike": 7}
    better = form(settings, "onnx-int8", model_file.stat().st_size)
    assert Catalogue(settings).resolve("smollm2-135m-instruct").path_for("onnx-genai") == better


def test_forms_go_with_their_model(tmp_path: Path, model_file: Path) -> None:
    settings = settings_of(tmp_path / "d", model_file)
    place = form(settings, "onnx-int8", model_file.stat().st_size)
    registration.remove(Catalogue(settings), "smollm2-135m-instruct")
    assert not place.exists()


def test_a_form_of_another_file_is_not_offered(tmp_path: Path, model_file: Path) -> None:
    settings = settings_of(tmp_path / "d", model_file)
    form(settings, "onnx-int8", model_file.stat().st_size - 1)
    assert "onnx-genai" not in Catalogue(settings).resolve("smollm2-135m-instruct").engines


def test_what_agrees_is_counted_to_the_first_difference() -> None:
    def said(*tokens: str) -> comparing.Answer:
        return {"text": "".join(tokens), "tokens": list(tokens), "prompt_tokens": 3}

    source = [said("a", "b", "c")] * len(comparing.PROMPTS)
    made = [said("a", "b", "c"), said("a", "x", "c"), *[said("y")] * (len(comparing.PROMPTS) - 2)]
    found = comparing.compare(source, made)
    assert (found["tokens"], found["tokens_alike"], found["first_alike"], found["texts_alike"]) == (24, 4, 2, 1)
    assert found["differences"][0] == {"prompt": comparing.PROMPTS[1], "source": "abc", "made": "axc"}
    text = conversions.said("onnx-int8", {"path": "", "bytes": 2_000_000, "comparison": found})
    assert "4 of 24 tokens before the first difference" in text
    assert "  onnx-int8: axc" in text


def test_what_cannot_be_converted_is_refused_at_once(tmp_path: Path, model_file: Path) -> None:
    settings = settings_of(tmp_path / "d", model_file)
    entry = Catalogue(settings).resolve("smollm2-135m-instruct")
    with pytest.raises(Validation, match="not a known form"):
        conversions.check(entry, "onnx-int3", settings)
    with pytest.raises(Validation, match="neither a GGUF file nor a folder of safetensors"):
        conversions.check(replace(entry, target=tmp_path), "onnx-int4", settings)
    with pytest.raises(Validation, match="needs the runtime openvino, which is not installed") as missing:
        conversions.check(entry, "openvino", settings)
    assert "runtimes install openvino" in missing.value.remedy
    weights = replace(entry, target=checkpoint(tmp_path / "weights"))
    with pytest.raises(Validation, match="openvino is made from GGUF files only"):
        conversions.check(weights, "openvino", settings)
    conversions.check(weights, "onnx-int4", settings)
    own = replace(settings, runtimes={"openvino": RuntimeRules(python=Path(sys.executable))})
    conversions.check(entry, "openvino", own)


def checkpoint(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    told = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "model.safetensors").write_bytes(safetensors({"a": ("BF16", 4)}))
    return folder


def test_safetensors_that_cannot_be_converted_cost_no_environment(tmp_path: Path) -> None:
    with pytest.raises(ModelIncompatible, match=r"is not a text generation model \(BertModel\)"):
        convert.check(checkpoint(tmp_path / "a", architectures=["BertModel"]))
    folder = checkpoint(tmp_path / "b")
    with pytest.raises(ModelIncompatible, match=r"no tokenizer\.json"):
        convert.check(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert convert.check(folder) is None
    (folder / "model.safetensors").write_bytes(b"<html>")
    with pytest.raises(ModelBroken, match="a web page"):
        convert.check(folder)


def test_a_form_makes_safetensors_a_model_that_runs(tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path / "d")})
    settings.models_dir.mkdir(parents=True)
    folder = checkpoint(settings.models_dir / "stone")
    own = Catalogue(settings).resolve("stone").engines
    form(settings, "onnx-int8", (folder / "model.safetensors").stat().st_size, "stone")
    catalogue = Catalogue(settings)
    entry = catalogue.resolve("stone")
    assert (entry.engines, catalogue.path_of(entry)) == ((*own, "onnx-genai"), folder)


def test_the_cost_is_said_before_it_begins(tmp_path: Path, model_file: Path) -> None:
    settings = settings_of(tmp_path / "d", model_file)
    assert "1.4 GB on disk" in conversions.cost(settings, "onnx-int8", model_file)
    shelf = RuntimeStore(settings.data_dir / "runtimes")
    packages = dict(line.split("==") for line in conversions._recipe().lines())
    for held, words in (
        (packages, False),
        (packages | {"torch": "2.13.0+cpu"}, False),
        (packages | {"onnx": "9"}, True),
    ):
        shelf.folder("convert", "one").mkdir(parents=True, exist_ok=True)
        shelf.finish("convert", InstalledRuntime("one", sys.executable, held, 1, "2026-01-01"))
        shelf.switch("convert", "one")
        assert ("1.4 GB on disk" in conversions.cost(settings, "onnx-int8", model_file)) == words


def test_the_settings_of_a_form_for_openvino_are_those_of_the_file(
    vocabulary: Vocabulary, model_file: Path, tmp_path: Path
) -> None:
    header = read_header(model_file)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).write_bytes(b"")
    tokenizer.write(vocabulary, tmp_path, 2048)
    openvino_config.write_config(tmp_path, header, vocabulary)
    folder = open_folder(tmp_path)
    assert folder.cache_bytes_per_token == header.cache_bytes_per_token and folder.context_length == 8192
    assert folder.vocabulary_size == len(vocabulary.tokens) and set(folder.ends) == {0, 2, "<|im_end|>"}


def q4_1(scales: Any, added: Any, numbers: Any) -> bytes:
    """A GGUF file with one matrix."""
    numpy = pytest.importorskip("numpy")
    low, high = numbers[..., :16], numbers[..., 16:]
    parts = [scales[..., None].view(numpy.uint8), added[..., None].view(numpy.uint8), low | high << 4]
    rows, groups = scales.shape
    facts = counted("general.architecture") + struct.pack("<I", 8) + counted("llama")
    tensor = counted("a") + struct.pack("<IQQIQ", 2, groups * 32, rows, 3, 0)
    start = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + facts + tensor
    weights: bytes = numpy.concatenate(parts, -1).tobytes()
    return start.ljust(-(-len(start) // 32) * 32, b"\0") + weights


def counted(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def test_offsets_that_were_rounded_are_put_back_where_a_matrix_is_known_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = pytest.importorskip("numpy")
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    random = numpy.random.default_rng(3)
    scales = random.uniform(0.01, 1, (6, 2)).astype(numpy.float16)
    added = random.uniform(-8, 0, (6, 2)).astype(numpy.float16)
    numbers = random.integers(0, 16, (6, 2, 32)).astype(numpy.uint8)
    (tmp_path / "a.gguf").write_bytes(q4_1(scales, added, numbers))
    exact = offsets.exact_offsets(tmp_path / "a.gguf")
    turned = [3, 1, 5, 0, 4, 2]  # some readers order rows anew
    known, changed = Matrix(scales[turned], numbers[turned]), Matrix(scales, numbers ^ 1)
    assert offsets.restore_offsets(SimpleNamespace(get_ordered_ops=lambda: [known, changed], **QUIET), exact) == 1
    assert changed.zeros is None
    weights = (numbers[turned] - known.zeros.astype(float)) * scales[turned][..., None].astype(float)
    wanted = numbers[turned] * scales[turned][..., None].astype(float) + added[turned][..., None].astype(float)
    assert numpy.abs(weights - wanted).max() < 0.01
    for name in ("openvino", "openvino.opset13"):
        sys.modules.pop(name, None)


QUIET = {"validate_nodes_and_infer_types": lambda: None}


class Matrix:
    """The subtraction in a matrix of an OpenVINO graph, and what stands around it."""

    def __init__(self, scales: Any, numbers: Any) -> None:
        kind = SimpleNamespace(get_type_name=lambda: "u4")
        asked = {"get_output_element_type": lambda index: kind, "get_output_shape": lambda index: numbers.shape}
        self._numbers = SimpleNamespace(get_type_name=lambda: "Constant", data=numbers, **asked)
        told = SimpleNamespace(get_type_name=lambda: "Constant", data=scales[..., None])
        times = SimpleNamespace(get_type_name=lambda: "Multiply", input_value=lambda index: node_of(told))
        self.output = lambda index: SimpleNamespace(get_target_inputs=lambda: {node_of(times)})
        self.zeros: Any = None

    def get_type_name(self) -> str:
        return "Subtract"

    def input_value(self, index: int) -> Any:
        before = {"get_type_name": lambda: "Convert", "input_value": lambda index: node_of(self._numbers)}
        return node_of(SimpleNamespace(**before))

    def input(self, input_index: int) -> Any:
        return SimpleNamespace(replace_source_output=lambda zeros: setattr(self, "zeros", zeros))


class node_of:  # noqa: N801 (called like a function)
    """A place that leads to a node."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def get_node(self) -> Any:
        return self._node


class _Channel:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, header: dict[str, Any]) -> None:
        self.sent.append(header)


def conversion(tmp_path: Path, source: Path, **more: Any) -> Any:
    order = {
        "source": str(source),
        "model": "m",
        "form": "onnx-int8",
        "models_dir": str(tmp_path),
        "python": sys.executable,
        "options": {},
    }
    return convert._Conversion(_Channel(), {**order, **more}, None)  # type: ignore[arg-type]


def test_the_texts_to_compare_are_made_with_all_text_options() -> None:
    assert fill_defaults("text", conversions._GREEDY) == parse_options("text", conversions._GREEDY)


def test_a_disk_without_room_is_said_before_anything_is_made(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=500_000_000))
    with pytest.raises(DiskFull, match="needs about 1574 MB of disk space"):
        conversion(tmp_path, model_file).run()
    assert not (tmp_path / "runtimes").exists()


def test_a_step_that_fails_says_its_last_telling_line() -> None:
    code = "import sys; print('ValueError: no such layer', file=sys.stderr); print('bye', file=sys.stderr); sys.exit(3)"
    with pytest.raises(TouchstoneError, match="The step 'read' failed: ValueError: no such layer"):
        run_step([sys.executable, "-c", code], "the step 'read' failed")
    full = "import sys; print('OSError: [Errno 28] No space left on device', file=sys.stderr); sys.exit(1)"
    with pytest.raises(DiskFull):
        run_step([sys.executable, "-c", full], "pip could not install")


def test_leaving_a_conversion_ends_its_child_and_leaves_no_form(tmp_path: Path, model_file: Path) -> None:
    settings = settings_of(tmp_path / "d", model_file)
    entry = Catalogue(settings).resolve("smollm2-135m-instruct")
    seen: list[Progress] = []

    async def leave() -> None:
        async def tell(progress: Progress) -> None:
            seen.append(progress)
            task.cancel()

        work = conversions.convert(entry, next(iter(FORMS)), settings, tell, asyncio.Lock())
        task = asyncio.ensure_future(work)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert seen[0].phase in ("tool", "resolve")
    assert "onnx-genai" not in Catalogue(settings).resolve("smollm2-135m-instruct").engines


def test_over_http_a_conversion_is_a_job_that_can_be_cancelled(server: Server) -> None:
    path = "/api/models/smollm2-135m-instruct/convert"
    refused = server.http.post(path, json={"to": "onnx-int2"})
    assert (refused.status_code, refused.json()["code"]) == (422, "validation_error")
    accepted = server.http.post(path, json={"to": "onnx-int8"})
    job = accepted.json()
    assert (accepted.status_code, job["task"], job["request"]["to"]) == (202, "convert", "onnx-int8")
    assert server.http.post(path, json={"to": "onnx-int8"}).json()["id"] == job["id"]
    assert server.http.post(f"/api/jobs/{job['id']}/cancel").status_code == 202
    assert server.until(job["id"], "cancelled")["output"]["text"] is None
    models = {model["id"]: model for model in server.http.get("/api/models").json()["models"]}
    assert "onnx-genai" not in models["smollm2-135m-instruct"]["engines"]
