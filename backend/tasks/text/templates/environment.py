"""The program that renders one chat template in a separate process.

The template environment follows `transformers` (chat_template_utils). Protocol, one JSON object per line: the first
line on stdin is `{template, names, limit_s}`, then each request is `{messages, tools, values, add_generation_prompt}`.
Each response on stdout is `{text}` or `{error: raised | failed | missing, detail}`; for `missing`, `detail` is the name
of a package. A request that uses more than `limit_s` of CPU time ends the process.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from typing import Any, BinaryIO

from backend.common.types import JsonObject

_MEMORY_BYTES = 1 << 30
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
        failure = {"error": "missing", "detail": str(error.name)}
    except Exception as error:  # noqa: BLE001 (untrusted code can raise any exception)
        failure = {"error": "failed", "detail": _error_message(error)}
    while line := requests.readline():
        _set_cpu_limit(init["limit_s"])
        _write_response(responses, failure or render(template, json.loads(line), init["names"]))
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

    # Like transformers, drop keys without a value: many templates would write "None".
    messages = [{key: value for key, value in message.items() if value is not None} for message in request["messages"]]
    values = {
        **names,
        **request["values"],
        "messages": messages,
        "tools": request["tools"],
        "documents": None,
        "add_generation_prompt": request["add_generation_prompt"],
    }
    try:
        return {"text": template.render(**values)}
    except jinja2.exceptions.TemplateError as error:
        by_template = type(error) is jinja2.exceptions.TemplateError  # only `raise_exception` raises the base class
        return {"error": "raised" if by_template else "failed", "detail": _error_message(error)}
    except Exception as error:  # noqa: BLE001 (untrusted code can raise any exception)
        return {"error": "failed", "detail": _error_message(error)}


def compile_template(source: str) -> Any:
    """Return the compiled template. Raises jinja2's exceptions."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """The `{% generation %}` block, which marks assistant text for training. It has no effect here."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **more)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005 (the user's day)
    return environment.from_string(source)


def _error_message(error: Exception) -> str:
    return f"{error}"[:500] or type(error).__name__


def _write_response(responses: BinaryIO, response: dict[str, str]) -> None:
    responses.write(json.dumps(response).encode() + b"\n")
    responses.flush()


def _set_cpu_limit(limit_s: float) -> None:
    """Let the operating system end the process after `limit_s` more of CPU time, even inside native code."""
    if sys.platform != "win32":  # on Windows, the parent process enforces a wall clock timeout instead
        import signal

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, limit_s)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
