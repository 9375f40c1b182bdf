"""An adapter: a file of the user's that makes songs by packages of an environment of theirs (docs/adapters.md).

The server reads what it says of itself, a literal `ADAPTER`, and never runs it; that is left to the worker in that
environment. Standard library alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken
from backend.tasks.songs.model_kinds import ALWAYS, KINDS, SongKind

NAME = "ADAPTER"
FUNCTIONS = ("load", "generate")
_LONGEST_FILE = 1_000_000
_HIGHEST_RATE = 768_000  # samples a second; no device plays more
_HOW = "docs/adapters.md has an example."
_FACTS = frozenset("title rate channels takes defaults longest_s sounds memory_bytes licence packages".split())
_KNOWN = frozenset(option for kind in KINDS.values() for option in kind.takes)


@dataclass(frozen=True)
class Adapter:
    """What the file says. `memory_bytes` and `licence` are None where it does not say."""

    path: Path
    kind: SongKind
    rate: int
    channels: int
    memory_bytes: int | None
    licence: str | None
    packages: tuple[str, ...]


def read_adapter(path: Path) -> Adapter:
    """Raises ModelBroken with what is wrong."""
    try:
        facts = path.stat()
        return _read(path, facts.st_size, facts.st_mtime_ns)
    except (OSError, ValueError) as error:  # a file with a null byte, or not UTF-8
        raise ModelBroken(f"The adapter {path.name} cannot be read: {error}.", "Check the file.") from None


@lru_cache(maxsize=64)
def _read(path: Path, size: int, mtime_ns: int) -> Adapter:
    if size > _LONGEST_FILE:
        raise ModelBroken(f"{path.name} is far too long for an adapter.", _HOW)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ModelBroken(f"The adapter {path.name} is not Python: {error.msg}, line {error.lineno}.", _HOW) from None
    except (MemoryError, RecursionError):  # what the parser says of brackets in brackets
        raise ModelBroken(f"The adapter {path.name} is nested too deeply to be read.", _HOW) from None
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing := [name for name in FUNCTIONS if name not in defined]:
        raise ModelBroken(f"The adapter {path.name} has no function {missing[0]}.", _HOW)
    return _adapter(path, _literal(path, tree))


def _literal(path: Path, tree: ast.Module) -> Mapping[str, Any]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == [NAME]:
            try:
                found = ast.literal_eval(node.value)
            except (ValueError, TypeError, MemoryError, RecursionError):  # such as a list for a key
                break
            if isinstance(found, dict):
                return _answerable(path, found)
            break
    raise ModelBroken(
        f"The adapter {path.name} does not say what it is: it has no {NAME} = {{…}} of plain values.", _HOW
    )


def _answerable(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises ModelBroken for what no answer can carry: bytes, sets, numbers that are none, halves of characters."""
    try:
        json.dumps(facts, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelBroken(
            f"The adapter {path.name}: {NAME} has a value that is neither text nor number: {ascii(str(error))[1:-1]}.",
            _HOW,
        ) from None
    return facts


def _adapter(path: Path, facts: Mapping[str, Any]) -> Adapter:
    def said(name: str, kinds: tuple[type, ...], default: Any = None) -> Any:
        value = facts.get(name, default)
        if not isinstance(value, kinds) or isinstance(value, bool):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise ModelBroken(f"The adapter {path.name}: {NAME}[{name!r}] should be {wanted}.", _HOW)
        return value

    if unknown := sorted(set(map(str, facts)) - _FACTS):
        raise ModelBroken(
            f"The adapter {path.name}: {NAME}[{unknown[0]!r}] is not known.", f"Known are {', '.join(sorted(_FACTS))}."
        )
    takes, defaults = said("takes", (list, tuple), ()), said("defaults", (dict,), {})
    if wrong := sorted(({*map(str, takes)} - _KNOWN) | (set(map(str, defaults)) - _KNOWN - ALWAYS)):
        raise ModelBroken(
            f"The adapter {path.name}: no song has the option {wrong[0]!r}.",
            f"Options are {', '.join(sorted(_KNOWN))}.",
        )
    if untaken := sorted(set(defaults) - set(takes) - ALWAYS):
        raise ModelBroken(
            f"The adapter {path.name} has a default for {untaken[0]}, which it does not take.",
            f"Name it in {NAME}['takes'], or leave the default out.",
        )
    rate, channels = said("rate", (int,)), said("channels", (int,))
    if not 1 <= rate <= _HIGHEST_RATE or not 1 <= channels <= 16:
        raise ModelBroken(
            f"The adapter {path.name}: no sound has {channels} channels at {rate} samples a second.", _HOW
        )
    longest_s = said("longest_s", (int, float, type(None)))
    if longest_s is not None and longest_s <= 0:
        raise ModelBroken(f"The adapter {path.name}: no song is at most {longest_s} s long.", _HOW)
    kind = SongKind(
        name=path.stem,
        is_pipeline=False,
        title=said("title", (str,), path.stem),
        takes=frozenset(map(str, takes)),
        defaults={"seconds": min(30, longest_s or 30), **defaults},
        longest_s=longest_s,
        sounds=frozenset(map(str, said("sounds", (list, tuple), ()))),
    )
    memory, licence = said("memory_bytes", (int, type(None))), said("licence", (str, type(None)))
    packages = tuple(map(str, said("packages", (list, tuple), ())))
    return Adapter(path, kind, rate, channels, memory, licence, packages)
