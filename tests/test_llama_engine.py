"""The engine llama.cpp with its real library and a tiny random model: batches, caches, errors, placement."""

from __future__ import annotations

import contextlib
import ctypes
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend.common.device_api import DetectedDevice
from backend.common.errors import (
    ContextLengthExceeded,
    DeviceLost,
    DeviceWrong,
    ModelIncompatible,
    ModelLoadFailed,
    OutOfMemory,
    TouchstoneError,
    UnsupportedParameter,
    Validation,
)
from backend.common.formats.gguf.vocabulary import read_vocabulary
from backend.common.llama_parameters import LlamaParameters
from backend.engines import LoadRequest, RunRequest, RunResult
from backend.engines import llama_cpp as engine
from backend.engines._llama import c_api, loaded_model, sampling
from backend.engines._llama.batch_model import LlamaBatchModel
from backend.engines._llama.library import Library, LibraryDevice, open_library
from backend.engines._llama.loaded_model import LoadedModel, choose_devices, load_error, load_model, placement
from backend.engines._llama.vocabulary import LlamaVocabulary
from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.tasks.options import parse_options
from tests.openai.gguf_variants import with_fact

pytest.importorskip("xllamacpp")
TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
CONTEXT, SLOTS = 120, 4
GREEDY = {"temperature": 0.0, "raw": True, "max_tokens": 12}


def request(device: str = "cpu", path: Path = TINY, **more: Any) -> LoadRequest:
    return LoadRequest(**{"device": device, "model_path": str(path), "context_tokens": CONTEXT, "threads": 1, **more})


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library()


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    loaded: Any = engine.load(request(slots=SLOTS))
    yield loaded
    loaded._chat.close()


def run(
    session: Any, prompt: str = "abc", reuse: bool = False, seed: int = 1, **options: Any
) -> tuple[str, RunResult, list[Any]]:
    events: list[Any] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        events.append((event, data))
        return False

    chosen = parse_options("text", {**GREEDY, **options})
    result = session.run(RunRequest(None, prompt, chosen, seed, reuse), emit)
    return "".join(data["text"] for event, data in events if event == "token"), result, events


# Batches and the prompt cache


def test_a_text_is_the_same_alone_and_among_others(session: Any) -> None:
    prompts = [f"{letter}bc {letter * 9}" for letter in "abcdefgh"]
    alone = [run(session, prompt)[0] for prompt in prompts]
    together: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda prompt=prompt: together.update({prompt: run(session, prompt)[0]}))
        for prompt in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[prompt] for prompt in prompts] == alone and all(alone)


def test_the_same_seed_makes_the_same_text(session: Any) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0}
    first = run(session, seed=5, **options)[0]
    assert run(session, seed=5, **options)[0] == first != run(session, seed=6, **options)[0]


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 100])
def test_a_repeated_prompt_is_read_again_only_in_its_last_token(session: Any, length: int) -> None:
    prompt = "".join(chr(97 + number % 23) for number in range(length)) + str(length)
    text, cold, _ = run(session, prompt, max_tokens=3)
    same, warm, _ = run(session, prompt, max_tokens=3, reuse=True)
    assert cold.counts["cached_tokens"] == 0
    assert warm.counts["cached_tokens"] == warm.counts["prompt_tokens"] - 1 == cold.counts["prompt_tokens"] - 1
    assert text == same


def test_a_conversation_goes_on_from_the_text_before(session: Any) -> None:
    first, before, _ = run(session, "once upon ", max_tokens=8, reuse=True)
    _, after, _ = run(session, f"once upon {first} and then", max_tokens=4, reuse=True)
    assert after.counts["cached_tokens"] >= before.counts["prompt_tokens"]


def test_a_request_that_forbids_it_reuses_nothing(session: Any) -> None:
    run(session, "forbidden words", reuse=True)
    assert run(session, "forbidden words", reuse=False)[1].counts["cached_tokens"] == 0


def test_two_conversations_keep_their_own_caches(session: Any) -> None:
    prompts = ["q" * 30, "z" * 30]
    for prompt in prompts:
        run(session, prompt, max_tokens=2, reuse=True)
    found = [run(session, prompt, max_tokens=2, reuse=True)[1] for prompt in prompts]
    assert [each.counts["cached_tokens"] for each in found] == [each.counts["prompt_tokens"] - 1 for each in found]


def rows_of(library: Library, slots: int = SLOTS) -> tuple[LlamaBatchModel, LlamaVocabulary]:
    loaded = load_model(library, request(slots=slots))
    return loaded.rows(), loaded.vocabulary(read_vocabulary(TINY, merges=False))


def sequence(prompt: list[int], **options: Any) -> TextSequence:
    return TextSequence(prompt, parse_options("text", {**GREEDY, **options}), 1, 9, frozenset())


def test_new_sequences_fill_the_gaps_that_ended_ones_left(library: Library) -> None:
    """llama.cpp computes sequences of one step together only if their numbers follow one another."""
    rows, _ = rows_of(library)
    for row in range(4):
        rows.assign_row(row, sequence([row + 5]))
    assert rows._numbers == [0, 1, 2, 3]
    rows.move_row(3, 1, 1)  # the sequence in row 1 ended
    rows.assign_row(3, sequence([9]))
    assert rows._numbers == [0, 3, 2, 1]


@pytest.mark.parametrize(("ended", "numbers"), [(1, [0, 1, 2]), (0, [3, 1, 2]), (2, [0, 1, 2])])
def test_a_gap_that_stays_is_closed_and_no_text_changes(library: Library, ended: int, numbers: list[int]) -> None:
    rows, vocabulary = rows_of(library)
    prompts = [vocabulary.encode(text) for text in ("abc", "hello there", "x", "some more words")]
    sequences = [sequence(prompt) for prompt in prompts]
    texts: list[list[int]] = []
    for row, each in enumerate(sequences):
        rows.assign_row(row, each)
        first = rows.prefill(row, each, each.prompt, True)
        assert first is not None
        each.length, each.last_token = len(each.prompt), first.token
        texts.append([first.token])
    rows.move_row(3, ended, 0)
    left = [*range(4)]
    left[ended] = left[-1]
    for _ in range(20):
        running = [sequences[number] for number in left[:3]]
        for number, sampled in zip(left, rows.decode(running), strict=False):
            sequences[number].length += 1
            sequences[number].last_token = sampled.token
            texts[number].append(sampled.token)
    assert rows._numbers[:3] == numbers
    alone, _ = rows_of(library, slots=1)
    for number in left[:3]:
        one = sequence(prompts[number])
        alone.assign_row(0, one)
        first = alone.prefill(0, one, one.prompt, True)
        assert first is not None
        found, one.length = [first.token], len(one.prompt)
        for _ in range(20):
            one.last_token = found[-1]
            found += [sampled.token for sampled in alone.decode([one])]
            one.length += 1
        assert texts[number] == found


def test_a_step_of_rows_in_any_order_returns_the_token_of_each(library: Library) -> None:
    rows, vocabulary = rows_of(library)
    prompts = [vocabulary.encode(text) for text in ("abc", "hello there", "x", "some more words")]
    found = []
    for is_moved in (False, True):
        sequences = [sequence(prompt, logprobs=3) for prompt in prompts]
        for row, each in enumerate(sequences):
            rows.assign_row(row, each)
            first = rows.prefill(row, each, each.prompt, True)
            assert first is not None
            each.length, each.last_token = len(each.prompt), first.token
        if is_moved:
            rows._numbers[0], rows._numbers[2] = rows._numbers[2], rows._numbers[0]
            sequences[0], sequences[2] = sequences[2], sequences[0]
        sampled = rows.decode(sequences)
        if is_moved:
            sampled[0], sampled[2] = sampled[2], sampled[0]
        found.append(sampled)
    assert [each.token for each in found[0]] == [each.token for each in found[1]]
    assert [each.logprob for each in found[0]] == pytest.approx([each.logprob for each in found[1]], abs=1e-4)


def test_several_threads_sample_what_one_does(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[SampledToken]] = []
    for threads in (1, 3):
        monkeypatch.setattr(loaded_model, "sampling_threads", lambda threads=threads: threads)
        monkeypatch.setattr(sampling, "_SHARED_LOGITS", 1)
        rows, vocabulary = rows_of(library)
        sequences = [sequence(vocabulary.encode(text), temperature=2.0, top_k=0) for text in ("abc", "x", "a b", "zz")]
        for row, each in enumerate(sequences):
            rows.assign_row(row, each)
        found.append(rows.prefill_batch(0, sequences))
        for each, first in zip(sequences, found[-1], strict=True):
            each.length, each.last_token = len(each.prompt), first.token
        found[-1] += rows.decode(sequences)
        assert (rows._sampling._threads is None) == (threads == 1)
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "threads"), [("CUDA0", 3), ("ROCm1", 3), ("Vulkan0", 1), ("MTL0", 1), ("SYCL0", 1)])
def test_threads_share_a_step_only_where_a_device_allows_it(
    library: Library, monkeypatch: pytest.MonkeyPatch, name: str, threads: int
) -> None:
    monkeypatch.setattr(loaded_model, "sampling_threads", lambda: 3)
    loaded = load_model(library, request())
    loaded.names = {name: "x"}
    assert (loaded.rows()._sampling._threads is not None) == (threads > 1)


def test_a_step_that_fails_drops_all_caches(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = rows_of(library)
    one = sequence(vocabulary.encode("abc"))
    rows.assign_row(0, one)
    rows.prefill(0, one, one.prompt, True)
    names = {name: getattr(library.llama, name) for name in ("llama_memory_clear", "llama_memory_seq_rm")}
    monkeypatch.setattr(rows, "_llama", SimpleNamespace(llama_decode=lambda *_: 1, **names))
    with pytest.raises(RuntimeError, match="its KV cache is full"):
        rows.decode([one])
    assert all(slot.tokens == [] for slot in rows._slots)


def test_a_model_that_keeps_no_part_of_a_sequence_computes_the_prompt_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recurrent models cannot remove the end of a sequence: llama_memory_seq_rm returns false."""
    rows, vocabulary = rows_of(library, slots=1)
    one = sequence(vocabulary.encode("the same words"))
    rows.assign_row(0, one)
    rows.prefill(0, one, one.prompt, True)
    removed: list[tuple[int, int]] = []

    def remove(memory: int, number: int, start: int, end: int) -> bool:
        removed.append((start, end))
        return start < 0

    monkeypatch.setattr(rows, "_llama", SimpleNamespace(**{**_functions(library), "llama_memory_seq_rm": remove}))
    again = sequence(one.prompt)
    again.reuse_cache = True
    rows.assign_row(0, again)
    assert (again.length, again.cached, removed) == (0, 0, [(len(one.prompt) - 1, -1), (-1, -1)])


def _functions(library: Library) -> dict[str, Any]:
    return {name: getattr(library.llama, name) for name in c_api._LLAMA}


@pytest.mark.parametrize(
    ("result", "kind", "part"),
    [(-2, OutOfMemory, "ran out of memory"), (-3, RuntimeError, "llama_decode returned -3"), (1, RuntimeError, "full")],
)
def test_a_job_whose_step_fails_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, result: int, kind: type[Exception], part: str
) -> None:
    session: Any = engine.load(request())
    rows = session._decoder._model
    real = rows._llama
    functions = {name: getattr(real, name) for name in c_api._LLAMA}
    monkeypatch.setattr(rows, "_llama", SimpleNamespace(**{**functions, "llama_decode": lambda *_: result}))
    with pytest.raises(kind, match=part):
        run(session)
    monkeypatch.setattr(rows, "_llama", real)
    assert run(session)[1].finish_reason == "length"
    session._chat.close()


@pytest.mark.parametrize(("first", "kept"), [(0, 13), (3, 13), (4, 0), (12, 0)])
def test_a_sliding_window_must_still_hold_what_the_next_token_sees(
    library: Library, monkeypatch: pytest.MonkeyPatch, first: int, kept: int
) -> None:
    rows, _ = rows_of(library, slots=1)
    rows._window = 10
    rows._slots[0].tokens = list(range(20))
    more = {"llama_memory_seq_pos_min": lambda *_: first, "llama_memory_seq_rm": lambda *_: True}
    monkeypatch.setattr(rows, "_llama", SimpleNamespace(**{**_functions(library), **more}))
    assert rows._keep(0, 13) == kept


# Options


def test_log_probabilities_add_up_to_one(session: Any) -> None:
    _, _, events = run(session, logprobs=20, temperature=0.0, max_tokens=3)
    entries = [entry for event, data in events if event == "token" for entry in data["logprobs"]]
    assert entries
    for entry in entries:
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert entry["logprob"] == max(values) and values == sorted(values, reverse=True) and len(values) == 20
        assert 0 < np.exp(values).sum() <= 1.0001


def test_a_bias_forbids_or_forces_a_token(session: Any) -> None:
    assert run(session, max_tokens=4, logit_bias={"100": 100.0})[0] == "a" * 4
    forbidden = {str(token): -100.0 for token in range(3, 259) if token != 101}
    assert set(run(session, max_tokens=4, logit_bias=forbidden)[0]) <= {"b", " ", "�"} | set("\0")


SCHEMA = {
    **{"type": "object", "required": ["a", "b"], "additionalProperties": False},
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["yes", "no"]}},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_holds_for_weights_at_random(session: Any, temperature: float) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    text, result, _ = run(session, response_format=response_format, temperature=temperature, max_tokens=60)
    found = json.loads(text)
    assert 0 <= found["a"] <= 99 and found["b"] in ("yes", "no") and result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("schema", "kind", "reason"),
    [
        ({"not": {"type": "string"}}, UnsupportedParameter, "Unimplemented"),
        ({"type": "nonsense"}, Validation, "nonsense"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(
    session: Any, schema: Any, kind: type[TouchstoneError], reason: str
) -> None:
    with pytest.raises(kind, match=reason) as refused:
        run(session, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert "1 |" not in refused.value.detail


def test_a_prompt_beyond_the_context_is_refused_with_both_counts(session: Any) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        run(session, "a" * CONTEXT)
    assert refused.value.extra == {"prompt_tokens": CONTEXT + 2, "context_tokens": CONTEXT}


def test_a_text_ends_at_the_end_of_the_context(session: Any) -> None:
    _, result, _ = run(session, "a" * (CONTEXT - 10), max_tokens=100, logit_bias={"2": -100.0, "260": -100.0})
    assert result.counts["prompt_tokens"] + result.counts["tokens"] == CONTEXT and result.finish_reason == "length"


def test_characters_of_several_tokens_come_whole(library: Library) -> None:
    _, vocabulary = rows_of(library, slots=1)
    text = "größe 鳥 🎵"
    stream = vocabulary.stream()
    pieces = [stream(token) for token in vocabulary.encode(text)]
    assert "".join(pieces).strip() == text and "�" not in "".join(pieces)
    assert vocabulary.begin == 1 and vocabulary.ends == {2, 260} and vocabulary.vocabulary_size == 262


# Loads


def test_the_placement_is_read_from_the_load_log(session: Any) -> None:
    assert session.placement.on_device == 1.0 and [part.where for part in session.placement.parts] == ["cpu"]
    assert "CPU_Mapped 0.01 MiB; the library has no other device than the CPU" in session.placement.evidence


LOG = "load_tensors:  CPU_Mapped model buffer size =  28.69 MiB\nload_tensors:  CUDA0 model buffer size =  92.10 MiB\n"
CACHE = "llama_kv_cache: CUDA0 KV buffer size = 45.00 MiB\n"


def loaded_with(log: str, **names: str) -> LoadedModel:
    found: LoadedModel = SimpleNamespace(log=log, names=names)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(
    ("log", "device", "share", "parts"),
    [
        (LOG + CACHE, "cuda:0", 0.76, {"cpu": 0.24, "cuda:0": 0.76}),
        (LOG + CACHE, "cpu", None, {}),
        (LOG, "cpu", 0.24, {"cpu": 0.24, "CUDA0": 0.76}),
        (LOG.replace("CUDA0", "CUDA_Host"), "cuda:0", 0.0, {"cpu": 1.0}),
        ("nothing", "cuda:0", None, {}),
        (LOG + LOG.replace("CPU_Mapped", "CUDA1"), "cuda:0", 0.88, {"cpu": 0.12, "cuda:0": 0.76, "cuda x": 0.12}),
    ],
)
def test_shares_are_those_of_the_buffers(log: str, device: str, share: float | None, parts: dict[str, float]) -> None:
    found = placement(loaded_with(log, CUDA0="cuda:0", CUDA1="cuda x"), device)
    assert found.on_device is None if share is None else found.on_device == pytest.approx(share, abs=0.01)
    assert {part.where: round(part.share_of_nodes or 0, 2) for part in found.parts} == parts


@pytest.mark.parametrize(
    ("log", "kind", "part"),
    [
        (
            "llama_model_load: error loading model: unknown model architecture: 'x'\n",
            ModelIncompatible,
            "b 1 cannot run",
        ),
        (
            "ggml_vulkan: Device memory allocation of size 1 failed. ErrorOutOfDeviceMemory",
            OutOfMemory,
            "context of 64",
        ),
        (
            "cudaMalloc failed: out of memory\nunable to allocate CUDA0 buffer\n",
            OutOfMemory,
            "unable to allocate CUDA0",
        ),
        ("ggml_vulkan: device Vulkan0 does not support 16-bit storage.", ModelIncompatible, "on this device"),
        ("llama_init_from_model: failed to initialize the context: broken\n", ModelLoadFailed, "broken"),
        ("", ModelLoadFailed, "logged no reason"),
    ],
)
def test_the_cause_of_a_failed_load_is_read_from_the_log(log: str, kind: type[TouchstoneError], part: str) -> None:
    error = load_error(Path("m.gguf"), log, 64, "b 1")
    assert isinstance(error, kind) and part in error.detail


def test_an_unknown_architecture_is_named_with_the_build(library: Library, tmp_path: Path) -> None:
    content = TINY.read_bytes()
    at = content.index(b"general.architecture") + len(b"general.architecture") + 12
    assert content[at : at + 5] == b"llama"
    (tmp_path / "m.gguf").write_bytes(content[:at] + b"camel" + content[at + 5 :])
    with pytest.raises(
        ModelIncompatible, match=r"llama\.cpp 0\..* cannot run m.gguf: unknown model architecture: 'camel'"
    ):
        load_model(library, request(path=tmp_path / "m.gguf"))


def test_a_model_with_an_encoder_is_refused(library: Library) -> None:
    functions = {**_functions(library), "llama_model_has_encoder": lambda model: True}
    with pytest.raises(ModelIncompatible, match="is a model with an encoder"):
        load_model(replace(library, llama=SimpleNamespace(**functions)), request())


def test_a_truncated_file_fails_the_load_and_not_the_process(library: Library, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(TINY.read_bytes()[:-3000])
    with pytest.raises(ModelLoadFailed, match="could not load m.gguf: "):
        load_model(library, request(path=tmp_path / "m.gguf"))


@pytest.mark.parametrize("cache", ["f16", "q8_0", "q4_0"])
def test_parameters_reach_the_library(library: Library, cache: Any) -> None:
    chosen = LlamaParameters(gpu_layers=3, cache_type_k=cache, cache_type_v=cache, flash_attention="on")
    params = loaded_model._context_params(library, request(slots=3, llama=chosen), 512, True, False)
    assert (params.type_k, params.type_v) == ({"f16": 1, "q8_0": 8, "q4_0": 2}[cache],) * 2
    assert (params.n_ctx, params.n_seq_max, params.n_outputs_max, params.flash_attn_type) == (3 * CONTEXT, 3, 3, 1)
    assert params.offload_kqv and params.op_offload
    on_processor = loaded_model._context_params(library, request(llama=chosen), 64, False, False)
    assert not on_processor.offload_kqv and not on_processor.op_offload


def card(number: int, registry: str = "CUDA", pci: str | None = None) -> LibraryDevice:
    address = f"0000:0{number + 1}:00.0" if pci is None else pci
    return LibraryDevice(100 + number, registry, f"{registry}{number}", "A card", address, 1 << 30)


CARDS: Any = SimpleNamespace(devices=lambda: [card(9, "CPU", ""), *map(card, range(3)), card(3, "Vulkan")], title="b 1")


@pytest.mark.parametrize(
    ("own", "addresses", "names"),
    [
        (101, (), ["CUDA1"]),
        (103, (), ["Vulkan3"]),
        (100, ("0000:03:00.0", "0000:01:00.0"), ["CUDA2", "CUDA0"]),
        (101, ("0000:02:00.0",), ["CUDA1"]),
    ],
)
def test_further_cards_are_chosen_by_their_addresses(own: int, addresses: tuple[str, ...], names: list[str]) -> None:
    chosen = request("cuda:0", llama=LlamaParameters(devices=addresses))
    assert [each.name for each in choose_devices(CARDS, chosen, own)] == names


@pytest.mark.parametrize("address", ["0000:09:00.0", "0000:04:00.0"])
def test_a_further_card_that_is_gone_is_lost(address: str) -> None:
    with pytest.raises(DeviceLost, match=f"b 1 lists no device at {address} for cuda:0"):
        choose_devices(CARDS, request("cuda:0", llama=LlamaParameters(devices=(address,))), 100)


@pytest.mark.parametrize(
    ("listed", "places"),
    [([card(1)], ["cuda:0"]), ([card(0), card(1)], ["cuda 0000:01:00.0", "cuda:0"])],
)
def test_buffers_of_other_cards_are_named_by_address(listed: list[LibraryDevice], places: list[str]) -> None:
    identity = {"pci": "0000:02:00.0"}
    detected = DetectedDevice("A card", "gpu", "pci:0000:02:00.0", None, None, identity=identity)
    assert loaded_model.places(request("cuda:0", detected_device=detected), listed) == places


def test_layers_and_their_shares_reach_the_library(library: Library) -> None:
    chosen = LlamaParameters(gpu_layers=7, devices=("a", "b"), split=(0.25, 0.75))
    with contextlib.ExitStack() as kept:
        params = loaded_model._model_params(library, request("cuda:0", llama=chosen), [card(0), card(1)], kept)
        shares = (ctypes.c_float * 2).from_address(params.tensor_split)[:]
        handles = (ctypes.c_void_p * 3).from_address(params.devices)[:]
    assert (params.n_gpu_layers, params.split_mode, shares, handles) == (7, 1, [0.25, 0.75], [100, 101, None])
    with contextlib.ExitStack() as kept:
        params = loaded_model._model_params(library, request(llama=chosen), [], kept)
        assert (ctypes.c_void_p * 1).from_address(params.devices)[:] == [None]
    assert (params.n_gpu_layers, params.split_mode, params.tensor_buft_overrides) == (0, 0, None)


@pytest.mark.parametrize(
    ("layers", "matches", "passes"),
    [
        (-1, ["blk.0.ffn_up_exps.weight", "blk.31.ffn_gate_up_exps.weight"], ["blk.0.ffn_up.weight", "output.weight"]),
        (2, ["blk.1.ffn_down_exps.weight", "blk.0.ffn_gate_chexps"], ["blk.2.ffn_up_exps", "blk.11.ffn_up_exps"]),
    ],
)  # fmt: skip
def test_experts_of_the_first_layers_stay_in_system_memory(
    library: Library, layers: int, matches: list[str], passes: list[str]
) -> None:
    import re

    overrides = loaded_model._expert_overrides(library, layers)
    patterns = [each.pattern.decode() for each in overrides[:-1]]
    assert overrides[len(patterns)].pattern is None and all(each.buft for each in overrides[:-1])
    assert all(any(re.search(pattern, name) for pattern in patterns) for name in matches)
    assert not any(re.search(pattern, name) for pattern in patterns for name in passes)


# The comparison with the processor


class Spoiled(LlamaBatchModel):
    """A model on a device that computes wrongly."""

    fault = ""

    def _sample(
        self, sequences: Sequence[TextSequence], numbers: Sequence[int], outputs: Sequence[int]
    ) -> list[SampledToken]:
        right = super()._sample(sequences, numbers, outputs)
        return [self._spoil(*row) for row in zip(sequences, numbers, right, strict=True)]

    def _spoil(self, sequence: TextSequence, number: int, right: SampledToken) -> SampledToken:
        if self.fault == "long" and len(sequence.prompt) < 50:
            return right
        if self.fault == "late" and len(self._slots[number].tokens) < 28:
            return right
        if self.fault == "nan":
            return replace(right, max_logit=float("nan"))
        noise = 0.01 if self.fault == "rounded" else 5.0
        listed = tuple((token, value - noise * (place % 2)) for place, (token, value) in enumerate(right.top_logprobs))
        return replace(right, top_logprobs=listed)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("", "Over 18 tokens its log probabilities were within"),
        ("rounded", "Over 18 tokens its log probabilities were within"),
        ("halved", "after the short prompt, .*not the processor's"),
        ("long", "after the long prompt, .*not the processor's"),
        ("late", "further tokens.*not the processor's|one by one"),
        ("nan", "not finite. They are NaN or infinite"),
    ],
)
def test_a_card_is_compared_with_a_copy_on_the_processor(
    library: Library, monkeypatch: pytest.MonkeyPatch, fault: str, expected: str
) -> None:
    sizes = request(slots=2, check_bytes=10**9)
    loaded = load_model(library, sizes)
    vocabulary = loaded.vocabulary(read_vocabulary(TINY, merges=False))
    rows = loaded.rows()
    if fault:
        rows.__class__ = Spoiled
        monkeypatch.setattr(Spoiled, "fault", fault)
    monkeypatch.setattr(loaded, "rows", lambda: rows)
    if fault in ("", "rounded"):
        assert expected in engine._compare(loaded, vocabulary, replace(sizes, device="vulkan:0")).evidence
        return
    with pytest.raises(DeviceWrong, match=expected):
        engine._compare(loaded, vocabulary, replace(sizes, device="vulkan:0"))


# Embeddings


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("embedder") / "m.gguf"
    path.write_bytes(with_fact(TINY.read_bytes(), "llama.pooling_type", 1))
    return engine.load(request(path=path))


def embed(session: Any, folder: Path, texts: list[str], cancels: bool = False) -> tuple[RunResult, list[str]]:
    events: list[str] = []

    def emit(event: str, data: Any) -> bool:
        events.append(event)
        return cancels

    given = RunRequest(None, None, {}, 1, False, folder=str(folder), texts=texts)
    return session.run(given, emit), events


def test_each_text_is_a_row_of_length_one(embedder: Any, tmp_path: Path) -> None:
    result, events = embed(embedder, tmp_path, ["first", "second text", "first"])
    rows = np.load(tmp_path / "embeddings.npy")
    assert rows.shape[0] == 3 and np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert rows[0].tolist() == rows[2].tolist() != rows[1].tolist()
    assert result.counts["texts"] == 3 and events == ["progress", "progress", "progress", "artifact"]


def test_a_cancel_between_two_texts_leaves_no_file(embedder: Any, tmp_path: Path) -> None:
    result, _ = embed(embedder, tmp_path, ["a", "b"], cancels=True)
    assert result.finish_reason == "cancelled" and result.counts["texts"] == 1 and not list(tmp_path.iterdir())
    assert embed(embedder, tmp_path, ["a"], cancels=True)[0].finish_reason == "stop"


def test_a_text_that_is_too_long_is_named_by_its_place(embedder: Any, tmp_path: Path) -> None:
    with pytest.raises(ContextLengthExceeded, match=f"Text 2 of 3 has .* the context holds {CONTEXT}"):
        embed(embedder, tmp_path, ["a", "b" * CONTEXT, "c"])
