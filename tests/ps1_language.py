"""An interpreter of the part of PowerShell that launch.ps1 uses, by Microsoft's documentation.

A construct that is not known here raises NotUnderstood, so that nothing passes because it was not looked at. What is
modelled: scopes that see their caller's variables, strict mode, output that every statement adds to, the unrolling of
lists, terminating errors, exit codes, and how 5.1 and 7.4 treat the streams and exit codes of programs. It stands in
for PowerShell where none can run, and proves no more than that the script means what it should by these rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tree_sitter import Node

from tests.ps1_expressions import Expressions
from tests.ps1_values import (
    SKIPPED,
    Exited,
    NotUnderstood,
    PowerShellError,
    Returned,
    World,
    bound,
    converted,
    holds,
    listed,
    name_of,
    only,
    string_of,
    text_of,
    unrolled,
    verbatim,
    walk,
)


@dataclass
class Interpreter(Expressions):
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
            raise NotUnderstood(f"{node.type}: {text_of(node)[:40]!r}")
        handler(node, output)

    def _do_function_statement(self, node: Node, output: list[Any]) -> None:
        name = next(child for child in node.children if child.type == "function_name")
        self.functions[text_of(name).lower()] = node

    def _do_if_statement(self, node: Node, output: list[Any]) -> None:
        further = [clause for part in node.children if part.type == "elseif_clauses" for clause in part.children]
        for branch in (node, *further):
            condition = next(child for child in branch.children if child.type == "pipeline")
            if holds(self._value(condition)):
                self._statements(next(c for c in branch.children if c.type == "statement_block"), output)
                return
        for child in node.children:
            if child.type == "else_clause":
                self._statements(child, output)

    def _do_foreach_statement(self, node: Node, output: list[Any]) -> None:
        name, items = [child for child in node.children if child.type in ("variable", "pipeline")]
        block = next(child for child in node.children if child.type == "statement_block")
        for item in listed(self._value(items)):
            self.scopes[-1][name_of(name)] = item
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
        variable = only(target, "variable")
        if text_of(operator).strip() != "=":
            raise NotUnderstood(text_of(operator))
        name, scope = name_of(variable), re.match(r"\$\{?(\w+):", text_of(variable))
        if scope:
            raise NotUnderstood(text_of(variable))
        self.scopes[-1][name] = self._value(value)

    def _chain(self, node: Node) -> list[Any]:
        parts = [child for child in node.children if child.type not in SKIPPED]
        piped: list[Any] = []
        for place, part in enumerate(parts):
            if part.type == "command":
                piped = self._command(part, piped)
            elif place == 0:
                piped = unrolled(self._expression(part))
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
            return self.world.cmdlet(called.lower(), *bound(tokens), piped)
        return self._native(called, tokens, silenced)

    def _head(self, head: Node) -> Any:
        variable = next((node for node in walk(head) if node.type == "variable"), None)
        return text_of(head) if variable is None else self._variable(variable)

    def _tokens(self, node: Node) -> tuple[list[tuple[str, Any]], bool]:
        """What stands behind a command: parameters as (name, None), values as ("", value); and if `2>$null` does."""
        elements = next((child for child in node.children if child.type == "command_elements"), None)
        tokens: list[tuple[str, Any]] = []
        silenced = False
        for part in elements.children if elements else []:
            text = text_of(part)
            if part.type in SKIPPED:
                continue
            if part.type == "redirection" or (part.type == "generic_token" and ">" in text):
                if text.replace(" ", "").lower() != "2>$null":
                    raise NotUnderstood(text)
                silenced = True
            elif part.type == "command_parameter":
                tokens.append((text, None))
            elif text.startswith("@") and not text.startswith("@("):
                tokens += [("", value) for value in listed(self._argument(part))]
            else:
                tokens.append(("", self._argument(part)))
        return tokens, silenced

    def _argument(self, node: Node) -> Any:
        if node.type == "generic_token":
            return text_of(node)
        if node.type == "verbatim_string_characters":
            return verbatim(node)
        return self._expression(node)

    def _native(self, name: str, tokens: list[tuple[str, Any]], silenced: bool) -> list[Any]:
        words: list[str] = []
        for parameter, value in tokens:
            words += [parameter] if parameter else [string_of(item) for item in listed(value)]
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
        parameters = [node for node in walk(declared) if node.type == "script_parameter"] if declared else []
        given = list(placed)
        scope: dict[str, Any] = {}
        if len(given) > len(parameters):
            raise PowerShellError("more arguments than parameters")
        for parameter in parameters:
            variable = next(node for node in parameter.children if node.type == "variable")
            kind = next((text_of(node).lower() for node in walk(parameter) if node.type == "type_literal"), "")
            scope[name_of(variable)] = converted(kind, given.pop(0) if given else None)
        self.scopes.append(scope)
        output: list[Any] = []
        try:
            self._statements(next(c for c in function.children if c.type == "script_block"), output)
        except Returned:
            pass
        finally:
            self.scopes.pop()
        return output
