"""Values, errors and conversion rules of PowerShell for `ps1_language`, by Microsoft's documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tree_sitter import Node

WORDS = {"if", "elseif", "else", "foreach", "in", "try", "catch"}
SKIPPED = WORDS | set("(){}[];,&|\n") | {"@(", "comment", "command_argument_sep", "empty_statement"}


class NotUnderstood(Exception):
    """A construct outside the part that is known here."""


class PowerShellError(Exception):
    """What `catch` catches, and what ends the script otherwise."""


class Exited(Exception):
    def __init__(self, code: Any) -> None:
        super().__init__(str(code))
        self.code = code


class Returned(Exception):
    """Leaves a function; what it returned is already among its output."""


class Members(dict[str, Any]):
    """An object with properties, by lower-case names."""


class World(Protocol):
    """The machine: cmdlets, programs, static members."""

    def cmdlet(self, name: str, named: Mapping[str, Any], placed: Sequence[Any], piped: list[Any]) -> list[Any]: ...
    def runs(self, program: str) -> bool: ...
    def program(self, name: str, arguments: Sequence[str]) -> tuple[int, list[str], str]: ...
    def member(self, owner: Any, name: str, arguments: Sequence[Any] | None) -> Any: ...
    def complain(self, line: str) -> None: ...
    def write(self, output: Sequence[Any]) -> None: ...


def bound(tokens: Sequence[tuple[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """As cmdlets take them: a value belongs to the parameter before it; the rest has a place."""
    named: dict[str, Any] = {}
    placed: list[Any] = []
    waiting = ""
    for parameter, value in tokens:
        if parameter:
            waiting = parameter.strip("-:").lower()
            named[waiting] = True
        elif waiting:
            named[waiting], waiting = value, ""
        else:
            placed.append(value)
    return named, placed


def walk(node: Node) -> Sequence[Node]:
    return [node, *(inner for child in node.children for inner in walk(child))]


def text_of(node: Node) -> str:
    return (node.text or b"").decode()


def name_of(variable: Node) -> str:
    return text_of(variable).replace("${", "$").rstrip("}").replace("@", "$", 1).lower()


def only(node: Node, kind: str) -> Node:
    while node.type != kind:
        parts = [child for child in node.children if child.type not in SKIPPED]
        if len(parts) != 1:
            raise NotUnderstood(text_of(node))
        node = parts[0]
    return node


def verbatim(node: Node) -> str:
    return text_of(node)[1:-1].replace("''", "'")


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def unrolled(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def holds(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) > 1 or (len(value) == 1 and holds(value[0]))
    return bool(value)


def folded(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def string_of(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(string_of, value))
    return "" if value is None else str(value)


def converted(kind: str, value: Any) -> Any:
    if kind == "[string]":
        return string_of(value)
    if kind == "[string[]]":
        return [string_of(item) for item in listed(value)]
    if kind:
        raise NotUnderstood(kind)
    return value
