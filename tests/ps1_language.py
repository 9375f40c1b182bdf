"""Runs the small part of PowerShell that launch.ps1 is written in, as far as its rules are documented by Microsoft.

A construct that is not known here raises NotUnderstood, so that nothing passes because it was not looked at. What is
modelled: scopes that see their caller's variables, strict mode, output that every statement adds to, the unrolling of
lists, terminating errors, exit codes, and how 5.1 and 7.4 treat the streams and exit codes of programs. It stands in
for PowerShell where none can run, and proves no more than that the script means what it should by these rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Interpreter:
    """One run of one script. `modern` is PowerShell 7.4 and later, else Windows PowerShell 5.1."""

    world: World
    modern: bool
    scopes: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    functions: dict[str, Node] = field(default_factory=dict)

    def run(self, root: Node, variables: Mapping[str, Any]) -> Any:
        """The exit code. What nobody takes goes to the world's output."""
        self.scopes = [dict(variables)]
        try:
            output: list[Any] = []
            self._statements(root, output)
        except Exited as ended:
            return ended.code
        except Returned:
            return 0
        finally:
            self.world.write(output)
        return 0

    # Statements

    def _statements(self, node: Node, output: list[Any]) -> None:
        for child in node.children:
            if child.type in ("statement_list", "script_block_body", "script_block", "statement_block"):
                self._statements(child, output)
            elif child.type not in SKIPPED:
                self._statement(child, output)

    def _statement(self, node: Node, output: list[Any]) -> None:
        handler: Callable[[Node, list[Any]], None] | None = getattr(self, "_do_" + node.type, None)
        if handler is None:
            raise NotUnderstood(f"{node.type}: {_text(node)[:40]!r}")
        handler(node, output)

    def _do_function_statement(self, node: Node, output: list[Any]) -> None:
        name = next(child for child in node.children if child.type == "function_name")
        self.functions[_text(name).lower()] = node

    def _do_if_statement(self, node: Node, output: list[Any]) -> None:
        further = [clause for part in node.children if part.type == "elseif_clauses" for clause in part.children]
        for branch in (node, *further):
            condition = next(child for child in branch.children if child.type == "pipeline")
            if _true(self._value(condition)):
                self._statements(next(c for c in branch.children if c.type == "statement_block"), output)
                return
        for child in node.children:
            if child.type == "else_clause":
                self._statements(child, output)

    def _do_foreach_statement(self, node: Node, output: list[Any]) -> None:
        name, items = [child for child in node.children if child.type in ("variable", "pipeline")]
        block = next(child for child in node.children if child.type == "statement_block")
        for item in _listed(self._value(items)):
            self.scopes[-1][_name(name)] = item
            self._statements(block, output)

    def _do_try_statement(self, node: Node, output: list[Any]) -> None:
        blocks = [child for child in node.children if child.type == "statement_block"]
        clauses = [clause for part in node.children if part.type == "catch_clauses" for clause in part.children]
        if len(blocks) != 1 or len(clauses) != 1:
            raise NotUnderstood("a try with anything but one catch")
        try:
            self._statements(blocks[0], output)
        except PowerShellError:
            self._statements(clauses[0], output)

    def _do_flow_control_statement(self, node: Node, output: list[Any]) -> None:
        word = node.children[0].type
        value = next((child for child in node.children if child.type == "pipeline"), None)
        if word == "exit":
            raise Exited(0 if value is None else self._value(value))
        if word != "return":
            raise NotUnderstood(word)
        if value is not None:
            self._do_pipeline(value, output)
        raise Returned

    def _do_pipeline(self, node: Node, output: list[Any]) -> None:
        (inner,) = [child for child in node.children if child.type not in SKIPPED]
        if inner.type == "assignment_expression":
            self._assign(inner)
        elif inner.type == "pipeline_chain":
            output += self._chain(inner)
        else:
            raise NotUnderstood(inner.type)

    # Pipelines and commands

    def _assign(self, node: Node) -> None:
        target, operator, value = [child for child in node.children if child.type not in SKIPPED]
        variable = _only(target, "variable")
        if _text(operator).strip() != "=":
            raise NotUnderstood(_text(operator))
        name, scope = _name(variable), re.match(r"\$\{?(\w+):", _text(variable))
        if scope:
            raise NotUnderstood(_text(variable))
        self.scopes[-1][name] = self._value(value)

    def _chain(self, node: Node) -> list[Any]:
        parts = [child for child in node.children if child.type not in SKIPPED]
        piped: list[Any] = []
        for place, part in enumerate(parts):
            if part.type == "command":
                piped = self._command(part, piped)
            elif place == 0:
                piped = _unrolled(self._expression(part))
            else:
                raise NotUnderstood(f"{part.type} in a pipeline")
        return piped

    def _command(self, node: Node, piped: list[Any]) -> list[Any]:
        head = next(child for child in node.children if child.type in ("command_name", "command_name_expr"))
        called = self._head(head)
        tokens, silenced = self._tokens(node)
        if not isinstance(called, str):
            raise PowerShellError(f"{called!r} cannot be called")
        if called.lower() in self.functions:
            if any(parameter for parameter, _ in tokens):
                raise NotUnderstood("named arguments of an own function")
            return self._call(self.functions[called.lower()], [value for _, value in tokens])
        if re.fullmatch(r"[A-Za-z]+-[A-Za-z]+", called):
            return self.world.cmdlet(called.lower(), *_bound(tokens), piped)
        return self._native(called, tokens, silenced)

    def _head(self, head: Node) -> Any:
        variable = next((node for node in _walk(head) if node.type == "variable"), None)
        return _text(head) if variable is None else self._variable(variable)

    def _tokens(self, node: Node) -> tuple[list[tuple[str, Any]], bool]:
        """What stands behind a command: parameters as (name, None), values as ("", value); and if `2>$null` does."""
        elements = next((child for child in node.children if child.type == "command_elements"), None)
        tokens: list[tuple[str, Any]] = []
        silenced = False
        for part in elements.children if elements else []:
            text = _text(part)
            if part.type in SKIPPED:
                continue
            if part.type == "redirection" or (part.type == "generic_token" and ">" in text):
                if text.replace(" ", "").lower() != "2>$null":
                    raise NotUnderstood(text)
                silenced = True
            elif part.type == "command_parameter":
                tokens.append((text, None))
            elif text.startswith("@") and not text.startswith("@("):
                tokens += [("", value) for value in _listed(self._argument(part))]
            else:
                tokens.append(("", self._argument(part)))
        return tokens, silenced

    def _argument(self, node: Node) -> Any:
        if node.type == "generic_token":
            return _text(node)
        if node.type == "verbatim_string_characters":
            return _verbatim(node)
        return self._expression(node)

    def _native(self, name: str, tokens: list[tuple[str, Any]], silenced: bool) -> list[Any]:
        words: list[str] = []
        for parameter, value in tokens:
            words += [parameter] if parameter else [_string(item) for item in _listed(value)]
        if not self.world.runs(name):
            raise PowerShellError(f"{name} is no program that can be run")
        code, lines, complaint = self.world.program(name, words)
        self.scopes[0]["$lastexitcode"] = code
        if complaint and not silenced:
            self.world.complain(complaint)
        strict = self._read("$erroractionpreference") == "Stop"
        if not self.modern and silenced and complaint and strict:
            raise PowerShellError(complaint)  # 5.1: a line on a redirected stderr is an error
        if self.modern and code and strict and self._read("$psnativecommanduseerroractionpreference") is not False:
            raise PowerShellError(f"{name} ended with {code}")
        return list(lines)

    def _call(self, function: Node, placed: list[Any]) -> list[Any]:
        declared = next((c for c in function.children if c.type == "function_parameter_declaration"), None)
        parameters = [node for node in _walk(declared) if node.type == "script_parameter"] if declared else []
        given = list(placed)
        scope: dict[str, Any] = {}
        if len(given) > len(parameters):
            raise PowerShellError("more arguments than parameters")
        for parameter in parameters:
            variable = next(node for node in parameter.children if node.type == "variable")
            kind = next((_text(node).lower() for node in _walk(parameter) if node.type == "type_literal"), "")
            scope[_name(variable)] = _converted(kind, given.pop(0) if given else None)
        self.scopes.append(scope)
        output: list[Any] = []
        try:
            self._statements(next(c for c in function.children if c.type == "script_block"), output)
        except Returned:
            pass
        finally:
            self.scopes.pop()
        return output

    # Expressions

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
        raise NotUnderstood(f"{node.type}: {_text(node)[:40]!r}")

    def _binary(self, left: Node, operator: Node, right: Node) -> Any:
        word, first = _text(operator).strip().lower(), self._expression(left)
        if word in ("-and", "-or"):
            return _true(first) if _true(first) == (word == "-or") else _true(self._expression(right))
        second = self._expression(right)
        if isinstance(first, list):
            raise NotUnderstood("a comparison that filters a list")
        same = _folded(first) == _folded(second)
        if word in ("-eq", "-ne"):
            return same == (word == "-eq")
        raise NotUnderstood(word)

    def _of_expression_with_unary_operator(self, node: Node) -> Any:
        operator, operand = [child for child in node.children if child.type not in SKIPPED]
        if _text(operator).lower() not in ("-not", "!"):
            raise NotUnderstood(_text(operator))
        return not _true(self._expression(operand))

    def _of_parenthesized_expression(self, node: Node) -> Any:
        return self._value(next(child for child in node.children if child.type == "pipeline"))

    def _of_array_expression(self, node: Node) -> Any:
        output: list[Any] = []
        self._statements(node, output)
        return output

    def _of_variable(self, node: Node) -> Any:
        return self._variable(node)

    def _of_integer_literal(self, node: Node) -> Any:
        return int(_text(node), 0)

    def _of_real_literal(self, node: Node) -> Any:
        return float(_text(node))

    def _of_verbatim_string_characters(self, node: Node) -> Any:
        return _verbatim(node)

    def _of_expandable_string_literal(self, node: Node) -> Any:
        source, at, pieces = node.text or b"", node.start_byte, []
        begin = 1
        for child in node.children:
            if child.type != "variable":
                raise NotUnderstood(f"{child.type} in a string")
            pieces.append(source[begin : child.start_byte - at].decode())
            pieces.append(_string(self._variable(child)))
            begin = child.end_byte - at
        text = "".join([*pieces, source[begin:-1].decode()])
        if "`" in text or "$" in source.decode().replace("$$", "") and not node.children:
            raise NotUnderstood(_text(node))
        return text

    def _of_element_access(self, node: Node) -> Any:
        target, index = [child for child in node.children if child.type not in SKIPPED]
        value, number = self._expression(target), self._expression(index)
        items = value if isinstance(value, str) else _listed(value)  # of a text the index gives one character
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
        owner, name = parts[0], _text(parts[1]).lower()
        if owner.type == "type_literal":
            return _text(owner).lower(), name
        value = self._expression(owner)
        return value, name

    def _variable(self, node: Node) -> Any:
        return self._read(_name(node))

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


def _bound(tokens: Sequence[tuple[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
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


def _walk(node: Node) -> Sequence[Node]:
    return [node, *(inner for child in node.children for inner in _walk(child))]


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _name(variable: Node) -> str:
    return _text(variable).replace("${", "$").rstrip("}").replace("@", "$", 1).lower()


def _only(node: Node, kind: str) -> Node:
    while node.type != kind:
        parts = [child for child in node.children if child.type not in SKIPPED]
        if len(parts) != 1:
            raise NotUnderstood(_text(node))
        node = parts[0]
    return node


def _verbatim(node: Node) -> str:
    return _text(node)[1:-1].replace("''", "'")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _unrolled(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _true(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) > 1 or (len(value) == 1 and _true(value[0]))
    return bool(value)


def _folded(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _string(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_string, value))
    return "" if value is None else str(value)


def _converted(kind: str, value: Any) -> Any:
    if kind == "[string]":
        return _string(value)
    if kind == "[string[]]":
        return [_string(item) for item in _listed(value)]
    if kind:
        raise NotUnderstood(kind)
    return value
