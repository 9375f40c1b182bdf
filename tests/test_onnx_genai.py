"""The engine onnx-genai on a tiny folder: batches, sampling, stops, and folders that are not models."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend.common.errors import ContextLengthExceeded, DeviceWrong, ModelBroken, ModelIncompatible
from backend.engines import LoadRequest, RunRequest, RunResult, load_engine, onnx_genai
from backend.engines._onnx.genai_config import open_folder
from backend.engines._onnx.genai_model import PREFILL_CHUNK_TOKENS, GenaiBatchModel
from backend.engines._text import batch_decoder
from backend.engines._text.batch_decoder import TextSequence
from backend.engines._text.sampler import Sampler
from backend.engines._text.session import TextSession
from backend.engines.onnx_genai import load
from backend.tasks.options import parse_options
from tests import tiny_genai

Stop = Callable[[str, Mapping[str, Any]], bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_genai.make(tmp_path_factory.mktemp("genai") / "tiny")


@pytest.fixture(scope="module")
def session(folder: Path) -> TextSession:
    return opened(folder, slots=3)


def opened(folder: Path, slots: int = 1, context_tokens: int = 300) -> TextSession:
    return load(LoadRequest("cpu", str(folder), context_tokens, 1, slots))


def run(
    session: TextSession, prompt: str = "Hello", seed: int = 1, stop_at: Stop | None = None, **options: Any
) -> tuple[str, RunResult, list[dict[str, Any]]]:
    texts: list[str] = []
    listed: list[dict[str, Any]] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        if event == "token":
            texts.append(data["text"])
            listed.extend(data.get("logprobs", ()))
        return stop_at(event, data) if stop_at else False

    chosen = parse_options("text", {"temperature": 0, "max_tokens": 40, **options})
    result = session.run(RunRequest(None, prompt, chosen, seed, False), emit)
    return "".join(texts), result, listed


def test_the_evidence_is_the_record_of_the_assignment(session: TextSession) -> None:
    assert session.placement.on_device == 1.0
    assert session.placement.evidence.startswith("ONNX Runtime's record of the assignment: 13 of 13 nodes")


@pytest.mark.parametrize("tells_each", [True, False])
@pytest.mark.parametrize("sizes", [(5, 40, 1, 17), (9, 9, 9, 9)])
def test_prompts_read_together_are_as_read_one_by_one(tmp_path: Path, tells_each: bool, sizes: tuple[int, ...]) -> None:
    import onnxruntime

    opened_folder = open_folder(tiny_genai.make(tmp_path / "m", tells_each=tells_each))
    graph = onnxruntime.InferenceSession(opened_folder.graph)
    options = parse_options("text", {"temperature": 0})

    def drawn(together: bool) -> list[list[tuple[int, float]]]:
        rows = GenaiBatchModel(graph, opened_folder, 300, 4, in_place=True)
        texts = [
            TextSequence(list(range(3 + n, 3 + n + size)), options, 1, 9, frozenset()) for n, size in enumerate(sizes)
        ]
        for row, text in enumerate(texts):
            rows.assign_row(row, text)
        firsts = rows.prefill_batch(0, texts) if together else [None] * len(texts)
        found = []
        for row, (text, first) in enumerate(zip(texts, firsts, strict=True)):
            one = first or rows.prefill(row, text, text.prompt, last=True)
            assert one
            text.length, text.last_token = len(text.prompt), one.token
            found.append([(one.token, one.max_logit)])
        for _ in range(6):
            for text, so_far, one in zip(texts, found, rows.decode(texts), strict=True):
                text.length, text.last_token = text.length + 1, one.token
                so_far.append((one.token, one.max_logit))
        return found

    for one_by_one, at_once in zip(drawn(together=False), drawn(together=True), strict=True):
        assert [token for token, _ in at_once] == [token for token, _ in one_by_one]
        np.testing.assert_allclose([value for _, value in at_once], [value for _, value in one_by_one], rtol=1e-4)


def test_short_prompts_that_wait_are_read_together(session: TextSession, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read_together = GenaiBatchModel.prefill_batch

    def spy(self: GenaiBatchModel, first: int, texts: Any) -> Any:
        sizes.append(len(texts))
        return read_together(self, first, texts)

    monkeypatch.setattr(GenaiBatchModel, "prefill_batch", spy)
    alone = run(session, max_tokens=5)[0]
    reading, all_wait = threading.Event(), threading.Event()
    begin = GenaiBatchModel.assign_row

    def held(self: GenaiBatchModel, row: int, text: TextSequence) -> None:
        begin(self, row, text)
        if not reading.is_set():  # the first one alone, until the others wait
            reading.set()
            assert all_wait.wait(30)

    monkeypatch.setattr(GenaiBatchModel, "assign_row", held)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(run, session, max_tokens=5)
        assert reading.wait(30)
        others = [pool.submit(run, session, max_tokens=5) for _ in range(2)]
        while len(session._decoder._waiting) < 2:
            assert first.running()
        all_wait.set()
        assert {job.result()[0] for job in [first, *others]} == {alone}
    assert sizes == [3]


def test_a_text_among_others_is_the_text_alone(session: TextSession) -> None:
    prompts = {"a": 90, "Tell me of rivers and mills. " * 5: 30, "Why?": 60, "b" * 150: 20, "xyz": 75, "Ünïcödé": 40}
    alone = {prompt: run(session, prompt, max_tokens=limit)[0] for prompt, limit in prompts.items()}
    together: dict[str, str] = {}
    room = threading.BoundedSemaphore(3)

    def one(prompt: str) -> None:
        with room:
            together[prompt] = run(session, prompt, max_tokens=prompts[prompt])[0]

    threads = [threading.Thread(target=one, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert len(set(alone.values())) == len(prompts)


def test_a_cache_that_is_not_written_in_place_says_the_same(folder: Path, session: TextSession) -> None:
    """What devices other than the processor get."""
    prompts = ["a", "Tell me of rivers and mills. " * 5, "xyz"]
    expected = [run(session, prompt)[0] for prompt in prompts]
    apart = opened(folder, slots=3)
    apart._decoder._model._graph._in_place = False  # type: ignore[attr-defined]
    with ThreadPoolExecutor(3) as pool:
        assert [text for text, _, _ in pool.map(lambda prompt: run(apart, prompt), prompts)] == expected


def test_typed_marks_are_text(session: TextSession) -> None:
    plain = run(session, "x" * 10, max_tokens=1)[1].counts["prompt_tokens"]
    assert run(session, tiny_genai.END, max_tokens=1)[1].counts["prompt_tokens"] == plain
    raw = run(session, tiny_genai.END + "x", max_tokens=1, raw=True)[1]
    assert (raw.counts["prompt_tokens"], raw.chat_template) == (2, None)


def test_the_template_s_marks_are_tokens(session: TextSession) -> None:
    result = run(session, "", max_tokens=1)[1]
    assert result.counts["prompt_tokens"] == len("user\n") + len("\n") + len("assistant\n") + 3
    assert result.chat_template == "model"


def test_a_prompt_that_does_not_fit_is_refused_with_both_counts(session: TextSession) -> None:
    with pytest.raises(ContextLengthExceeded, match="has 319 tokens and the context holds 300") as refused:
        run(session, "x" * 300)
    assert refused.value.extra == {"prompt_tokens": 319, "context_tokens": 300}


def test_a_text_ends_where_the_context_does(session: TextSession) -> None:
    _, result, _ = run(session, "x" * 270, max_tokens=100)
    assert (result.finish_reason, result.counts["tokens"]) == ("length", 300 - 289)


def test_a_stop_text_ends_it_and_is_not_shown(session: TextSession) -> None:
    whole = run(session)[0]
    stop = whole[4:7]
    text, result, _ = run(session, stop=[stop])
    assert text == whole[: whole.index(stop)]
    assert result.finish_reason == "stop"


def test_a_cancel_is_heard_at_once(session: TextSession) -> None:
    counts: list[int] = []

    def enough(event: str, data: Mapping[str, Any]) -> bool:
        counts.extend([data["count"]] if event == "token" else [])
        return event == "token"

    _, result, _ = run(session, max_tokens=200, stop_at=enough)
    assert (result.finish_reason, [result.counts["tokens"]]) == ("cancelled", counts)
    assert counts[0] < 10


def test_a_cancel_is_heard_before_the_next_step_though_no_token_is_told(
    session: TextSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_decoder, "flush_interval_s", lambda texts: 1e6)
    asked = 0

    def enough(event: str, _: Mapping[str, Any]) -> bool:
        nonlocal asked
        asked += event == "poll"
        return asked > 3

    _, result, _ = run(session, max_tokens=200, stop_at=enough)
    assert (result.finish_reason, result.counts["tokens"]) == ("cancelled", 1)


def test_a_cancel_is_heard_within_a_chunk_of_the_prompt(session: TextSession) -> None:
    done: list[int] = []

    def enough(event: str, data: Mapping[str, Any]) -> bool:
        done.extend([data["done"]] if event == "progress" else [])
        return event == "progress"

    _, result, _ = run(session, "x" * 200, stop_at=enough)
    assert (result.finish_reason, result.counts["tokens"], done) == ("cancelled", 0, [PREFILL_CHUNK_TOKENS])
    assert run(session)[0] == run(session)[0]


def test_the_same_seed_gives_the_same_text_and_another_another(session: TextSession) -> None:
    texts = [run(session, seed=seed, temperature=1.0, top_k=0, top_p=1.0)[0] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert run(session, seed=7)[0] == run(session, seed=8)[0]


def test_log_probabilities_are_those_of_the_model(session: TextSession) -> None:
    text, _, listed = run(session, logprobs=3)
    assert "".join(token["token"] for token in listed) == text
    for token in listed:
        first, *others = token["top_logprobs"]
        assert first["logprob"] == token["logprob"] <= 0
        assert [other["logprob"] for other in others] == sorted((o["logprob"] for o in others), reverse=True)


def test_a_folder_without_template_continues_a_prompt_as_it_is(tmp_path: Path) -> None:
    session = opened(tiny_genai.make(tmp_path / "plain", template=None))
    result = run(session, "abc", max_tokens=1)[1]
    assert (result.counts["prompt_tokens"], result.chat_template) == (3, None)


def test_the_estimate_has_the_cache_of_all_slots(folder: Path) -> None:
    engine = load_engine("onnx-genai")
    one, four = (engine.estimate_bytes(str(folder), 300, slots) for slots in (1, 4))
    assert one and four and four - one == 3 * 300 * tiny_genai.HEADS * tiny_genai.SIZE * 2 * 4


def changed(config: dict[str, Any], *path: str, to: Any) -> None:
    for name in path[:-1]:
        config = config[name]
    config[path[-1]] = to


@pytest.mark.parametrize(
    ("path", "to", "kind", "said"),
    [
        (("model", "decoder", "filename"), "../model.onnx", ModelBroken, "not in its folder"),
        (("model", "decoder", "filename"), "other.onnx", ModelBroken, "not in its folder"),
        (("model", "decoder", "num_hidden_layers"), "many", ModelBroken, "not positive integers"),
        (("model", "decoder", "inputs"), {}, ModelBroken, "is incomplete or invalid"),
        (("model", "decoder"), [], ModelBroken, "is incomplete or invalid"),
        (("model", "vision"), {"filename": "v.onnx"}, ModelIncompatible, "several graphs"),
        (("model", "decoder", "num_hidden_layers"), 2, ModelIncompatible, "no inputs for its cache"),
        (("model", "decoder", "inputs", "attention_mask"), "mask", ModelIncompatible, "attention_mask"),
    ],
)
def test_a_configuration_that_does_not_fit_is_said(
    tmp_path: Path, path: tuple[str, ...], to: Any, kind: type[Exception], said: str
) -> None:
    made = tiny_genai.make(tmp_path / "m")
    config = json.loads((made / "genai_config.json").read_text())
    changed(config, *path, to=to)
    (made / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(kind, match=said):
        opened(made)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("genai_config.json", None, "has no genai_config.json"),
        ("genai_config.json", b"<html>", "is not JSON"),
        ("genai_config.json", b"[]", "is not a JSON object"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("model.onnx", None, "not in its folder"),
        ("model.onnx", b"<html>sign in</html>", "a web page"),
        ("model.onnx", b"", "is empty"),
        ("model.onnx", tiny_genai.graph()[:60_000], "truncated"),
    ],
)
def test_damaged_files_are_said(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    made = tiny_genai.make(tmp_path / "m")
    (made / name).unlink()
    if content is not None:
        (made / name).write_bytes(content)
    with pytest.raises(ModelBroken, match=said):
        opened(made)


def sampled(logits: Any, count: int = 200, **options: Any) -> set[int]:
    sampler = Sampler(parse_options("text", options), 1, [])
    return {sampler.next(logits.copy()) for _ in range(count)}


@pytest.mark.parametrize("size", [100, 6000, 49152])
def test_only_the_likeliest_are_sampled(size: int) -> None:
    logits = np.random.default_rng(2).standard_normal(size).astype(np.float32) * 0.01
    best = {int(place) for place in np.argsort(-logits)[:5]}
    assert sampled(logits, temperature=2.0, top_k=5, top_p=1.0) == best


def test_the_share_is_taken_before_the_temperature() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.06, 0.04], np.float32))
    assert sampled(logits, temperature=2.0, top_k=0, top_p=0.85) == {0, 1}
    assert sampled(logits, temperature=2.0, top_k=0, top_p=0.5) == {0}
    assert sampled(logits, temperature=2.0, top_k=0, top_p=1.0) == {0, 1, 2, 3}


def test_tokens_come_as_often_as_they_are_likely() -> None:
    shares = np.array([0.5, 0.25, 0.15, 0.1], np.float32)
    sampler = Sampler(parse_options("text", {"temperature": 1.0, "top_k": 0, "top_p": 1.0}), 3, [])
    counts = np.bincount([sampler.next(np.log(shares)) for _ in range(4000)], minlength=4)
    assert np.abs(counts / 4000 - shares).max() < 0.03


def test_penalties_and_biases_change_what_is_likeliest() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.2], np.float32)

    def first(prompt: list[int], **options: Any) -> int:
        return Sampler(parse_options("text", {"temperature": 0, **options}), 1, prompt).next(logits.copy())

    assert first([0]) == 0
    assert first([0], repetition_penalty=1.5) == 1
    assert first([1], repetition_penalty=1.5) == 0
    assert first([0], presence_penalty=0.6) == 1
    assert first([0], frequency_penalty=0.3) == 0
    assert first([0, 0], frequency_penalty=0.3) == 1
    assert first([], logit_bias={"3": 5}) == 3
    negative = Sampler(parse_options("text", {"temperature": 0, "repetition_penalty": 1.5}), 1, [0])
    assert negative.next(np.array([-1.0, -1.4], np.float32)) == 1  # below zero a penalty multiplies


def test_a_token_that_was_made_counts_for_the_next() -> None:
    sampler = Sampler(parse_options("text", {"temperature": 0, "presence_penalty": 0.6}), 1, [])
    logits = np.array([2.0, 1.5], np.float32)
    assert [sampler.next(logits.copy()) for _ in range(3)] == [0, 1, 0]


class Provider:
    """The processor's session as one of another provider, which computes as `spoil` says."""

    def __init__(self, session: Any, spoil: Callable[[Any, int], Any]) -> None:
        self._session, self._spoil = session, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: list[str], feeds: Mapping[str, Any]) -> list[Any]:
        logits, *rest = self._session.run(names, feeds)
        return [self._spoil(logits, feeds["input_ids"].shape[1]), *rest]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda logits, tokens: logits, None),
        (lambda logits, tokens: logits.astype(np.float16).astype(np.float32), None),
        (lambda logits, tokens: logits * 40, "not the processor's"),
        (lambda logits, tokens: logits * (1 if tokens == 1 else -40), "prompt"),
        (lambda logits, tokens: logits * np.float32(np.nan if tokens == 1 else 1), "NaN or infinite"),
    ],
    ids=["exact", "float16", "sharp", "prefill", "nan"],
)
def test_a_provider_is_compared_with_the_processor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoil: Any, reason: str | None
) -> None:
    real: Any = vars(onnx_genai)["onnx_place"]

    def place(device: str, *arguments: Any) -> Any:
        if device == "cpu":
            return real("cpu")
        placed = real("cpu")
        return SimpleNamespace(
            is_processor=False,
            session=lambda *args: Provider(placed.session(*args), spoil),
            placement=lambda sessions: placed.placement([each._session for each in sessions]),
        )

    monkeypatch.setattr(onnx_genai, "onnx_place", place)
    request = LoadRequest("onnx-webgpu:0", str(folder), 400, 1, 2, check_bytes=10**9, verdict_dir=str(tmp_path))
    if reason is None:
        evidence = load(request).placement.evidence
        assert evidence.startswith("ONNX Runtime's record of the assignment: ") and "of the processor's" in evidence
        return
    with pytest.raises(DeviceWrong, match=reason):
        load(request)
