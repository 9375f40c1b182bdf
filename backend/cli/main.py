"""The command line: `python -m backend VERB …`. Exit codes: 0 fine, 1 a stated failure, 2 wrong usage or settings."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import select
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from backend import __version__
from backend.cli import commands
from backend.common.errors import Configuration, TouchstoneError

SYNONYMS = {"--list-devices": "devices"}


def main(arguments: Sequence[str]) -> int:
    """Runs one verb and returns the exit code."""
    words = [SYNONYMS.get(word, word) if place == 0 else word for place, word in enumerate(arguments)]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console of another encoding must not stop us
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    names = sorted(entry.name for entry in pkgutil.iter_modules(commands.__path__) if not entry.name.startswith("_"))
    parser = argparse.ArgumentParser(
        prog="python -m backend", description="Touchstone: generation on devices that really work."
    )
    parser.add_argument("--version", action="version", version=f"Touchstone {__version__}")
    asked = words[:1] if words[:1] and words[0] in names else names
    choices = parser.add_subparsers(metavar="VERB", required=True)
    for name in names:
        module = _module(name) if name in asked else None
        _add(choices, name, module)
    args = parser.parse_args(words)
    try:
        return int(args.run(args))
    except TouchstoneError as error:
        print(f"touchstone: {error.detail}\n  {error.remedy}", file=sys.stderr)
        return 2 if isinstance(error, Configuration) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if _has_reader(sys.stdout):
            raise  # some other pipe: not for us to keep silent about
        sys.stdout = None  # the reader left: nothing to flush to
        return 1


def _has_reader(stream: TextIO | None) -> bool:
    """Whether anyone still reads our output; without poll (Windows) a broken pipe is taken for that of the output."""
    if stream is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return not poll.poll(0)


def _add(choices: Any, name: str, module: Any) -> None:
    text = (module.__doc__ or "").strip().splitlines()[0] if module else ""
    parser = choices.add_parser(name, help=text, description=module.__doc__ if module else "")
    if module:
        parser.add_argument("--config", metavar="FILE", help="a config.yaml other than the one beside the program")
        module.add_arguments(parser)
        parser.set_defaults(run=module.run, misused=parser.error)  # for what argparse cannot see: ends with 2


def _module(name: str) -> Any:
    return importlib.import_module(f"backend.cli.commands.{name}")
