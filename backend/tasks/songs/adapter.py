"""A parser for adapters: a user's Python file that generates songs with the user's own packages (docs/adapters.md).

The server only parses the literal `ADAPTER` in the file. The worker, which runs in the user's environment, executes it.
Standard library only.
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
from backend.tasks.songs.model_kinds import COMMON_OPTIONS, KINDS, SongKind

NAME = "ADAPTER"
FUNCTIONS = ("load", "generate")
_MAX_FILE_BYTES = 1_000_000
_MAX_RATE = 768_000  # Hz; no audio device plays more
_REMEDY = "Correct the file; docs/adapters.md has an example."
_KEYS = frozenset("title rate channels takes defaults longest_s sounds memory_bytes licence packages".split())
_SONG_OPTIONS = frozenset(option for kind in KINDS.values() for option in kind.takes)


@dataclass(frozen=True)
class Adapter:
    """The declaration of an adapter file. `memory_bytes` and `licence` are optional."""

    path: Path
    kind: SongKind
    rate: int
    channels: int
    memory_bytes: int | None
    licence: str | None
    packages: tuple[str, ...]


def read_adapter(path: Path) -> Adapter:
    """Parse an adapter file. The result is cached until the file changes. Raises ModelBroken with the reason."""
    try:
        stat = path.stat()
        return _parse(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError) as error:  # ValueError: the file contains a null byte or is not UTF-8
        raise ModelBroken(f"The adapter {path.name} cannot be read: {error}.", "Check the file.") from None


@lru_cache(maxsize=64)
def _parse(path: Path, size: int, mtime_ns: int) -> Adapter:
    if size > _MAX_FILE_BYTES:
        raise ModelBroken(f"The adapter {path.name} is larger than {_MAX_FILE_BYTES} bytes.", _REMEDY)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        reason = f"{error.msg}, line {error.lineno}"
        raise ModelBroken(f"The adapter {path.name} is not valid Python: {reason}.", _REMEDY) from None
    except (MemoryError, RecursionError):  # Python's parser raises these for deeply nested brackets
        raise ModelBroken(f"The adapter {path.name} is nested too deeply to parse.", _REMEDY) from None
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing := [name for name in FUNCTIONS if name not in defined]:
        raise ModelBroken(f"The adapter {path.name} has no function {missing[0]}.", _REMEDY)
    return _build_adapter(path, _find_literal(path, tree))


def _find_literal(path: Path, tree: ast.Module) -> Mapping[str, Any]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == [NAME]:
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, MemoryError, RecursionError):  # TypeError: such as a list as a key
                break
            if isinstance(value, dict):
                return _require_json(path, value)
            break
    raise ModelBroken(f"The adapter {path.name} has no declaration {NAME} = {{…}} with literal values.", _REMEDY)


def _require_json(path: Path, declaration: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the declaration. Raises ModelBroken for values that JSON lacks: bytes, sets, NaN, lone surrogates."""
    try:
        json.dumps(declaration, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelBroken(
            f"The adapter {path.name}: {NAME} has a value that JSON cannot represent: {ascii(str(error))[1:-1]}.",
            _REMEDY,
        ) from None
    return declaration


def _build_adapter(path: Path, declaration: Mapping[str, Any]) -> Adapter:
    def value_of(name: str, kinds: tuple[type, ...], default: Any = None) -> Any:
        value = declaration.get(name, default)
        if not isinstance(value, kinds) or isinstance(value, bool):
            expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise ModelBroken(f"The adapter {path.name}: {NAME}[{name!r}] should be {expected}.", _REMEDY)
        return value

    if unknown := sorted(set(map(str, declaration)) - _KEYS):
        raise ModelBroken(
            f"The adapter {path.name}: {NAME} has the unknown key {unknown[0]!r}.",
            f"Use only these keys: {', '.join(sorted(_KEYS))}.",
        )
    takes, defaults = value_of("takes", (list, tuple), ()), value_of("defaults", (dict,), {})
    invalid = ({*map(str, takes)} - _SONG_OPTIONS) | (set(map(str, defaults)) - _SONG_OPTIONS - COMMON_OPTIONS)
    if invalid:
        raise ModelBroken(
            f"The adapter {path.name}: songs have no option {min(invalid)!r}.",
            f"The options are {', '.join(sorted(_SONG_OPTIONS))}.",
        )
    if unused := sorted(set(defaults) - set(takes) - COMMON_OPTIONS):
        raise ModelBroken(
            f"The adapter {path.name} has a default for {unused[0]}, which it does not take.",
            f"Add {unused[0]} to {NAME}['takes'], or remove the default.",
        )
    rate, channels = value_of("rate", (int,)), value_of("channels", (int,))
    if not 1 <= rate <= _MAX_RATE or not 1 <= channels <= 16:
        raise ModelBroken(
            f"The adapter {path.name}: {channels} channels at {rate} Hz are not supported.",
            f"Set channels to 1 … 16 and rate to 1 … {_MAX_RATE}.",
        )
    longest_s = value_of("longest_s", (int, float, type(None)))
    if longest_s is not None and longest_s <= 0:
        raise ModelBroken(f"The adapter {path.name}: longest_s is {longest_s}; it must be positive.", _REMEDY)
    kind = SongKind(
        name=path.stem,
        is_pipeline=False,
        title=value_of("title", (str,), path.stem),
        takes=frozenset(map(str, takes)),
        defaults={"seconds": min(30, longest_s or 30), **defaults},
        longest_s=longest_s,
        sounds=frozenset(map(str, value_of("sounds", (list, tuple), ()))),
    )
    memory, licence = value_of("memory_bytes", (int, type(None))), value_of("licence", (str, type(None)))
    packages = tuple(map(str, value_of("packages", (list, tuple), ())))
    return Adapter(path, kind, rate, channels, memory, licence, packages)
