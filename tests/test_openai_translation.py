"""The OpenAI-compatible API without a server: keys, options, messages, chunks and tool calls."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from backend.common.errors import TouchstoneError, UnknownModel, UnsupportedParameter, Validation, from_code
from backend.common.types import Attempt, Event, Receipt
from backend.jobs.live_job import LiveJob, new_row
from backend.server.v1.call_schemas import calls_schema, close
from backend.server.v1.chat import ChatResponse, _options
from backend.server.v1.choices import Choices, failure_of
from backend.server.v1.completions import TextResponse
from backend.server.v1.errors import error_body, is_v1, renamed
from backend.server.v1.message_translation import plain_messages
from backend.server.v1.request_models import ChatBody, ChatMessage, CompletionBody, EmbeddingsBody
from backend.server.v1.request_translation import build_requests, run_keys, sampling_options
from backend.server.v1.tool_calls import Call, ToolCallParser, parse
from backend.server.v1.usage import usage_of

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = '{"name": "weather", "arguments": {"city": "Köln"}}'


def chat(**more: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "m", "messages": HI, **more})


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"top_k": 0}),
    ({"temperature": 0.5, "top_p": 0.9}, {"top_k": 0, "temperature": 0.5, "top_p": 0.9}),
    ({"temperature": None, "top_p": None, "n": None}, {"top_k": 0}),
    ({"top_k": 40}, {"top_k": 40}),
    ({"max_completion_tokens": 9}, {"top_k": 0, "max_tokens": 9}),
    ({"max_completion_tokens": 9, "max_tokens": 9}, {"top_k": 0, "max_tokens": 9}),
    ({"logprobs": True}, {"top_k": 0, "logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 3}, {"top_k": 0, "logprobs": 3}),
    ({"response_format": {"type": "text"}}, {"top_k": 0}),
    ({"user": "u", "metadata": {"a": "b"}, "store": True, "safety_identifier": "x"}, {"top_k": 0}),
    ({"service_tier": "auto", "verbosity": "medium", "modalities": ["text"], "functions": []}, {"top_k": 0}),
    ({"tools": [TOOL], "tool_choice": "none"}, {"top_k": 0}),
    ({"tools": [], "logprobs": 0, "seed": -1, "max_tokens": -1, "stop": [], "logit_bias": {}}, {"top_k": 0}),
    ({"top_k": -1, "n_predict": 7, "repeat_penalty": 1.1}, {"top_k": 0, "max_tokens": 7, "repetition_penalty": 1.1}),
    ({"stream_options": {"include_usage": False, "continuous_usage_stats": False}}, {"top_k": 0}),
    (
        {"ignore_eos": False, "min_p": 0, "cache_prompt": True, "guided_json": {}, "cache_control": {"a": 1}},
        {"top_k": 0},
    ),
    (
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
        {"top_k": 0, "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    ),
    ({"add_generation_prompt": True, "continue_final_message": False}, {"top_k": 0}),
]


@pytest.mark.parametrize(("sent", "options"), OPTIONS, ids=lambda value: str(value)[:50])
def test_only_the_keys_that_a_caller_sets_become_options(sent: dict[str, Any], options: dict[str, Any]) -> None:
    assert _options(chat(**sent)) == options


def test_a_top_p_of_zero_means_the_likeliest_token() -> None:
    assert 0 < sampling_options(chat(top_p=0))["top_p"] < 0.001


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_be_made_is_forced_by_a_schema_of_the_allowed_tools(choice: Any) -> None:
    other = {"type": "function", "function": {"name": "time"}}
    options = _options(chat(tools=[TOOL, other], tool_choice=choice))
    schema = json.dumps(options["response_format"]["json_schema"]["schema"])
    assert "weather" in schema and ("time" in schema) == (choice == "required")
    assert [tool["function"]["name"] for tool in options["tools"]] == ["weather", "time"]
    assert "response_format" not in _options(chat(tools=[TOOL])), "a call that may be made is not forced"


UNSUPPORTED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ChatBody, {"messages": HI, "temprature": 1}, "temprature"),
    (ChatBody, {"messages": HI, "service_tier": "flex"}, "service_tier"),
    (ChatBody, {"messages": HI, "functions": [{}]}, "functions"),
    (
        ChatBody,
        {"messages": HI, "stream": True, "stream_options": {"include_obfuscation": True}},
        "include_obfuscation",
    ),
    (CompletionBody, {"prompt": "x", "best_of": 2}, "best_of"),
    (CompletionBody, {"prompt": "x", "best_of": True}, "best_of"),
    (CompletionBody, {"prompt": "x", "best_of": 3, "n": 2}, "best_of"),
    (CompletionBody, {"prompt": "x", "echo": True, "logprobs": 0}, "echo"),
    (CompletionBody, {"prompt": [1], "echo": True}, "echo"),
    (CompletionBody, {"prompt": "x", "ech": False}, "ech"),
    (CompletionBody, {"prompt": "x", "cache_prompt": False}, "cache_prompt"),
    (ChatBody, {"messages": HI, "web_search_options": {}}, "web_search_options"),
    (ChatBody, {"messages": HI, "repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty"),
    (CompletionBody, {"prompt": "x", "suffix": "y"}, "suffix"),
    (CompletionBody, {"prompt": "x", "messages": HI}, "messages"),
    (EmbeddingsBody, {"input": "x", "dimensions": 8}, "dimensions"),
]


@pytest.mark.parametrize(("model", "body", "key"), UNSUPPORTED, ids=lambda value: str(value)[:50])
def test_a_key_without_support_is_refused_by_name_unless_its_value_changes_nothing(
    model: type[Any], body: dict[str, Any], key: str
) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        model.model_validate(body)
    assert caught.value.extra["fields"] == [key] and key in caught.value.detail and caught.value.remedy


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": [1, -2]}, "token ids"),
        ({"prompt": [[1, 2], []]}, "token ids"),
        ({"prompt": [[1, 2], "a"]}, "token ids"),
        ({"prompt": [True]}, "token ids"),
        ({"prompt": []}, "a string, a list"),
        ({"prompt": ["a", ""]}, "none of them empty"),
        ({"prompt": ["a"] * 65, "n": 2}, "more than 128 choices"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream: true"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CompletionBody.model_validate(body)


def test_each_prompt_gets_n_requests_with_seeds_of_their_own() -> None:
    body = CompletionBody.model_validate({"model": "m", "prompt": ["a", "b"], "n": 3, "seed": 7, "device": "gpu"})
    requests = build_requests(body, [{"prompt": each} for each in body.prompt], sampling_options(body))
    assert [request.prompt for request in requests] == ["a"] * 3 + ["b"] * 3
    seeds = [request.options["seed"] for request in requests]
    assert len(set(seeds[:3])) == 3 and seeds[:3] == seeds[3:] and seeds[0] == 7
    assert {(request.device, request.fallback, request.task) for request in requests} == {("gpu", "cpu", "text")}
    unseeded = CompletionBody.model_validate({"model": "m", "prompt": "a", "n": 2})
    assert all("seed" not in each.options for each in build_requests(unseeded, [{"prompt": "a"}], {}))


def test_a_request_without_a_model_is_refused() -> None:
    with pytest.raises(UnknownModel):
        run_keys(chat(model=None))


def translate(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return plain_messages([ChatMessage.model_validate(message) for message in messages])


def test_messages_become_those_of_a_job() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert translate(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "tool_calls": [call, {"function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "f"},
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one two"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "4", "name": "f", "tool_call_id": "c1"},
    ]


def test_what_clients_repeat_from_an_answer_is_accepted() -> None:
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "annotations": []}
    assert translate(
        {"role": "user", "content": [part], "name": "Ada", "audio": None},
        {"role": "assistant", "content": "y", "annotations": [], "reasoning_content": "", "tool_calls": []},
        {"role": "assistant", "content": None, "reasoning_content": "why"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": []},
    ) == [
        {"role": "user", "content": "x", "name": "Ada"},
        {"role": "assistant", "content": "y"},
        {"role": "assistant", "content": "", "reasoning_content": "why"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(
    ("key", "value", "role"),
    [
        ("continue_final_message", True, "user"),
        ("continue_final_message", False, "assistant"),
        ("add_generation_prompt", False, "user"),
        ("add_generation_prompt", True, "assistant"),
    ],
)
def test_whether_the_last_message_is_continued_follows_from_its_role(key: str, value: bool, role: str) -> None:
    messages = [*HI, {"role": role, "content": "x"}]
    with pytest.raises(ValidationError, match=key):
        chat(messages=messages, **{key: value})
    assert chat(messages=messages, **{key: not value})


def calling(function: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": function, **more}]}


BAD_MESSAGES: list[tuple[dict[str, Any], type[TouchstoneError], str]] = [
    ({"role": "user", "content": [{"type": "image_url"}]}, UnsupportedParameter, "messages.1.content.0"),
    ({"role": "user", "content": [{"type": "text", "text": "x"}, {}]}, Validation, "messages.1.content.1"),
    ({"role": "user", "content": [{"type": "text", "text": 1}]}, Validation, "messages.1.content.0"),
    ({"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}, Validation, "messages.1.content.0"),
    (calling({"name": "f", "arguments": "{"}), Validation, "messages.1.tool_calls.0.function"),
    (calling({"name": "f", "arguments": "[1]"}), Validation, "messages.1.tool_calls.0.function"),
    (calling({"name": "f", "arguments": {"a": 1}}), Validation, "messages.1.tool_calls.0.function"),
    (calling({"arguments": "{}"}), Validation, "messages.1.tool_calls.0.function"),
    (calling({"name": "f"}, type="custom"), Validation, "messages.1.tool_calls.0"),
    (calling("f"), Validation, "messages.1.tool_calls.0"),
]


@pytest.mark.parametrize(("message", "kind", "field"), BAD_MESSAGES, ids=lambda value: str(value)[:60])
def test_a_message_that_a_job_cannot_take_is_refused_with_its_place(
    message: dict[str, Any], kind: type[TouchstoneError], field: str
) -> None:
    with pytest.raises(kind) as caught:
        translate(*HI, message)
    assert caught.value.extra["fields"] == [field]


PARSED: list[tuple[str, list[Call]]] = [
    (CALLS, [Call("weather", '{"city": "Köln"}')]),
    (f"<tool_call>\n{CALLS}\n</tool_call>", [Call("weather", '{"city": "Köln"}')]),
    (f"<tool_call>{CALLS}</tool_call><tool_call>{CALLS}", [Call("weather", '{"city": "Köln"}')] * 2),
    (f"[TOOL_CALLS][{CALLS}, {CALLS}]", [Call("weather", '{"city": "Köln"}')] * 2),
    ('<|python_tag|>{"name": "weather", "parameters": {"a": 1}}', [Call("weather", '{"a": 1}')]),
    ('{"name": "weather"}', [Call("weather", "{}")]),
    ('{"name": "unknown", "arguments": {}}', []),
    ('{"name": "weather", "arguments": "x"}', []),
    (f"[TOOL_CALLS][{CALLS}, {{}}]", []),
    (f"<tool_call>{CALLS[:-1]}</tool_call>", []),
    ("[" * 5000, []),
    ("null", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "calls"), PARSED, ids=lambda value: str(value)[:40])
def test_calls_are_found_in_the_formats_of_the_chat_templates(text: str, calls: list[Call]) -> None:
    assert parse(text, frozenset({"weather"})) == calls


texts = st.lists(st.sampled_from(["<", "tool_call>", "<tool", "_call>", "[TOOL", "_CALLS]", "{", " ", "a", "é", CALLS]))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(texts.filter(bool), st.randoms(use_true_random=False))
def test_any_cut_of_a_text_into_pieces_gives_the_same_text_and_calls(parts: list[str], random: Any) -> None:
    text = "".join(parts)

    def feed(pieces: list[str]) -> tuple[str, list[Call]]:
        parser = ToolCallParser({"weather"}, single=False)
        shown = "".join(parser.feed(piece) for piece in pieces)
        rest, calls = parser.end()
        assert not (rest and calls)
        return shown + rest, calls

    shown, calls = feed(list(text))
    assert calls or shown == text, "no character is lost where there is no call"
    cuts = sorted(random.sample(range(len(text)), min(len(text), 4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert feed(pieces) == (shown, calls)


def test_a_single_call_is_the_first_and_text_before_a_call_is_shown_at_once() -> None:
    parser = ToolCallParser({"weather"}, single=True)
    assert parser.feed("Let me see. <tool") == "Let me see. "
    assert parser.feed(f"_call>{CALLS}</tool_call><tool_call>{CALLS}</tool_call>") == ""
    assert parser.end() == ("", [Call("weather", '{"city": "Köln"}')])


def schema_for(*parameters: Any, answer: Any = None) -> Any:
    functions = [{"name": f"f{number}", "parameters": each} for number, each in enumerate(parameters)]
    tools = chat(tools=[{"type": "function", "function": each} for each in functions]).tools
    return calls_schema(tools or [], answer)


def fits(value: Any, schema: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_schemas_of_one_name_keep_their_own_meaning() -> None:
    def pointing(shape: str) -> Any:
        return {"properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": {"type": shape}}}

    schema = schema_for(
        pointing("string"), pointing("integer"), answer={"$ref": "#/$defs/X", "$defs": {"X": {"const": 1}}}
    )
    assert fits({"name": "f0", "arguments": {"at": "x"}}, schema) and fits(
        {"name": "f1", "arguments": {"at": 1}}, schema
    )
    assert not fits({"name": "f0", "arguments": {"at": 1}}, schema)
    assert fits(1, schema) and not fits(2, schema)


def test_a_schema_may_refer_to_itself_and_data_is_not_a_reference() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "kind": {"enum": [{"$ref": "#"}]}}}
    schema = schema_for(tree, {"type": "object"})
    assert fits({"name": "f0", "arguments": {"next": {"next": {}}, "kind": {"$ref": "#"}}}, schema)
    assert not fits({"name": "f0", "arguments": {"next": {"next": 1}}}, schema)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_takes_an_empty_object(parameters: Any) -> None:
    schema = schema_for(parameters)
    assert fits({"name": "f0", "arguments": {}}, schema)
    assert not fits({"name": "f0", "arguments": {"x": 1}}, schema)


def test_an_object_that_does_not_say_so_takes_no_other_properties() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = close({"properties": {"inner": inner, "free": {"type": "object"}, "list": {"items": inner}}})
    assert not fits({"inner": {"b": 1}}, schema) and not fits({"other": 1}, schema)
    assert not fits({"list": [{"b": 1}]}, schema) and fits({"free": {"b": 1}, "inner": {"a": 1}}, schema)
    opened = close({"properties": {}, "additionalProperties": True})
    assert fits({"x": 1}, opened)
    both: Any = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    assert fits({"a": 1, "b": 2}, close(both)), "each part of allOf must allow the properties of the others"


ANSWER = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 7}}}


def test_with_tools_and_a_format_the_text_is_a_call_or_fits_the_format() -> None:
    options = _options(chat(tools=[TOOL], response_format=ANSWER))
    schema = options["response_format"]["json_schema"]["schema"]
    assert fits(7, schema) and fits({"name": "weather", "arguments": {}}, schema) and not fits({}, schema)
    assert options["tools"] and "tools" not in _options(chat(tools=[TOOL], tool_choice="none", response_format=ANSWER))
    forced = _options(chat(tools=[TOOL], tool_choice="required", response_format=ANSWER))
    assert not fits(7, forced["response_format"]["json_schema"]["schema"])


@pytest.mark.parametrize("strict", [True, False])
def test_a_strict_format_is_closed(strict: bool) -> None:
    named = {"name": "a", "schema": {"properties": {"x": {}}}, "strict": strict}
    options = _options(chat(response_format={"type": "json_schema", "json_schema": named}))
    assert fits({"y": 1}, options["response_format"]["json_schema"]["schema"]) is not strict


CUT: list[tuple[str, str, int]] = [
    ('<tool_call>{"name": "wea', "", 0),
    ("I look. <tool_call>", "I look. ", 0),
    ("I look. <tool_", "I look. ", 0),
    ("1 <", "1 <", 0),
    ('{"name": "wea', "", 0),
    ('{"name": "weather", "arguments": {"ci', "", 0),
    ('{"name": "Ada", "age', '{"name": "Ada", "age', 0),
    ('{"na', "", 0),
    ("[TOOL_CALLS][{", "", 0),
    (f"<tool_call>{CALLS}</tool_call><tool_call>{{", "", 1),
    (CALLS, "", 1),
]


@pytest.mark.parametrize(("text", "content", "calls"), CUT)
def test_a_call_that_the_limit_cut_is_never_content(text: str, content: str, calls: int) -> None:
    job = made(token(text))
    (choice,) = ChatResponse(Choices([job], "auto"), chat(tools=[TOOL])).full()["choices"]
    assert (choice["message"]["content"] or "", len(choice["message"].get("tool_calls", ()))) == (content, calls)
    assert choice["finish_reason"] == ("tool_calls" if text == CALLS else "length")
    deltas = [
        part["choices"][0]["delta"] for part in stream(ChatResponse(Choices([job], "auto"), chat(tools=[TOOL])))[:-1]
    ]
    assert "".join(delta.get("content") or "" for delta in deltas) == content


def test_thoughts_are_separated_and_the_content_is_the_answer() -> None:
    thinking = ("progress", {"phase": "thinking", "done": 0, "total": None, "unit": "tokens"})
    for events in ([token("<think>why"), token("</think>\n\nso")], [thinking, token("why</thi"), token("nk>so")]):
        job = made(*events)
        message = ChatResponse(Choices([job], "auto"), chat()).full()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("why", "so")
        deltas = [part["choices"][0]["delta"] for part in stream(ChatResponse(Choices([job], "auto"), chat()))[:-1]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "why"
        assert "".join(delta.get("content", "") for delta in deltas) == "so"
    plain = ChatResponse(Choices([made(thinking, token("{}"))], "auto"), chat(response_format=ANSWER)).full()
    assert plain["choices"][0]["message"]["content"] == "{}", "a grammar leaves no room for thoughts"


def test_errors_name_the_keys_that_the_caller_sent() -> None:
    refused = UnsupportedParameter("response_format: no.", "Change it.", fields=["options.response_format"])
    body = error_body(renamed(refused, {"options.response_format": "tools"}).problem(), ["tools"])
    assert body["error"]["message"].startswith("tools: no.") and body["error"]["param"] == "tools"
    other = Validation("options.max_tokens: too many (max_tokens).", "Less.", fields=["options.max_tokens"])
    assert renamed(other, {"options.max_tokens": "max_output_tokens"}).detail == (
        "max_output_tokens: too many (max_output_tokens)."
    )
    assert renamed(other, {"options.seed": "x"}) is other


def made(*events: tuple[str, dict[str, Any]], status: str = "done", counts: dict[str, int] | None = None) -> LiveJob:
    """Return a job that ended, with these events."""
    past = [Event(number, event, data) for number, (event, data) in enumerate(events, 1)]
    row = {**new_row("text", "m", {"options": {"logprobs": None}}, "c"), "status": status}
    job = LiveJob(cast(Any, None), row, [*past, Event(len(past) + 1, status, {})])
    job.finish_reason = "length"
    attempts = [Attempt("cpu", "base", "llama.cpp", "t")]
    job.receipt = Receipt("auto", "cpu", "Because.", used="cpu", attempts=attempts, counts=counts or {})
    job.ended.set()
    return job


def token(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "token", {"text": text, "count": 1, **more}


def stream(response: Any) -> list[Any]:
    async def read() -> list[str]:
        return [piece async for piece in response.pieces()]

    lines = [piece.removeprefix("data: ").removesuffix("\n\n") for piece in asyncio.run(read())]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_stream_opens_with_the_role_and_ends_with_reason_receipt_usage_and_done() -> None:
    job = made(token("Hel"), token("lo"), counts={"tokens": 2, "prompt_tokens": 5})
    body = chat(stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = stream(ChatResponse(Choices([job], "auto"), body))
    assert done == "[DONE]" and usage["choices"] == [] and usage["usage"]["total_tokens"] == 7
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"].get("content") for choice in choices] == ["", "Hel", "lo", None]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert ["receipt" in chunk for chunk in chunks] == [False, False, False, True]
    assert all(chunk["usage"] is None for chunk in chunks) and len({chunk["id"] for chunk in chunks}) == 1


def test_the_complete_response_and_the_stream_hold_the_same_tool_call() -> None:
    job = made(token("<tool_call>"), token(CALLS), token("</tool_call>"))
    body = chat(tools=[TOOL])
    message = ChatResponse(Choices([job], "auto"), body).full()["choices"][0]
    assert (message["finish_reason"], message["message"]["content"]) == ("tool_calls", None)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(ChatResponse(Choices([job], "auto"), body))[:-1]]
    (streamed,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [{"index": 0, **call} for call in message["message"]["tool_calls"]] == streamed


def test_a_fallback_before_the_first_token_is_silent_and_after_it_ends_the_stream() -> None:
    moved = ("fallback", {"from": "cuda:0", "to": "cpu", "code": "device_lost", "reason": "It fell off."})
    early = stream(TextResponse(Choices([made(moved, token("x"))], "auto"), _completion()))
    assert [chunk["choices"][0]["text"] for chunk in early[:-1]] == ["x", ""] and early[-1] == "[DONE]"
    late = stream(TextResponse(Choices([made(token("x"), moved, token("y"))], "auto"), _completion()))
    assert late[-1]["error"]["code"] == "device_lost" and "It fell off." in late[-1]["error"]["message"]
    full = TextResponse(Choices([made(token("x"), moved, token("y"))], "auto"), _completion()).full()
    assert full["choices"][0]["text"] == "y", "a complete response has only the text of the last attempt"


def _completion(**more: Any) -> CompletionBody:
    return CompletionBody.model_validate({"model": "m", "prompt": "p", **more})


def test_a_failed_choice_ends_the_stream_of_all_and_cancels_the_others() -> None:
    good, bad = made(token("x")), made(token("y"), status="error")
    bad.failure = from_code("out_of_memory", "Too large.", "Use less.")
    bad.error = bad.failure.problem()
    chunks = stream(TextResponse(Choices([bad, good], "auto"), _completion(n=2)))
    assert chunks[-1]["error"]["code"] == "out_of_memory" and good.cancelling.is_set()
    assert Choices([good, bad], "auto").failure() is bad.failure and failure_of(good) is None


def test_offsets_of_token_probabilities_continue_over_tokens() -> None:
    def entry(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -0.5, "top_logprobs": [{"token": text, "logprob": -0.5}]}

    job = made(
        token("ab", logprobs=[entry("ab")]), token("", logprobs=[entry("c")]), token("cd", logprobs=[entry("d")])
    )
    chunks = stream(TextResponse(Choices([job], "auto"), _completion(logprobs=1)))
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    assert [each["text_offset"] for each in shown if each] == [[0], [2], [2]]


def test_usage_counts_each_prompt_once_and_all_generated_tokens() -> None:
    counts = [{"prompt_tokens": 5, "tokens": 2, "cached_tokens": 1}, {"prompt_tokens": 5, "tokens": 3}]
    jobs = tuple(made(counts=each) for each in [*counts, {"prompt_tokens": 7, "tokens": 1}, {"tokens": 1}])
    usage = usage_of(jobs, per_prompt=2)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (12, 7, 19)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1
    unstarted = cast(Any, SimpleNamespace(receipt=None))
    assert usage_of((unstarted,), 1)["total_tokens"] == 0


ERRORS = [
    ("unknown_model", None, "model_not_found", "model", "invalid_request_error"),
    ("unknown_device", None, "unknown_device", "device", "invalid_request_error"),
    ("queue_full", None, "queue_full", None, "rate_limit_error"),
    ("unauthorized", None, "unauthorized", None, "authentication_error"),
    ("forbidden_host", None, "forbidden_host", None, "invalid_request_error"),
    ("forbidden_origin", None, "forbidden_origin", None, "permission_error"),
    ("out_of_memory", None, "out_of_memory", None, "server_error"),
    ("validation_error", ["options.seed"], "validation_error", "seed", "invalid_request_error"),
    ("context_length_exceeded", ["x"], "context_length_exceeded", "messages", "invalid_request_error"),
]


@pytest.mark.parametrize(("code", "fields", "shown", "param", "kind"), ERRORS)
def test_an_error_has_the_code_key_and_type_that_openai_s_clients_expect(
    code: str, fields: list[str] | None, shown: str, param: str | None, kind: str
) -> None:
    problem = from_code(code, "options.seed is wrong.", "Change it.").problem()
    error = error_body(problem, fields, "/v1/chat/completions")["error"]
    assert (error["code"], error["param"], error["type"]) == (shown, param, kind)
    assert error["message"] == "seed is wrong. Change it.", "OpenAI's bodies have no options object"


@pytest.mark.parametrize(("path", "expected"), [("/v1", True), ("/v1/x", True), ("/v10", False), ("/api/v1/", False)])
def test_only_paths_below_v1_have_openai_s_shapes(path: str, expected: bool) -> None:
    assert is_v1(path) is expected
