"""Make a tiny ONNX Runtime GenAI folder with random weights: one layer, bytes as tokens.

Protobuf by hand, by the field numbers of onnx.proto3, so that the tests need no onnx package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, HEADS, SIZE, CONTEXT = 32, 2, 16, 512
START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def make(folder: Path, template: str | None = TEMPLATE, tells_each: bool = True) -> Path:
    """Writes the folder and returns it. `tells_each`: the graph gives the logits of every token, else of the last."""
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(graph(tells_each=tells_each))
    count = write_tokenizer(folder)
    _write(folder / "genai_config.json", config(count))
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def write_tokenizer(folder: Path) -> int:
    """A vocabulary of the 256 bytes and two marks, and how many tokens that is."""
    tokens = [*_alphabet(), START, END]
    added = [
        {"id": 256 + place, "content": mark, "special": True, "normalized": False, "single_word": False}
        | {"lstrip": False, "rstrip": False}
        for place, mark in enumerate((START, END))
    ]
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {token: number for number, token in enumerate(tokens)}, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": levels, "decoder": levels, "model": model}
    _write(folder / "tokenizer.json", tokenizer)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "bos_token": START, "eos_token": END})
    return len(tokens)


def config(vocabulary: int) -> dict[str, Any]:
    """genai_config.json, as the builder writes it."""
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    outputs = {"logits": "logits"}
    for side in ("key", "value"):
        inputs[f"past_{side}_names"] = f"past_key_values.%d.{side}"
        outputs[f"present_{side}_names"] = f"present.%d.{side}"
    sizes = {"head_size": SIZE, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
    decoder = {"filename": "model.onnx", "inputs": inputs, "outputs": outputs, **sizes}
    decoder |= {"num_hidden_layers": 1, "num_key_value_heads": HEADS, "session_options": {"provider_options": []}}
    model = {"type": "llama", "context_length": CONTEXT, "decoder": decoder, "vocab_size": vocabulary}
    model |= {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257}
    return {"model": model, "search": {"max_length": CONTEXT, "past_present_share_buffer": True}}


def graph(external: str | None = None, tells_each: bool = True) -> bytes:
    """The model: embedding, one attention with rotary positions and a cache, and the way back to bytes."""
    rng = np.random.default_rng(5)

    def weights(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.6).astype(np.float32)

    angles = np.arange(CONTEXT)[:, None] / 10000 ** (np.arange(SIZE // 2) * 2 / SIZE)
    width = HEADS * SIZE
    constants = {
        "embedding": weights(258, HIDDEN),
        "qkv": weights(HIDDEN, 3 * width),
        "out": weights(width, HIDDEN),
        "head": weights(HIDDEN, 258),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "one": np.array([1], np.int64),
        "axis": np.array([1], np.int64),
        "place": np.array(1, np.int64),
        "begin": np.array([0 if tells_each else -1], np.int64),
        "end": np.array([2**62], np.int64),
    }
    cache = ("past_key_values.0.key", "past_key_values.0.value"), ("present.0.key", "present.0.value")
    nodes = [
        _node("Gather", ["embedding", "input_ids"], ["x"]),
        _node("ReduceSum", ["attention_mask", "axis"], ["sum"], keepdims=0),
        _node("Sub", ["sum", "one"], ["last"]),
        _node("Cast", ["last"], ["lengths"], to=6),
        _node("Shape", ["attention_mask"], ["shape"]),
        _node("Gather", ["shape", "place"], ["longest"], axis=0),
        _node("Cast", ["longest"], ["total"], to=6),
        _node("MatMul", ["x", "qkv"], ["packed"]),
        _node(
            "GroupQueryAttention",
            ["packed", "", "", *cache[0], "lengths", "total", "cos", "sin"],
            ["attended", *cache[1]],
            "com.microsoft",
            num_heads=HEADS,
            kv_num_heads=HEADS,
            do_rotary=1,
        ),
        _node("MatMul", ["attended", "out"], ["y"]),
        _node("Add", ["x", "y"], ["z"]),
        _node("Slice", ["z", "begin", "end", "axis"], ["wanted"]),
        _node("MatMul", ["wanted", "head"], ["logits"]),
    ]
    float32, int64 = 1, 7
    past: list[Any] = ["batch", HEADS, "past", SIZE]
    body = b"".join(_field(1, node) for node in nodes) + _field(2, b"tiny")
    body += b"".join(_field(5, _tensor(name, value, external)) for name, value in constants.items())
    inputs: list[tuple[str, int, list[Any]]] = [("input_ids", int64, ["batch", "length"])]
    inputs += [("attention_mask", int64, ["batch", "total"])]
    inputs += [(name, float32, past) for name in cache[0]]
    outputs: list[tuple[str, int, list[Any]]] = [("logits", float32, ["batch", "length" if tells_each else 1, 258])]
    outputs += [(name, float32, ["batch", HEADS, "total", SIZE]) for name in cache[1]]
    body += b"".join(_field(11, _value(*value)) for value in inputs)
    body += b"".join(_field(12, _value(*value)) for value in outputs)
    sets = _field(8, _field(1, b"") + _number(2, 17)) + _field(8, _field(1, b"com.microsoft") + _number(2, 1))
    return _number(1, 8) + _field(7, body) + sets


def _alphabet() -> list[str]:
    """GPT-2's letters for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def _node(operation: str, inputs: list[str], outputs: list[str], domain: str = "", **numbers: int) -> bytes:
    body = b"".join(_field(1, name.encode()) for name in inputs) + b"".join(
        _field(2, name.encode()) for name in outputs
    )
    body += _field(4, operation.encode())
    for name, number in numbers.items():
        body += _field(5, _field(1, name.encode()) + _number(3, number) + _number(20, 2))
    return body + _field(7, domain.encode())


def _tensor(name: str, value: Any, external: str | None) -> bytes:
    body = b"".join(_number(1, side) for side in value.shape) + _number(2, 1 if value.dtype == np.float32 else 7)
    body += _field(8, name.encode())
    if external is None or value.dtype != np.float32:
        return body + _field(9, value.tobytes())
    return body + _field(13, _field(1, b"location") + _field(2, external.encode())) + _number(14, 1)


def _value(name: str, kind: int, shape: list[Any]) -> bytes:
    sides = b"".join(
        _field(1, _number(1, side) if isinstance(side, int) else _field(2, side.encode())) for side in shape
    )
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, kind) + _field(2, sides)))


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
