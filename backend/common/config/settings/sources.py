"""The sources of settings: the configuration file, the environment, the command line.

Each source returns nested plain data and a description of where each value was set. pydantic-settings is not used: it
ignores unknown variables and repeated keys, which must be errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_origin

import yaml

from backend.common.config.settings.names import (
    CONFIG_VARIABLE,
    NOT_SETTINGS,
    PREFIX,
    SHORT_FORMS,
    hint_of,
    nearest_variable,
    takes_text,
)
from backend.common.errors import Configuration
from backend.common.types import JsonObject

KeyPath = tuple[str, ...]


@dataclass
class Layer:
    """The values of one source, and where each was set."""

    data: JsonObject = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Set one nested value; create mappings as needed. Raises Configuration if a parent is a single value."""
        here = self.data
        for key in path[:-1]:
            inner = here.setdefault(key, {})
            if not isinstance(inner, dict):
                raise Configuration(
                    f"{origin} sets a value inside `{key}`, but {self.origin(path)} sets `{key}` to a single value.",
                    "Keep one of the two.",
                )
            here = inner
        here[path[-1]] = value
        self.origins[path] = origin

    def origin(self, path: KeyPath) -> str:
        """Return where this path, or its closest parent, was set."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return "the configuration"

    def merge(self, other: Layer) -> None:
        """Override with another source, key by key."""
        _merge(self.data, other.data)
        self.origins.update(other.origins)


def _merge(base: JsonObject, over: JsonObject) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


class _Loader(yaml.SafeLoader):
    """A YAML loader without anchors, which could expand a small file without limit."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(None, None, "references (*name) are not supported", mark)
        return super().compose_node(parent, index)


def read_file(path: Path) -> Layer:
    """Parse the configuration file. Raises Configuration with the line of the error."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Configuration(
            f"{path} is not UTF-8 text (byte {error.start + 1}).", "Save the file with the encoding UTF-8."
        ) from None
    except OSError as error:
        raise Configuration(
            f"The configuration file {path} cannot be read: {error.strerror}.",
            f"Create the file, or set {CONFIG_VARIABLE} or --config to another one.",
        ) from None
    layer = Layer({}, {(): str(path)})
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        value = {} if node is None else _build(loader, node, (), layer, path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Configuration(*_yaml_error_text(path, error)) from None
    if value is not None and not isinstance(value, dict):
        raise Configuration(
            f"{path} contains a single value or a list, not settings.", "Write `name: value` lines, as in config.yaml."
        )
    layer.data = _without_empty(value or {}, ())
    return layer


def _without_empty(data: JsonObject, path: KeyPath) -> JsonObject:
    """Return the data without empty groups, such as `models:` with only comments below it."""
    kept = {}
    for key, value in data.items():
        hint = hint_of((*path, key))
        if isinstance(value, dict):
            kept[key] = _without_empty(value, (*path, key))
        elif value is not None or not (is_dataclass(hint) or get_origin(hint) in (dict, list)):
            kept[key] = value
    return kept


def _build(loader: _Loader, node: yaml.Node, path: KeyPath, layer: Layer, file: Path) -> Any:
    """Return the plain data of a YAML node and record each key's line. Raises Configuration for a repeated key."""
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*path, str(index)), layer, file) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node, deep=True)
    data: JsonObject = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(None, None, "a key must be a plain name", key_node.start_mark)
        key, line = str(key_node.value), key_node.start_mark.line + 1
        here = (*path, key)
        if key in data:
            raise Configuration(
                f"`{'.'.join(here)}` is set twice, the second time in {file}, line {line}.", "Remove one of the two."
            )
        layer.origins[here] = f"{file}, line {line}"
        data[key] = _build(loader, value_node, here, layer, file)
    return data


def _yaml_error_text(path: Path, error: Exception) -> tuple[str, str]:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error) or "nested too deeply"
    hint = " YAML requires spaces instead of tabs." if "\\t" in problem else ""
    return f"{where}: not valid YAML: {problem}.{hint}", "Correct that line; config.yaml has examples."


def read_environment(environ: Mapping[str, str]) -> Layer:
    """Parse all TOUCHSTONE_ variables. An empty one counts as unset. Raises Configuration."""
    layer = Layer()
    for name in sorted(environ):
        bare = name.upper().removeprefix(PREFIX)
        if not name.upper().startswith(PREFIX) or name.upper() in NOT_SETTINGS or not environ[name]:
            continue
        path = tuple(SHORT_FORMS[bare].split(".") if bare in SHORT_FORMS else bare.lower().split("__"))
        origin = f"the environment variable {name}"
        if hint_of(path) is None:
            near = nearest_variable(name)
            raise Configuration(
                f"The environment variable {name} does not correspond to a setting.",
                f"Did you mean {near}? Otherwise unset it." if near else "Unset it; config.yaml lists all settings.",
            )
        if path in layer.origins:
            raise Configuration(f"{layer.origins[path]} and {name} set the same setting.", "Unset one of the two.")
        layer.put(path, _from_text(environ[name], hint_of(path), origin), origin)
    return layer


def _from_text(text: str, hint: Any, origin: str) -> Any:
    """Return a variable's text for a string setting, otherwise parse it as YAML: numbers, lists, null."""
    if text == "null" or not takes_text(hint):
        try:
            return yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise Configuration(f"{origin} is not valid YAML: {text!r}.", "Write it as in config.yaml.") from None
    return text


def read_flags(flags: Mapping[str, object]) -> Layer:
    """Return the command line's flags by dotted key. None counts as not given."""
    layer = Layer()
    for key, value in flags.items():
        if value is not None and key != "config":
            name = re.sub(r"[._]", "-", key.rsplit(".", 1)[-1])
            layer.put(tuple(key.split(".")), value, f"the flag --{name}")
    return layer
