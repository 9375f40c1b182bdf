"""The verbs of the command line by name, without importing one, and hints for the verbs of other tools.

Standard library only: the launcher also uses it, before an environment exists.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from backend.common.commands import command

FOLDER = Path(__file__).with_name("commands")


def verb_summaries(folder: Path = FOLDER) -> dict[str, str]:
    """Return each verb in `folder` with the first line of its module's docstring, sorted by name."""
    return {file.stem: _summary(file) for file in sorted(folder.glob("[a-z]*.py"))}


def _summary(file: Path) -> str:
    with file.open(encoding="utf-8") as module:
        return module.readline().strip().strip('"')  # parsing 18 modules would take longer than all the rest


def table(summaries: dict[str, str]) -> str:
    """Return one indented line for each verb."""
    return "\n".join(f"    {name:<10} {summary}" for name, summary in summaries.items())


def unknown_verb(verb: str, arguments: Sequence[str], verbs: Iterable[str]) -> str:
    """Return an error message for a verb that does not exist, with the command that the user probably wants."""
    equivalent = _equivalent(verb, arguments)
    if equivalent is None:
        near = difflib.get_close_matches(verb, list(verbs), 1)
        equivalent = near[0] if near else None
    hint = f"Did you mean: {command(equivalent)}" if equivalent else f"`{command('--help')}` lists the verbs."
    return f"unknown verb {verb!r}. {hint}"


def _equivalent(verb: str, arguments: Sequence[str]) -> str | None:
    """Return the words that do here what `verb` does in ollama, docker or pip. Optional: None for an unknown verb."""
    named = [shlex.quote(word) for word in arguments if not word.startswith("-")]
    first = named[0] if named else None
    source = first or "SOURCE"
    remote = any(mark in source for mark in "/:")
    prompt = shlex.quote(" ".join(arguments[1:])) if arguments[1:] else "PROMPT"
    generate = f"generate --model {first} {prompt}" if first else "generate PROMPT"
    return {
        "chat": generate,
        "run": generate,
        "list": "models",
        "ls": "models",
        "show": "models",
        "ps": "status",
        "pull": f"models {'add' if remote else 'fetch'} {first or 'ID'}",
        "create": f"models add {source}",
        "rm": f"models remove {first or 'ID'}",
        "install": f"runtimes install {first or 'NAME'}",
        "help": "--help",
        "version": "--version",
    }.get(verb)
