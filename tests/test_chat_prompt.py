"""The prompt of a text engine: variables, names, continued answers, and tools where the template has no place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backend.common.errors import UnsupportedParameter, Validation
from backend.engines import RunRequest
from backend.engines._text.chat_prompt import Chat, Prompt
from backend.tasks.options import parse_options

WITH_TOOLS = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
PLAIN = (
    "{% for m in messages %}<{{ m.role }}{{ ':' ~ m.name if m.name }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SWITCHED = PLAIN + "{% if enable_thinking %}<think>\n{% endif %}"
HI: list[Any] = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
Make = Callable[..., Prompt]


@pytest.fixture
def make() -> Iterator[Make]:
    chats: dict[str | None, Chat] = {}

    def prompt(template: str | None, messages: Any = HI, **options: Any) -> Prompt:
        if template not in chats:
            chats[template] = Chat(template, {}, ["<|im_start|>"])
        request = RunRequest(messages, None, parse_options("text", options), 0, False)
        return chats[template].prompt(request)

    yield prompt
    for chat in chats.values():
        chat.close()


def test_variables_names_and_token_ids_reach_the_prompt(make: Make) -> None:
    named = [{"role": "user", "content": "Hi", "name": "Ada"}]
    assert make(PLAIN, named).pieces == ["<user:Ada>Hi</><assistant>"]
    prompt = make(SWITCHED, chat_template_kwargs={"enable_thinking": True})
    assert prompt.pieces == ["<user>Hi</><assistant><think>\n"] and prompt.opens_thoughts
    assert not make(SWITCHED).opens_thoughts
    assert make(PLAIN, None, prompt_tokens=[1, 2]) == Prompt([], tokens=[1, 2])
    cut = make("{{ word }}", chat_template_kwargs={"word": "<|im_start|>"})
    assert cut.pieces == ["<", "|im_start|>"], "a control token in a variable stays text"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_what_the_request_makes_is_not_a_variable(name: str) -> None:
    with pytest.raises(Validation, match=name):
        parse_options("text", {"chat_template_kwargs": {name: 1}})


def test_an_answer_at_the_end_is_continued_and_not_closed(make: Make) -> None:
    messages = [*HI, {"role": "assistant", "content": "The sky is "}]
    assert make(PLAIN, messages).pieces == ["<user>Hi</><assistant>The sky is "]
    default = make(None, messages)
    assert "".join(default.pieces).endswith("<|im_start|>assistant\nThe sky is ")
    with pytest.raises(Validation, match="cannot be continued"):
        make("{{ messages[0].content }}", messages)


@pytest.mark.parametrize(
    ("template", "effort", "opens"),
    [
        (SWITCHED, "none", False),
        (SWITCHED, "low", True),
        (PLAIN + "<think>", "high", True),
        (PLAIN, "none", False),
    ],
)
def test_reasoning_effort_switches_the_thoughts(make: Make, template: str, effort: str, opens: bool) -> None:
    assert make(template, reasoning_effort=effort).opens_thoughts is opens


def test_reasoning_effort_is_refused_where_it_changes_nothing(make: Make) -> None:
    assert make("{{ reasoning_effort }}", reasoning_effort="low").pieces == ["low"]
    for template, effort in ((PLAIN, "low"), (PLAIN + "<think>", "none")):
        with pytest.raises(UnsupportedParameter) as refused:
            make(template, reasoning_effort=effort)
        assert refused.value.extra["fields"] == ["options.reasoning_effort"]


def test_tools_have_a_generic_form_where_the_template_has_no_place(make: Make) -> None:
    prompt = make(PLAIN, tools=[TOOL])
    text = "".join(prompt.pieces)
    assert prompt.chosen == {"tool_prompt": "generic"} and '"name": "weather"' in text and text.endswith("<assistant>")
    assert text.startswith("<user>You may call functions") and "Hi</>" in text
    own = make(WITH_TOOLS, tools=[TOOL])
    assert own.chosen == {} and "You may call" not in "".join(own.pieces)
    system = [{"role": "system", "content": "Be brief."}, *HI]
    assert "".join(make(PLAIN, system, tools=[TOOL]).pieces).startswith("<system>Be brief.\n\nYou may call")


def test_calls_and_results_become_text_where_the_template_has_no_place(make: Make) -> None:
    turns = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "sun"},
        {"role": "tool", "content": "rain"},
        {"role": "user", "content": "And?"},
    ]
    prompt = make(PLAIN, turns)
    body = json.dumps(CALL["function"])
    call = f"<tool_call>\n{body}\n</tool_call>"
    assert "".join(prompt.pieces) == (
        f"<user>Hi</><assistant>{call}\n{call}</>"
        "<user><tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\nAnd?</><assistant>"
    )
    assert prompt.chosen == {"tool_prompt": "generic"}


def test_open_thoughts_are_announced_once_before_the_first_token() -> None:
    for opens, expected in ((True, ["poll", "progress", "token", "token"]), (False, ["poll", "token", "token"])):
        seen: list[str] = []

        def emit(event: str, data: Any, seen: list[str] = seen) -> bool:
            seen.append(event)
            return False

        announce = Prompt([], opens_thoughts=opens).announce(emit)
        announce("poll", {})
        announce("token", {"text": "a", "count": 1})
        announce("token", {"text": "b", "count": 1})
        assert seen == expected
