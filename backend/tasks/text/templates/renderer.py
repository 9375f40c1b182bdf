"""The side of the renderer that the worker holds: one process a template, started again when its limit ended it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken, ModelLoadFailed, TouchstoneError, Validation
from backend.tasks.text.templates.control_tokens import Marks, split

LIMIT_S = 2.0  # of the processor
_WALL_S = 15.0  # on a machine that is busy with other things, and where the process has no limit of its own
_PROGRAM = Path(__file__).resolve().parents[3] / "child"
_REMEDY = "Fetch the model from another source, or use /v1/completions, which takes no template."
# What llama.cpp and others take for a model without a template of its own (the form is OpenAI's ChatML).
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Renderer:
    """Renders messages by one template. May be called from several threads.

    `names` are the values that templates may ask for, such as `bos_token`.
    """

    def __init__(self, template: str, names: dict[str, str], marks: Marks, limit_s: float = LIMIT_S) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._first = {"template": template, "names": names, "limit_s": limit_s}
        self._marks = marks
        self._lock = threading.Lock()
        self._limit_s = limit_s
        self._start()

    def pieces(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[str]:
        """The prompt, in the pieces in which it is to be tokenized.

        Raises Validation where the template refuses the messages, ModelBroken where it fails or does not end,
        ModelLoadFailed where this environment cannot read templates.
        """
        asked, cut = self._marks.cut({"messages": messages, "tools": tools})
        with self._lock:
            answer = self._ask(asked)
        if "text" in answer:
            return split(answer["text"], cut)
        raise _refusal(answer["error"], answer["detail"].replace(cut, "") if cut else answer["detail"], self._limit_s)

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()

    def __del__(self) -> None:
        """A model that is dropped leaves no process behind, and no open pipes."""
        self._end()

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        process = self._process
        assert process and process.stdin and process.stdout
        with contextlib.suppress(OSError):  # it is gone, which the missing answer tells
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        line = _line(process)
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._end()
        return {"error": "endless", "detail": ""}

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_PROGRAM), "render"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(self._first).encode() + b"\n")
            self._process.stdin.flush()

    def _end(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """The answer, or what came of it until the process ended or its time was over."""
    assert process.stdout
    if sys.platform == "win32":  # there nothing waits for a pipe and a clock, but a thread
        watch = threading.Timer(_WALL_S, process.kill)
        watch.daemon = True
        watch.start()
        try:
            return process.stdout.readline()
        finally:
            watch.cancel()
    answers, line, end = select.poll(), b"", time.monotonic() + _WALL_S
    answers.register(process.stdout, select.POLLIN)
    while not line.endswith(b"\n"):
        if not answers.poll(max(0, end - time.monotonic()) * 1000):
            process.kill()
            return b""
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            break
        line += part
    return line


def _refusal(error: str, detail: str, limit_s: float) -> TouchstoneError:
    if error == "raised":
        return Validation(f"The model's chat template refuses these messages: {detail}", "Change the messages.")
    if error == "endless":
        return ModelBroken(f"The model's chat template did not end within {limit_s:g} s.", _REMEDY)
    if error == "missing":
        return ModelLoadFailed(
            f"The model's chat template needs the package {detail}, which this runtime lacks.",
            "Update the runtime (`runtimes update NAME`); into an environment of your own install the package.",
        )
    return ModelBroken(f"The model's chat template cannot be used: {detail}", _REMEDY)
