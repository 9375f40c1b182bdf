"""The worker's side of template rendering: one child process per template, restarted after a timeout."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from backend.common.commands import command
from backend.common.engine_api import Message
from backend.common.errors import ModelBroken, ModelLoadFailed, TouchstoneError, Validation
from backend.common.types import JsonObject
from backend.tasks.text.templates.control_tokens import ControlTokens, split_segments
from backend.tasks.text.templates.environment import MEMORY_BYTES, OUT_OF_MEMORY

LIMIT_S = 5.0  # CPU time per request
_WALL_LIMIT_S = 15.0  # timeout by the wall clock, long enough for a busy machine; the only limit on Windows
_TIMEOUTS = (-27, -9, 1)  # exit codes: SIGPROF of the program's timer; killed from here, on Windows with 1
_PROGRAM = Path(__file__).resolve().parents[3] / "child"
_REMEDY = "Download the model from another source, or use /v1/completions, which needs no template."
_END_MARK = "\U000f1fff\U000f1ffe"  # private characters: the end of a message that the model continues
# OpenAI's ChatML, the default in llama.cpp and others for a model without a template.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Renderer:
    """Renders messages with one template. Thread-safe.

    `names` are values for the template's variables, such as `bos_token`.
    """

    def __init__(
        self, template: str, names: dict[str, str], control_tokens: ControlTokens, limit_s: float = LIMIT_S
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._init_message = {"template": template, "names": names, "limit_s": limit_s}
        self._control_tokens = control_tokens
        self._lock = threading.Lock()
        self._limit_s = limit_s
        self._start()

    def render(
        self,
        messages: Sequence[Message],
        tools: list[JsonObject] | None = None,
        values: JsonObject | None = None,
        continues: bool = False,
    ) -> list[str]:
        """Return the prompt as segments; tokenize each one separately.

        `values` are the caller's for the template's variables. With `continues` the prompt ends within the last
        message, so that the model continues it; by default it ends where a new message of the assistant begins.
        Raises Validation if the template rejects the messages, ModelBroken if it fails or exceeds a time limit,
        ModelLoadFailed if the interpreter lacks a package that the template needs.
        """
        if continues:
            messages = [*messages[:-1], {**messages[-1], "content": (messages[-1]["content"] or "") + _END_MARK}]
        inputs = {"messages": messages, "tools": tools, "values": values or {}}
        request, separator = self._control_tokens.escape(inputs)
        with self._lock:
            response = self._request({**request, "add_generation_prompt": not continues})
        if "text" in response:
            text = response["text"]
            if continues and _END_MARK not in text:
                raise _to_error("raised", "the last message cannot be continued", self._limit_s)
            return split_segments(text[: text.rindex(_END_MARK)] if continues else text, separator)
        detail = response["detail"].replace(separator, "") if separator else response["detail"]
        raise _to_error(response["error"], detail, self._limit_s)

    def close(self) -> None:
        """Kill the child process."""
        with self._lock:
            self._end()

    def __del__(self) -> None:
        """Kill the child process and close its pipes when the model is garbage collected."""
        self._end()

    def _request(self, request: JsonObject) -> dict[str, str]:
        if self._process is None:
            self._start()
        process = self._process
        assert process and process.stdin and process.stdout
        with contextlib.suppress(OSError):  # the process ended; then the read below returns no line
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        line = _read_line(process)
        if line.endswith(b"\n"):
            response: dict[str, str] = json.loads(line)
            return response
        self._end()
        if process.returncode == OUT_OF_MEMORY:
            return {"error": "memory", "detail": ""}
        return {"error": "endless" if process.returncode in _TIMEOUTS else "crashed", "detail": str(process.returncode)}

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_PROGRAM), "render"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(self._init_message).encode() + b"\n")
            self._process.stdin.flush()

    def _end(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line of stdout; an incomplete line if the process ended, nothing after a timeout."""
    assert process.stdout
    if sys.platform == "win32":  # Windows cannot poll a pipe, so a thread enforces the timeout
        timer = threading.Timer(_WALL_LIMIT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            return process.stdout.readline()
        finally:
            timer.cancel()
    poller, line, deadline = select.poll(), b"", time.monotonic() + _WALL_LIMIT_S
    poller.register(process.stdout, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poller.poll(max(0, deadline - time.monotonic()) * 1000):
            process.kill()
            return b""
        chunk = os.read(process.stdout.fileno(), 1 << 16)
        if not chunk:
            break
        line += chunk
    return line


def _to_error(error: str, detail: str, limit_s: float) -> TouchstoneError:
    if error == "raised":
        return Validation(f"The model's chat template rejects these messages: {detail}", "Change the messages.")
    if error == "endless":
        return ModelBroken(f"The model's chat template timed out after {limit_s:g} s.", _REMEDY)
    if error == "memory":
        return ModelBroken(
            f"The model's chat template needs more than {MEMORY_BYTES / (1 << 30):g} GB of memory.", _REMEDY
        )
    if error == "crashed":
        return ModelBroken(f"The process of the model's chat template crashed (exit code {detail}).", _REMEDY)
    if error == "missing":
        return ModelLoadFailed(
            f"The model's chat template needs the package {detail}, which is not installed in this runtime.",
            f"Update the runtime with `{command('runtimes update NAME')}`, or run `pip install {detail}` in your own "
            "environment.",
        )
    return ModelBroken(f"The model's chat template failed: {detail.rstrip('.')}.", _REMEDY)
