"""Make variants of a GGUF file for tests: the same weights with another chat template or other metadata."""

from __future__ import annotations

import struct

_ALIGNMENT = 32  # weights begin at a multiple of it, so all that is put in front of them must be one
_UINT32, _STRING = 4, 8

# The form of Hermes and Qwen: functions are listed for the model, calls stand between tags.
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Functions: {{ tools | tojson }}
Call one with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if think %}<think>
{% endif %}{% endif %}"""


def with_template(model: bytes, template: str) -> bytes:
    """The model with another chat template, padded by a comment so that the weights stay in their places."""
    key = _text("tokenizer.chat_template") + struct.pack("<I", _STRING)
    place = model.index(key) + len(key)
    length = int.from_bytes(model[place : place + 8], "little")
    new = template.encode() + b"{#"
    new += b" " * ((length - len(new) - 2) % _ALIGNMENT) + b"#}"
    return model[:place] + struct.pack("<Q", len(new)) + new + model[place + 8 + length :]


def with_fact(model: bytes, key: str, value: int) -> bytes:
    """The model with one fact more in its header, and one beside it that fills up to the alignment."""
    count = int.from_bytes(model[16:24], "little")
    fact = _text(key) + struct.pack("<II", _UINT32, value)
    filling = _text("test.filling") + struct.pack("<I", _STRING)
    missing = -(len(fact) + len(filling) + 8) % _ALIGNMENT
    facts = fact + filling + struct.pack("<Q", missing) + b" " * missing
    return model[:16] + struct.pack("<Q", count + 2) + facts + model[24:]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
