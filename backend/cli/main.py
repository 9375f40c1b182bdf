"""The command line: `python -m backend VERB …` or `touchstone VERB …`.

Exit codes: 0 success; 1 a reported failure; 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from backend import __version__
from backend.cli.verbs import unknown_verb, verb_summaries
from backend.common import commands
from backend.common.errors import Configuration, TouchstoneError
from backend.common.installation import ROOT, is_installed

SYNONYMS = {"--list-devices": "devices"}


def console() -> int:
    """Run the command line as the installed program `touchstone`."""
    commands.announce(commands.INSTALLED)
    return main(sys.argv[1:])


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code. A missing package ends it with one line instead of a traceback."""
    try:
        return _run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "backend"):
            raise
        print(f"touchstone: this Python ({sys.executable}) lacks {package}. {_start_hint(arguments)}", file=sys.stderr)
        return 2


def _start_hint(arguments: Sequence[str]) -> str:
    """Return how to start the same verb with a Python that has the packages."""
    if is_installed():
        return f"Install it again: {sys.executable} -m pip install FOLDER, with the folder of its source."
    words = " ".join(arguments)
    pythons = (".venv/bin/python", ".venv/Scripts/python.exe")
    environment = next((path for path in pythons if Path(ROOT, path).exists()), None)
    alternative = f", or with {environment} -m backend {words}" if environment else ""
    return f"Start it with {commands.launcher()} {words}{alternative}."


def _run(arguments: Sequence[str]) -> int:
    words = [SYNONYMS.get(word, word) if place == 0 else word for place, word in enumerate(arguments)]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console with another encoding must not raise
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # Without a handler, Python prints warnings of the log on stderr, where a verb prints its own words only. `serve`
    # installs its handlers over this one.
    logging.getLogger().addHandler(logging.NullHandler())
    args = _parse(words)
    try:
        return int(args.run(args))
    except TouchstoneError as error:
        print(f"touchstone: {error.detail}\n  {error.remedy}", file=sys.stderr)
        return 2 if isinstance(error, Configuration) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if _has_reader(sys.stdout):
            raise  # another pipe broke: do not hide it
        sys.stdout = None  # the reader left, so there is no stream to flush
        return 1


def _parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line. Only the module of the chosen verb is imported, since some take a second."""
    parser = argparse.ArgumentParser(
        prog=commands.program(), description="Touchstone: generation on devices that are proved to work."
    )
    parser.add_argument("--version", action="version", version=f"Touchstone {__version__}")
    summaries = verb_summaries()
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, summary in summaries.items():
        chosen = words[:1] == [name]
        module = importlib.import_module(f"backend.cli.commands.{name}") if chosen else None
        verb = verbs.add_parser(name, help=summary.replace("%", "%%"), description=module.__doc__ if module else None)
        if module:
            _add_arguments(verb, module)
    if words and not words[0].startswith("-") and words[0] not in summaries:
        parser.error(unknown_verb(words[0], words[1:], summaries))
    return parser.parse_args(words)


def _add_arguments(verb: argparse.ArgumentParser, module: Any) -> None:
    verb.add_argument("--config", metavar="FILE", help="configuration file (default: the program's config.yaml)")
    module.add_arguments(verb)
    verb.set_defaults(run=module.run, misused=verb.error)  # `misused` reports errors that argparse cannot detect


def _has_reader(stream: TextIO | None) -> bool:
    """Return whether someone still reads our output. Without `poll` (Windows) the answer is False."""
    if stream is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return not poll.poll(0)
