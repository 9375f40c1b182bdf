"""The engine transformers from request to receipt, with fake cards: text, batches, ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import ModelLoadFailed
from backend.engines import LoadRequest, RunRequest, Session, load_engine, transformers
from backend.engines._torch.model_files import open_model_files
from backend.tasks.options import parse_options
from tests.faulty_stacks.cases.case import CARD
from tests.faulty_stacks.environments import make
from tests.service import Server, start_server
from tests.test_safetensors import safetensors
from tests.tiny_genai import END, TEMPLATE, write_tokenizer

PACKAGES = ("torch", "torch_directml", "transformers", "tokenizers")
SIZES = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_attention_heads": 2}
SIZES |= {"num_hidden_layers": 1, "vocab_size": 258, "max_position_embeddings": 512, "eos_token_id": 257, "seed": 5}
PROMPTS = ["a", "Tell me of rivers and mills. " * 5, "Why?", "b" * 150]


def write_model(folder: Path, **changes: Any) -> Path:
    """A folder of safetensors with those sizes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**SIZES, **changes}))
    (folder / "model.safetensors").write_bytes(safetensors({"a": ("F32", 4000)}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("torch")
    write_model(home / "data" / "models" / "tiny")
    write_model(home / "data" / "models" / "odd", layer_types=["linear_attention"])
    none: dict[str, Any] = {"cards": [], "available": False}
    plans = {"cuda": {"cards": [CARD]}, "directml": {"adapters": ["AMD Radeon RX 6800"], **none}, "torch": none}
    pythons = {name: {"python": str(make(home / name, plan, PACKAGES))} for name, plan in plans.items()}
    config = home / "config.json"
    config.write_text(json.dumps({"runtimes": pythons, "text": {"slots": 3, "context_tokens": 300}}))
    server = start_server(home / "data", "--config", str(config))
    server.http.get("/api/devices", params={"wait_s": 60})
    yield server
    server.stop()


def generate(server: Server, device: str, prompt: str = "Hello", **options: Any) -> dict[str, Any]:
    chosen = {"temperature": 0, "max_tokens": 40, **options}
    body = {"model": "tiny", "device": device, "engine": "transformers", "fallback": "never", "prompt": prompt}
    return server.generate(**body, options=chosen)


@pytest.mark.parametrize(
    ("device", "runtimes", "counted"),
    [
        ("cpu", {"cuda", "torch"}, "not counted"),
        ("cuda:0", {"cuda"}, "allocator counts"),
        ("directml:0", {"directml"}, "not counted"),
    ],
)
def test_a_job_says_where_it_ran(server: Server, device: str, runtimes: set[str], counted: str) -> None:
    job = generate(server, device)
    assert job["status"] == "done", job
    receipt = job["receipt"]
    assert (receipt["used"], receipt["engine"]) == (device, "transformers") and receipt["runtime"] in runtimes
    assert receipt["placement"]["on_device"] == 1.0 and counted in receipt["placement"]["evidence"]
    assert receipt["counts"]["tokens"] > 1 and receipt["memory"]["peak_bytes"] and receipt["versions"]["transformers"]


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "directml:0"])
def test_a_text_among_others_is_the_text_alone(server: Server, device: str) -> None:
    alone = [generate(server, device, prompt)["output"]["text"] for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(lambda prompt: generate(server, device, prompt), PROMPTS))
    assert [job["output"]["text"] for job in together] == alone
    assert len(set(alone)) == len(PROMPTS)


def test_the_same_seed_gives_the_same_text_and_another_another(server: Server) -> None:
    texts = [
        generate(server, "cpu", seed=seed, temperature=1.0, top_k=0, top_p=1.0)["output"]["text"] for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_options_change_the_text_as_they_say(server: Server) -> None:
    plain = generate(server, "cuda:0")["output"]["text"]
    stopped = generate(server, "cuda:0", stop=[plain[2:4]])
    assert stopped["output"]["text"] == plain[: plain.index(plain[2:4])]
    biased = generate(server, "cuda:0", logit_bias={str(ord("q")): 100}, max_tokens=5)
    assert biased["output"]["text"] == "qqqqq"
    held = generate(server, "cuda:0", logit_bias={str(ord("q")): 100}, frequency_penalty=2, max_tokens=60)
    assert set(held["output"]["text"]) > {"q"}
    assert generate(server, "cuda:0", repetition_penalty=2.0)["output"]["text"] != plain
    assert generate(server, "cuda:0", presence_penalty=2.0)["output"]["text"] != plain


def test_an_end_of_text_is_not_shown(server: Server) -> None:
    job = generate(server, "cpu", logit_bias={"257": 100})
    assert (job["output"]["text"], job["receipt"]["counts"]["tokens"]) == (None, 1)


def test_typed_marks_are_text(server: Server) -> None:
    def counted(prompt: str, **options: Any) -> int:
        count: int = generate(server, "cpu", prompt, max_tokens=1, **options)["receipt"]["counts"]["prompt_tokens"]
        return count

    assert counted(END) == counted("x" * len(END))
    assert counted(END + "x", raw=True) == 2


def test_a_prompt_that_does_not_fit_is_refused_with_both_counts(server: Server) -> None:
    problem = generate(server, "cpu", "x" * 300)
    assert problem["code"] == "context_length_exceeded"
    assert "has 319 tokens and the context holds 300" in problem["detail"]
    full = generate(server, "cpu", "x" * 270, max_tokens=100, logit_bias={str(ord("q")): 100})
    assert full["receipt"]["counts"]["tokens"] == 11


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A model in this process."""
    python = make(tmp_path / "env", {}, PACKAGES)
    site = next(python.parents[1].rglob("site-packages"))
    before = set(sys.modules)
    sys.path.insert(0, str(site))
    yield load_engine("transformers").load(LoadRequest("cpu", str(write_model(tmp_path / "m")), 300, 1, 2))
    sys.path.remove(str(site))
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]


@pytest.mark.parametrize(("event", "expected"), [("token", ["token"]), ("progress", ["progress"])])
def test_a_cancel_is_heard_within_a_token_or_a_chunk(session: Session, event: str, expected: list[str]) -> None:
    seen: list[str] = []

    def emit(name: str, data: Mapping[str, Any]) -> bool:
        seen.append(name)
        return name == event

    options = parse_options("text", {"temperature": 0, "max_tokens": 100, "logit_bias": {str(ord("q")): 100}})
    result = session.run(RunRequest(None, "x" * 200, options, 1, False), emit)
    assert result.finish_reason == "cancelled"
    assert [name for name in seen if name == event] == expected
    again = session.run(RunRequest(None, "x", {**options, "max_tokens": 3}, 1, False), lambda *_: False)
    assert again.counts["tokens"] == 3


def test_log_probabilities_are_in_their_order(server: Server) -> None:
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 5, "temperature": 0, "logprobs": 3, "device": "cuda:0"}
    answer = server.http.post("/v1/completions", json={**body, "logit_bias": {str(ord("q")): 100}}).json()
    assert answer["choices"][0]["logprobs"]["tokens"] == ["q"] * 5
    for best, own in zip(
        *(answer["choices"][0]["logprobs"][name] for name in ("top_logprobs", "token_logprobs")), strict=True
    ):
        values = list(best.values())
        assert values == sorted(values, reverse=True) and own <= values[0] <= 0


def test_a_model_of_an_unknown_kind_is_refused_by_name(server: Server) -> None:
    problem = server.generate(model="odd", device="cpu", engine="transformers", fallback="never", prompt="a")
    assert problem["code"] == "model_incompatible" and "linear_attention" in problem["detail"]


def test_the_estimate_has_the_cache_of_all_slots(tmp_path: Path) -> None:
    engine, folder = load_engine("transformers"), str(write_model(tmp_path / "m"))
    one, four = (engine.estimate_bytes(folder, 300, slots) for slots in (1, 4))
    assert one and four and four - one == 3 * 300 * 32 * 2 * 2


@pytest.mark.parametrize("error", [ImportError("No module named 'gguf'"), ValueError("It needs x: `pip install x`.")])
def test_a_package_that_the_runtime_lacks_is_a_matter_of_the_runtime(tmp_path: Path, error: Exception) -> None:
    refused = transformers._load_error(open_model_files(write_model(tmp_path / "m")), error)
    assert isinstance(refused, ModelLoadFailed) and "runtimes update" in refused.remedy
