"""Settings: defaults < config.yaml < environment < flags. Errors for unknown keys name the closest valid one."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backend.common.commands import command
from backend.common.config.settings.names import CONFIG_VARIABLE, hint_of, nearest, takes_text
from backend.common.config.settings.schema import Settings, with_home
from backend.common.config.settings.sources import Layer, read_environment, read_file, read_flags
from backend.common.errors import Configuration
from backend.common.installation import config_folder

__all__ = ["Settings", "check_exposure", "is_loopback", "load_settings"]

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")


def load_settings(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ, root: Path | None = None
) -> Settings:
    """Load the settings from all sources.

    `flags`: optional, maps dotted keys (and `config`) to values; None means not given. `root`: folder of the default
    config.yaml. Default: `config_folder()`. Raises Configuration.
    """
    flags = flags or {}
    named = flags.get("config") or environ.get(CONFIG_VARIABLE)
    file = with_home(str(named)).absolute() if named else (root or config_folder()) / "config.yaml"
    layer = read_file(file) if named or file.exists() else Layer()
    layer.merge(read_environment(environ))
    layer.merge(read_flags(flags))
    layer.data.setdefault("storage", {})  # so that its default path becomes absolute too
    try:
        return TypeAdapter(Settings).validate_python(layer.data, context={"root": file.parent})
    except ValidationError as error:
        raise _to_configuration_error(error, layer) from None


def check_exposure(host: str, token: str | None) -> None:
    """Raise Configuration if other machines can reach the address and no token is set."""
    if token or is_loopback(host):
        return
    raise Configuration(
        f"`server.host` is {host}, which other machines can reach, but no token is set.",
        f"Create a token with `{command('token rotate')}`, set TOUCHSTONE_TOKEN to a long random string, or leave the "
        f"host at 127.0.0.1. In a container, `{command('serve --container')}` creates a token.",
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _to_configuration_error(error: ValidationError, layer: Layer) -> Configuration:
    """Return the first problem as an error: the key, where it is set, what is wrong and what to do."""
    problems: list[Any] = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] not in _UNKNOWN)
    path = tuple(str(part) for part in first["loc"])
    while path and path[-1] != "[key]" and path not in layer.origins and len(path) > 1 and first["type"] != "missing":
        path = path[:-1]  # pydantic appends the branch of a union, which is not a key
    if path and path[-1] == "[key]":
        path = path[:-1]
        return Configuration(
            f"`{'.'.join(path)}` ({layer.origin(path)}) is not a valid name.",
            "Valid are lower-case letters, digits, dots, dashes and underscores; a device id is `name` or `name:0`.",
        )
    key, where = ".".join(path), layer.origin(path)
    if first["type"] in _UNKNOWN:
        near = nearest(path)
        return Configuration(
            f"`{key}` ({where}) is not a setting.",
            f"Did you mean `{near}`?" if near else "Remove it; config.yaml lists all settings.",
        )
    if first["type"] == "missing":
        return Configuration(f"`{key}` is missing ({where}).", f"Add `{path[-1]}:`.")
    shown = "" if path[-1:] == ("token",) else f" (it is {first['input']!r})"
    return Configuration(f"`{key}` ({where}) {_expectation(first)}{shown}.", _remedy(path))


def _expectation(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        return "contains characters that are not allowed"
    for prefix in ("Input ", "String ", "Value "):
        message = message.removeprefix(prefix)
    return message.replace("valid dictionary", "mapping of names to values")


def _remedy(path: tuple[str, ...]) -> str:
    if takes_text(hint_of(path)):
        return "Write a string, in quotes if it looks like a number or a date; config.yaml has an example."
    return "Correct the value; config.yaml shows the default."
