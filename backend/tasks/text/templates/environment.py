"""The template's environment, inside its own process, with the conventions of `transformers` (chat_template_utils).

First line in: `{template, names, limit_s}`; then one line `{messages, tools}` a request. Each answer is one line:
`{text}` or `{error: raised | failed | missing, detail}`, `missing` with the name of a package. A request that computes
longer than `limit_s` ends the process.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from typing import Any, BinaryIO

_MEMORY_BYTES = 1 << 30
_START_S = 5.0  # of the processor, to import jinja2


def main() -> int:
    """Answers until stdin ends."""
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    first = json.loads(source.readline() or b"null")
    if first is None:
        return 0
    _limit_memory()
    template: Any = None
    refusal: dict[str, str] = {}
    try:
        _allow(first["limit_s"] + _START_S)
        _warm_up()
        _close_in()
        template = compiled(first["template"])
    except ModuleNotFoundError as error:
        refusal = {"error": "missing", "detail": str(error.name)}
    except Exception as error:  # noqa: BLE001 (a stranger's program may fail in any way)
        refusal = {"error": "failed", "detail": _said(error)}
    while line := source.readline():
        _allow(first["limit_s"])
        _answer(answers, refusal or rendered(template, json.loads(line), first["names"]))
    return 0


def _warm_up() -> None:
    """Loads whatever a template or its failure makes Python load, since later no file can be opened."""
    for source in (
        "{{ raise_exception('x') }}",
        "{{ strftime_now('%c') }}",
        "{{ a.b.c }}",
        "{% if",
        "{{ [1]|tojson }}",
    ):
        with contextlib.suppress(Exception):  # two of them fail, as they should
            compiled(source).render()


def _close_in() -> None:
    """The program has all that it needs: it opens, connects and starts nothing more, and writes to no file."""
    if sys.platform != "win32":
        import resource

        for kind, most in ((resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (most, most))


def rendered(template: Any, asked: dict[str, Any], names: dict[str, str]) -> dict[str, str]:
    """The answer to one request."""
    import jinja2

    # transformers leaves a key without a value out, since many templates would write "None".
    messages = [{key: value for key, value in message.items() if value is not None} for message in asked["messages"]]
    values = {**names, "messages": messages, "tools": asked["tools"], "documents": None, "add_generation_prompt": True}
    try:
        return {"text": template.render(**values)}
    except jinja2.exceptions.TemplateError as error:
        refused = type(error) is jinja2.exceptions.TemplateError  # what `raise_exception` raises, and nothing else
        return {"error": "raised" if refused else "failed", "detail": _said(error)}
    except Exception as error:  # noqa: BLE001 (a stranger's program may fail in any way)
        return {"error": "failed", "detail": _said(error)}


def compiled(source: str) -> Any:
    """The template, ready to render. Raises jinja2's errors."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what the assistant says, for training; here it changes nothing."""

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


def _said(error: Exception) -> str:
    return f"{error}"[:500] or type(error).__name__


def _answer(answers: BinaryIO, answer: dict[str, str]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _allow(limit_s: float) -> None:
    """Time of the processor from now on; the system ends the process after it, whatever native code runs."""
    if sys.platform != "win32":  # there the worker's own clock ends it
        import signal

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, limit_s)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
