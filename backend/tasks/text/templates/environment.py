"""The program that renders one chat template in a separate process.

The template environment follows `transformers` (chat_template_utils). Protocol, one JSON object per line: the first
line on stdin is `{template, names, limit_s}`, then each request is `{messages, tools, values, add_generation_prompt}`.
Each response on stdout is `{text}` or `{error: raised | failed | missing | memory, detail}`; for `missing`, `detail` is
the name of a package. A request that uses more than `limit_s` of CPU time ends the process; one that uses too much
memory may end it with the status `OUT_OF_MEMORY`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, BinaryIO

from backend.common.types import JsonObject

MEMORY_BYTES = 1 << 30
OUT_OF_MEMORY = 77  # exit status
_TEXT_CHARS = 1 << 26  # of a prompt; no model has a context for more
_WATCH_S = 0.05
_IMPORT_LIMIT_S = 5.0  # extra CPU time for the import of jinja2


def main() -> int:
    """Render requests from stdin until it ends. Returns the exit status."""
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    init = json.loads(requests.readline() or b"null")
    if init is None:
        return 0
    _limit_memory()
    template: Any = None
    failure: dict[str, str] = {}
    try:
        _set_cpu_limit(init["limit_s"] + _IMPORT_LIMIT_S)
        _warm_up()
        _lock_down()
        template = compile_template(init["template"])
    except ModuleNotFoundError as error:
        failure = {"error": "missing", "detail": str(error.name).partition(".")[0]}
    except MemoryError:
        failure = {"error": "memory", "detail": ""}
    except Exception as error:  # noqa: BLE001 (untrusted code can raise any exception)
        failure = {"error": "failed", "detail": _error_message(error)}
    while line := requests.readline():
        _set_cpu_limit(init["limit_s"])
        try:
            _write_response(responses, failure or render(template, json.loads(line), init["names"]))
        except MemoryError:
            _write_response(responses, {"error": "memory", "detail": ""})
    return 0


def _warm_up() -> None:
    """Render sample templates, so that Python imports all modules it needs before file access is disabled."""
    for source in (
        "{{ raise_exception('x') }}",
        "{{ strftime_now('%c') }}",
        "{{ a.b.c }}",
        "{% if",
        "{{ [1]|tojson }}",
    ):
        with contextlib.suppress(Exception):  # two of the samples raise on purpose, to import the error handling
            compile_template(source).render()


def _lock_down() -> None:
    """Disable opening files and connections, starting processes and writing to files. On POSIX systems only."""
    if sys.platform != "win32":
        import resource

        for kind, limit in ((resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (limit, limit))


def render(template: Any, request: JsonObject, names: dict[str, str]) -> dict[str, str]:
    """Return the response to one request."""
    import jinja2

    values = {
        **names,
        **request["values"],
        "messages": [_message_for_template(message) for message in request["messages"]],
        "tools": request["tools"],
        "documents": None,
        "add_generation_prompt": request["add_generation_prompt"],
    }
    try:
        text = template.render(**values)
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:  # only `raise_exception` raises the base class
            return {"error": "raised", "detail": _shortened(str(error))}
        return {"error": "failed", "detail": _error_message(error)}
    except MemoryError:
        return {"error": "memory", "detail": ""}
    except Exception as error:  # noqa: BLE001 (untrusted code can raise any exception)
        return {"error": "failed", "detail": _error_message(error)}
    if len(text) > _TEXT_CHARS:
        return {"error": "failed", "detail": f"it wrote {len(text)} characters; the limit is {_TEXT_CHARS}"}
    return {"text": text}


def _message_for_template(message: JsonObject) -> JsonObject:
    """Return a message as templates expect it: as transformers does, without empty keys, reasoning under two names."""
    filled = {key: value for key, value in message.items() if value is not None}
    reasoning = filled.get("reasoning_content")
    return filled if reasoning is None else {"thinking": reasoning, **filled}


@lru_cache(maxsize=256)  # many files of a folder share a template
def find_syntax_error(source: str) -> str | None:
    """Return why a template cannot be compiled, with its line; None if its syntax is right or jinja2 is missing.

    It only parses, so untrusted code is safe here: nothing is computed.
    """
    try:
        _environment().parse(source)
    except ModuleNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 (untrusted code, nested too deeply for example)
        return _error_message(error)
    return None


def compile_template(source: str) -> Any:
    """Return the compiled template. Raises jinja2's exceptions."""
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> Any:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """The `{% generation %}` block, which marks assistant text for training. It has no effect here."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **more)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005 (the user's day)
    environment.globals["namespace"] = _make_namespace
    environment.globals["dict"] = lambda *pairs, **more: dict(*pairs, **more)  # the class would offer its attributes
    return environment


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.exceptions.TemplateError(message)


def _make_namespace(*pairs: Any, **more: Any) -> Any:
    """Return jinja2's object for `set` from within loops. Raises SecurityError for names with an underscore first."""
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class CheckedNamespace(Namespace):
        def __setitem__(self, name: str, value: Any) -> None:
            check(name)
            super().__setitem__(name, value)

    def check(name: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot store the name {name}")

    content = dict(*pairs, **more)
    for name in content:
        check(name)
    return CheckedNamespace(content)


def _error_message(error: Exception) -> str:
    """Return what failed, as one line that names the template's line if it is known."""
    line = getattr(error, "lineno", None) or _line_in_template(error.__traceback__)
    message = _shortened(str(error)) or type(error).__name__
    return f"line {line}: {message}" if line else message


def _line_in_template(traceback: TracebackType | None) -> int | None:
    """Return the innermost line of the template in a traceback; jinja2 gives its frames the template's lines."""
    line = None
    while traceback:
        if traceback.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _shortened(message: str) -> str:
    return message[:500]


def _write_response(responses: BinaryIO, response: dict[str, str]) -> None:
    responses.write(json.dumps(response).encode() + b"\n")
    responses.flush()


def _set_cpu_limit(limit_s: float) -> None:
    """Let the operating system end the process after `limit_s` more of CPU time, even inside native code."""
    if sys.platform != "win32":  # on Windows, the parent process enforces a wall clock timeout instead
        import signal

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, limit_s)


def _limit_memory(limit_bytes: int = MEMORY_BYTES) -> None:
    """Let the operating system refuse more memory; macOS does not, there a thread ends the process."""
    if sys.platform == "win32":
        _limit_windows_memory(limit_bytes)
        return
    import resource

    if sys.platform == "darwin":
        threading.Thread(target=_watch_memory, args=(limit_bytes,), daemon=True).start()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def _watch_memory(limit_bytes: int) -> None:
    """End the process once it used more memory than the limit."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit <= limit_bytes:
        time.sleep(_WATCH_S)
    os._exit(OUT_OF_MEMORY)


def _limit_windows_memory(limit_bytes: int) -> None:
    """Put this process into a job object with a memory limit (winnt.h)."""
    if sys.platform == "win32":
        import ctypes
        import struct

        limit_process_memory, extended_limits = 0x100, 9
        basic = struct.pack("<qqI4xQQI4xQII", 0, 0, limit_process_memory, 0, 0, 0, 0, 0, 0)
        limits = basic + struct.pack("<6Q", *[0] * 6) + struct.pack("<4Q", limit_bytes, 0, 0, 0)
        kernel = ctypes.WinDLL("kernel32")
        kernel.CreateJobObjectW.restype = kernel.GetCurrentProcess.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
        kernel.SetInformationJobObject(job, extended_limits, limits, len(limits))
        kernel.AssignProcessToJobObject(job, ctypes.c_void_p(kernel.GetCurrentProcess()))
