"""A generic form of tools and tool calls as text, for chat templates that have no place for them.

It is the form of Hermes and Qwen: functions as JSON, calls between `<tool_call>` tags, results between
`<tool_response>` tags.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from backend.common.engine_api import Message
from backend.common.types import JsonObject

_INSTRUCTIONS = """\
You may call functions to help the user. These are the functions, as JSON:
<tools>
{tools}
</tools>
To call one, answer only with its name and arguments as JSON between tags:
<tool_call>
{{"name": "NAME", "arguments": {{}}}}
</tool_call>
Results come back between <tool_response> and </tool_response>. Answer in plain text if no function is needed."""


def with_tools(messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[Message]:
    """Return the messages with the description of the tools in the system message, else in the first message."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=listed)
    first = messages[0]
    if first["role"] == "system":
        content = "\n\n".join(filter(None, (first["content"], instructions)))
    elif first["role"] == "user":  # some templates refuse a system message
        content = "\n\n".join(filter(None, (instructions, first["content"])))
    else:
        return [{"role": "user", "content": instructions}, *messages]
    return [{**first, "content": content}, *messages[1:]]


def calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with tool calls as text of the assistant, and results as messages of the user.

    Results and the user's message after them become one message, since some templates refuse two in a row.
    """
    plain: list[Message] = []
    follows_result = False
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content'] or ''}\n</tool_response>"
            _add_for_user(plain, result, joins=follows_result)
        elif message["role"] == "user" and follows_result:
            _add_for_user(plain, message["content"] or "", joins=True)
        elif calls := message.get("tool_calls"):
            bodies = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
            text = "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
            content = "\n".join(filter(None, (message["content"], text)))
            plain.append({"role": "assistant", "content": content})
        else:
            plain.append(message)
        follows_result = message["role"] == "tool"
    return plain


def _add_for_user(messages: list[Message], text: str, joins: bool) -> None:
    if joins:
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n{text}"}
    else:
        messages.append({"role": "user", "content": text})
