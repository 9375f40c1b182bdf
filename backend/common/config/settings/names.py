"""The names of all settings, and the closest one to a misspelled name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from backend.common.commands import LAUNCHER_VARIABLE
from backend.common.config.settings.schema import Settings

PREFIX = "TOUCHSTONE_"
SHORT_FORMS = {"HOST": "server.host", "PORT": "server.port", "TOKEN": "server.token", "DATA_DIR": "storage.data_dir"}
CONFIG_VARIABLE = PREFIX + "CONFIG"
NOT_SETTINGS = (CONFIG_VARIABLE, LAUNCHER_VARIABLE)  # variables with the prefix that set no key
ANY_NAME = "ID"  # placeholder of a key that the user chooses, as in models.ID.path


@cache
def hints(section: Any) -> dict[str, Any]:
    """Return the types of a section's settings by name."""
    return get_type_hints(section, include_extras=True)


def entry_type(hint: Any) -> type[Any] | None:
    """Return the section type of the entries of a mapping such as `models`, None for other types."""
    kind = get_args(hint)[1] if get_origin(hint) is dict else None
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


@cache
def all_keys() -> tuple[str, ...]:
    """Return every setting as a dotted key, with `ID` for names that the user chooses."""
    return tuple(_walk(Settings, ""))


def _walk(section: Any, prefix: str) -> Iterator[str]:
    for name, hint in hints(section).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, f"{prefix}{name}.")
        elif inner := entry_type(hint):
            yield from _walk(inner, f"{prefix}{name}.{ANY_NAME}.")
        else:
            yield prefix + name


def hint_of(path: tuple[str, ...]) -> Any | None:
    """Return the type of the setting at this path, None if there is no such setting."""
    here: Any = Settings
    for key in path:
        inner = entry_type(here)
        if inner is not None:
            here = inner
        elif dataclasses.is_dataclass(here) and isinstance(here, type):
            here = hints(here).get(key)
        elif get_origin(here) is dict:
            here = get_args(here)[1]
        else:
            return None
    return here


def takes_text(hint: Any) -> bool:
    """Return whether a setting of this type is a string."""
    if get_origin(hint) in (Union, UnionType):
        return any(takes_text(part) for part in get_args(hint))
    return hint in (str, Path) or (hasattr(hint, "__metadata__") and takes_text(get_args(hint)[0]))


def nearest(path: tuple[str, ...]) -> str | None:
    """Return the dotted key that was most likely meant: in the same section, then by name, then by similarity."""
    parent, name = hint_of(path[:-1]), str(path[-1]).lower()
    if dataclasses.is_dataclass(parent) and isinstance(parent, type):
        if close := difflib.get_close_matches(name, hints(parent), 1, 0.6):
            return ".".join((*path[:-1], close[0]))
    tops = {key.split(".")[0]: key.split(".")[0] for key in all_keys()}
    leaves = {key.rsplit(".", 1)[-1]: key for key in reversed(all_keys()) if f".{ANY_NAME}." not in key}
    for keys_by_name in (leaves, tops):
        if close := difflib.get_close_matches(name, keys_by_name, 1, 0.75):
            return keys_by_name[close[0]]
    close = difflib.get_close_matches(".".join(path).lower(), all_keys(), 1, 0.6)
    return close[0] if close else None


def variable(key: str) -> str:
    """Return the environment variable of a dotted key."""
    return PREFIX + key.upper().replace(".", "__")


def nearest_variable(name: str) -> str | None:
    """Return the environment variable that was most likely meant, None if none is similar."""
    variables = [variable(key) for key in all_keys()] + [PREFIX + short for short in SHORT_FORMS] + [CONFIG_VARIABLE]
    close = difflib.get_close_matches(name.upper(), variables, 1, 0.6)
    return close[0] if close else None
