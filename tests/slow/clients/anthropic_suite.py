"""Anthropic's client against a server: `BASE_URL` and `MODEL` in the environment. Needs the package `anthropic`."""

# mypy: ignore-errors
from __future__ import annotations

import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["BASE_URL"].removesuffix("/v1"), api_key="any", max_retries=0)
MODEL = os.environ["MODEL"]
HELLO = [{"role": "user", "content": "Say hello."}]
SAID = {
    **{"model": MODEL, "max_tokens": 8, "messages": HELLO, "system": "Be brief."},
    "extra_body": {"temperature": 0},
}
TOOL = {
    "name": "weather",
    "description": "The weather of the next days.",
    "input_schema": {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]},
}

message = client.messages.create(
    model=MODEL, max_tokens=8, messages=HELLO, system="Be brief.", extra_body={"temperature": 0}
)
assert message.content[0].text and message.stop_reason == "max_tokens" and message.usage.output_tokens == 8
assert message.receipt["used"], message

with client.messages.stream(
    model=MODEL, max_tokens=8, messages=HELLO, system="Be brief.", extra_body={"temperature": 0}
) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == message.content[0].text == final.content[0].text, (text, message)
assert final.usage.output_tokens == 8

asked = {"model": MODEL, "max_tokens": 40, "tools": [TOOL], "tool_choice": {"type": "any"}}
called = client.messages.create(messages=HELLO, **asked)
(block,) = called.content
assert called.stop_reason == "tool_use" and block.type == "tool_use" and isinstance(block.input["days"], int), called
with client.messages.stream(messages=HELLO, **asked) as stream:
    assert stream.get_final_message().content[0].input["days"] >= -(2**63)
result = {"type": "tool_result", "tool_use_id": block.id, "content": "sun"}
turns = [*HELLO, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
assert client.messages.create(model=MODEL, max_tokens=8, messages=turns, tools=[TOOL]).content

counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)

for kind, more in ((anthropic.NotFoundError, {"model": "nope"}), (anthropic.BadRequestError, {"max_tokens": 0})):
    try:
        client.messages.create(**{"model": MODEL, "max_tokens": 8, "messages": HELLO, **more})
    except kind as error:
        assert error.body["error"]["message"], error
    else:
        raise AssertionError(f"{more} was accepted")
