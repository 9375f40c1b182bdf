"""Embeddings by llama.cpp's server: one vector of length 1 per text, in one `.npy` file."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from backend.common.engine_api import ProgressEvent
from backend.common.errors import ContextLengthExceeded, ModelIncompatible
from backend.engines import Emit, RunResult
from backend.engines._onnx.npy import write_rows

FILE = "embeddings.npy"
_TOO_LONG = re.compile(
    r"input \((\d+) tokens\) is too large.*?batch size: (\d+)|\((\d+) tokens\).*?context size \((\d+)"
)


def embed(server: Any, texts: list[str], folder: str, emit: Emit) -> RunResult:
    """Compute the vectors one text after the other, so that a cancel takes effect between two texts.

    Raises ContextLengthExceeded, ModelIncompatible.
    """
    rows: list[bytes] = []
    prompt_tokens = 0
    for text in texts:
        answer = server.handle_embeddings({"input": text, "encoding_format": "base64"})
        if "error" in answer:
            raise _error(f"Text {len(rows) + 1} of {len(texts)}", str(answer["error"].get("message", "no message")))
        rows.append(base64.b64decode(answer["data"][0]["embedding"]))
        prompt_tokens += answer["usage"]["prompt_tokens"]
        done: ProgressEvent = {"phase": "embedding", "done": len(rows), "total": len(texts), "unit": "texts"}
        if emit("progress", done) and len(rows) < len(texts):
            return RunResult({"texts": len(rows), "prompt_tokens": prompt_tokens}, "cancelled")
    write_rows(Path(folder) / FILE, rows)
    emit("artifact", {"name": FILE, "media_type": "application/octet-stream"})
    return RunResult({"texts": len(rows), "prompt_tokens": prompt_tokens}, "stop")


def _error(which: str, message: str) -> ContextLengthExceeded | ModelIncompatible:
    if found := _TOO_LONG.search(message):
        needed, limit = (int(number) for number in found.groups() if number)
        return ContextLengthExceeded(
            f"{which} has {needed} tokens; the context holds {limit}.",
            "Split it into shorter texts, or raise text.context_tokens in config.yaml if the model supports more.",
            prompt_tokens=needed,
            context_tokens=limit,
        )
    return ModelIncompatible(f"llama.cpp rejected {which}: {message}", "Change the text, or choose another model.")
