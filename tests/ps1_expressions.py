"""Expressions of the part of PowerShell that launch.ps1 uses; `ps1_language` runs its statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tree_sitter import Node

from tests.ps1_values import (
    SKIPPED,
    NotUnderstood,
    PowerShellError,
    World,
    folded,
    holds,
    listed,
    name_of,
    string_of,
    text_of,
    verbatim,
)


class Expressions:
    """The values of expressions. Whoever runs statements gives what is left out here."""

    world: World
    scopes: list[dict[str, Any]]

    def _statements(self, node: Node, output: list[Any]) -> None:
        raise NotImplementedError

    def _do_pipeline(self, node: Node, output: list[Any]) -> None:
        raise NotImplementedError

    def _value(self, node: Node) -> Any:
        """The value of a pipeline: nothing, the one thing, or the list of what it wrote."""
        if node.type == "pipeline":
            output: list[Any] = []
            chain = [child for child in node.children if child.type == "pipeline_chain"]
            if len(chain) == 1:
                parts = [child for child in chain[0].children if child.type not in SKIPPED]
                if len(parts) == 1 and parts[0].type != "command":
                    return self._expression(parts[0])
            self._do_pipeline(node, output)
            return None if not output else output[0] if len(output) == 1 else output
        return self._expression(node)

    def _expression(self, node: Node) -> Any:
        parts = [child for child in node.children if child.type not in SKIPPED]
        handler: Callable[[Node], Any] | None = getattr(self, "_of_" + node.type, None)
        if handler:
            return handler(node)
        if len(parts) == 1:
            return self._expression(parts[0])
        if node.type == "array_literal_expression":
            return [self._expression(part) for part in parts]
        if node.type in ("logical_expression", "comparison_expression") and len(parts) == 3:
            return self._binary(*parts)
        raise NotUnderstood(f"{node.type}: {text_of(node)[:40]!r}")

    def _binary(self, left: Node, operator: Node, right: Node) -> Any:
        word, first = text_of(operator).strip().lower(), self._expression(left)
        if word in ("-and", "-or"):
            return holds(first) if holds(first) == (word == "-or") else holds(self._expression(right))
        second = self._expression(right)
        if isinstance(first, list):
            raise NotUnderstood("a comparison that filters a list")
        same = folded(first) == folded(second)
        if word in ("-eq", "-ne"):
            return same == (word == "-eq")
        raise NotUnderstood(word)

    def _of_expression_with_unary_operator(self, node: Node) -> Any:
        operator, operand = [child for child in node.children if child.type not in SKIPPED]
        if text_of(operator).lower() not in ("-not", "!"):
            raise NotUnderstood(text_of(operator))
        return not holds(self._expression(operand))

    def _of_parenthesized_expression(self, node: Node) -> Any:
        return self._value(next(child for child in node.children if child.type == "pipeline"))

    def _of_array_expression(self, node: Node) -> Any:
        output: list[Any] = []
        self._statements(node, output)
        return output

    def _of_variable(self, node: Node) -> Any:
        return self._variable(node)

    def _of_integer_literal(self, node: Node) -> Any:
        return int(text_of(node), 0)

    def _of_real_literal(self, node: Node) -> Any:
        return float(text_of(node))

    def _of_verbatim_string_characters(self, node: Node) -> Any:
        return verbatim(node)

    def _of_expandable_string_literal(self, node: Node) -> Any:
        source, at, pieces = node.text or b"", node.start_byte, []
        begin = 1
        for child in node.children:
            if child.type != "variable":
                raise NotUnderstood(f"{child.type} in a string")
            pieces.append(source[begin : child.start_byte - at].decode())
            pieces.append(string_of(self._variable(child)))
            begin = child.end_byte - at
        text = "".join([*pieces, source[begin:-1].decode()])
        if "`" in text or "$" in source.decode().replace("$$", "") and not node.children:
            raise NotUnderstood(text_of(node))
        return text

    def _of_element_access(self, node: Node) -> Any:
        target, index = [child for child in node.children if child.type not in SKIPPED]
        value, number = self._expression(target), self._expression(index)
        items = value if isinstance(value, str) else listed(value)  # of a text the index gives one character
        if not isinstance(number, int) or number >= len(items):
            raise PowerShellError("an index outside of the list")
        return items[number]

    def _of_member_access(self, node: Node) -> Any:
        return self.world.member(*self._owner(node), None)

    def _of_invokation_expression(self, node: Node) -> Any:
        arguments = next(child for child in node.children if child.type == "argument_list")
        lists = [child for child in arguments.children if child.type == "argument_expression_list"]
        values = [self._expression(part) for one in lists for part in one.children if part.type not in SKIPPED]
        return self.world.member(*self._owner(node), values)

    def _owner(self, node: Node) -> tuple[Any, str]:
        parts = [child for child in node.children if child.type not in SKIPPED and child.type not in (".", "::")]
        owner, name = parts[0], text_of(parts[1]).lower()
        if owner.type == "type_literal":
            return text_of(owner).lower(), name
        value = self._expression(owner)
        return value, name

    def _variable(self, node: Node) -> Any:
        return self._read(name_of(node))

    def _read(self, name: str) -> Any:
        if name.startswith("$env:"):
            raise NotUnderstood(name)
        constants = {"$true": True, "$false": False, "$null": None}
        if name in constants:
            return constants[name]
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise PowerShellError(f"strict mode: {name} was never set")
