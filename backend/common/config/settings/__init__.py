"""Settings: defaults < config.yaml < environment < flags. Unknown keys are refused with the nearest right one."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backend.common.config.settings.names import CONFIG_VARIABLE, hint_of, nearest, takes_text
from backend.common.config.settings.schema import Settings, with_home
from backend.common.config.settings.sources import Layer, read_environment, read_file, read_flags
from backend.common.errors import Configuration

__all__ = ["Settings", "check_exposure", "is_loopback", "load_settings"]

ROOT = Path(__file__).resolve().parents[4]
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")


def load_settings(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ, root: Path = ROOT
) -> Settings:
    """Settings from all sources. `flags` maps dotted keys (and `config`) to values, None meaning: not given.

    `root` is the folder whose config.yaml is read when none is named. Raises Configuration.
    """
    flags = flags or {}
    named = flags.get("config") or environ.get(CONFIG_VARIABLE)
    file = with_home(str(named)).absolute() if named else root / "config.yaml"
    layer = read_file(file) if named or file.exists() else Layer()
    layer.merge(read_environment(environ))
    layer.merge(read_flags(flags))
    layer.data.setdefault("storage", {})  # so that its default path is made absolute as well
    try:
        return TypeAdapter(Settings).validate_python(layer.data, context={"root": file.parent})
    except ValidationError as error:
        raise _refusal(error, layer) from None


def check_exposure(host: str, token: str | None) -> None:
    """Refuses an address that others can reach while there is no token. Raises Configuration."""
    if token or is_loopback(host):
        return
    raise Configuration(
        f"`server.host` is {host}, which other machines can reach, and there is no token to keep strangers out.",
        "Make a token with `token rotate` or set TOUCHSTONE_TOKEN to a long random word, or leave the host at "
        "127.0.0.1. In a container, `serve --container` makes a token.",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _refusal(error: ValidationError, layer: Layer) -> Configuration:
    """The first problem in words: which key, where it stands, what is wrong, what to do."""
    problems: list[Any] = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] not in _UNKNOWN)
    path = tuple(str(part) for part in first["loc"])
    while path and path[-1] != "[key]" and path not in layer.origins and len(path) > 1 and first["type"] != "missing":
        path = path[:-1]  # pydantic adds the branch of a union, which is no key of ours
    if path and path[-1] == "[key]":
        path = path[:-1]
        return Configuration(
            f"`{'.'.join(path)}` ({layer.origin(path)}) is not a valid name there.",
            "Ids have small letters, digits, dots, dashes and underscores; a device id is `name` or `name:0`.",
        )
    key, where = ".".join(path), layer.origin(path)
    if first["type"] in _UNKNOWN:
        near = nearest(path)
        return Configuration(
            f"`{key}` ({where}) is not a setting.",
            f"Did you mean `{near}`?" if near else "Remove it; config.yaml lists all settings.",
        )
    if first["type"] == "missing":
        return Configuration(f"`{key}` is missing ({where}).", f"Add `{path[-1]}:` there.")
    shown = "" if path[-1:] == ("token",) else f" (it is {first['input']!r})"
    return Configuration(f"`{key}` ({where}) {_expectation(first)}{shown}.", _remedy(path))


def _expectation(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        return "has characters that are not allowed there"
    for prefix in ("Input ", "String ", "Value "):
        message = message.removeprefix(prefix)
    return message.replace("valid dictionary", "mapping of names to values")


def _remedy(path: tuple[str, ...]) -> str:
    if takes_text(hint_of(path)):
        return "Write a text, in quotes if it looks like a number or a date; config.yaml shows the form."
    return "Correct the value; config.yaml shows the default and the form."
