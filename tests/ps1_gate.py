"""Check that Windows PowerShell 5.1 and PowerShell 7 both parse launch.ps1, without running either.

A grammar finds broken syntax; lists of what is allowed find the rest: a command, parameter, variable or member that is
on none of them fails, which is how typing errors and habits of other shells show. That is its form. Its meaning is
looked at by running it in an interpreter of the small part that it is written in (ps1_language.py), on machines made up
(ps1_world.py), as both PowerShells would. What the true ones do beyond their documented rules stays unproved.
Usage: python tests/ps1_gate.py FILE...
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter_powershell
from tree_sitter import Language, Node, Parser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also for `python tests/ps1_gate.py`

from tests.ps1_world import deviations  # noqa: E402

PARSER = Parser(Language(tree_sitter_powershell.language()))

# Commands with the parameters that 5.1 has. Extended on purpose, never by a tool.
COMMON = {"erroraction", "errorvariable", "warningaction", "verbose", "outvariable"}
COMMANDS = {
    "get-command": {"name", "commandtype"},
    "get-item": {"path", "literalpath", "force"},
    "join-path": {"path", "childpath"},
    "out-null": set(),
    "select-object": {"first", "last", "skip", "property", "expandproperty"},
    "set-strictmode": {"version"},
    "split-path": {"path", "parent", "leaf"},
    "start-sleep": {"seconds", "milliseconds"},
    "test-path": {"path", "literalpath", "pathtype"},
    "where-object": {"property", "eq"},
    "write-host": {"object", "nonewline"},
}
MEMBERS = {"count", "error", "ispathrooted", "length", "linktype", "split", "target", "writeline"}
AUTOMATIC = {
    *("$_", "$args", "$false", "$lastexitcode", "$null", "$pscommandpath", "$psscriptroot", "$psversiontable", "$true"),
    *("$erroractionpreference", "$psnativecommanduseerroractionpreference"),
}
FROM_7 = {"$iswindows", "$islinux", "$ismacos", "$psstyle"}
CONDITIONS = {"if_statement", "elseif_clause", "while_statement", "while_condition", "parenthesized_expression"}
BY_LINE = (
    (rb"`[ \t]+\r?$", "SYN002", "white space after a continuation backtick"),
    (rb"\xe2\x80[\x93\x94\x98\x99\x9c\x9d]", "ENC002", "typographic quote or dash"),
    (rb"^[^#]*\\\s*$", "SH001", "backslash as line continuation"),
    (rb"/dev/null", "SH002", "/dev/null is $null here"),
    (rb"(?<![\w'\"])[fr]'", "PY001", "a string prefix of Python"),
    (rb"\$\w+\(", "CALL002", "$name( is no index and no call"),
)
REQUIRED = (
    (rb"(?im)^#Requires -Version 5\.1", "REQ001", "#Requires -Version 5.1 is missing"),
    (rb"(?im)^Set-StrictMode -Version", "REQ002", "Set-StrictMode is missing"),
    (rb"(?im)^\$ErrorActionPreference = 'Stop'", "REQ003", "$ErrorActionPreference = 'Stop' is missing"),
    (rb"(?i)\$LASTEXITCODE", "REQ004", "$LASTEXITCODE is never read: failures of programs pass unseen"),
    (
        rb"(?im)^\$PSNativeCommandUseErrorActionPreference = \$false",
        "REQ005",
        "$PSNativeCommandUseErrorActionPreference = $false is missing: 7.4 throws at exit codes",
    ),
)


@dataclass
class Script:
    """A parsed script: the names that it defines, and what was found in it."""

    source: bytes
    nodes: list[Node] = field(init=False)
    functions: set[str] = field(init=False)
    assigned: set[str] = field(init=False)
    read: set[str] = field(init=False)
    findings: list[tuple[int, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = list(_walk(PARSER.parse(self.source).root_node))
        self.functions = {
            _text(child).lower()
            for node in self.nodes
            if node.type == "function_statement"
            for child in node.children
            if child.type == "function_name"
        }
        targets = {node.id for node in self.nodes if node.type == "variable" and _is_target(node)}
        variables = [node for node in self.nodes if node.type == "variable"]
        self.assigned = {_name(node) for node in variables if node.id in targets}
        self.read = {_name(node) for node in variables if node.id not in targets}

    def add(self, where: Node | int, code: str, text: str) -> None:
        line = where if isinstance(where, int) else where.start_point[0] + 1
        self.findings.append((line, code, text))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _name(variable: Node) -> str:
    """`${script:Name}`, `@Name` and `$name` are one."""
    plain = _text(variable).replace("${", "$").rstrip("}").replace("@", "$", 1).lower()
    return re.sub(r"^\$(script|global|local|private):", "$", plain)


def _is_target(variable: Node) -> bool:
    node, parent = variable, variable.parent
    if parent and parent.type in ("script_parameter", "foreach_statement", "function_parameter_declaration"):
        return (
            parent.type != "foreach_statement" or next(c for c in parent.children if c.type == "variable").id == node.id
        )
    while parent and parent.type != "left_assignment_expression":
        if parent.type in ("member_access", "element_access"):
            return False
        parent = parent.parent
    return parent is not None


def _syntax(script: Script, node: Node) -> None:
    if node.type == "ERROR" or node.is_missing:
        script.add(node, "SYN001", f"syntax error near {_text(node)[:30]!r}")
    elif node.type == "try_statement":
        if not any(child.type in ("catch_clauses", "finally_clause") for child in node.children):
            script.add(node, "SYN003", "try without catch or finally")
    elif node.type in ("&&", "||"):
        script.add(node, "PS7001", f"{node.type} needs PowerShell 7")
    elif node.type == "command_invokation_operator" and _text(node) != "&":
        script.add(node, "CALL003", f"{_text(node)} runs it in this very scope: write &")
    elif node.type == "catch_type_list":
        script.add(node, "NET001", "typed catch: 5.1 and 7 throw different types")


def _variables(script: Script, node: Node) -> None:
    if node.type != "variable":
        return
    name, following = _name(node), script.source[node.end_byte : node.end_byte + 1]
    in_string = node.parent is not None and node.parent.type == "expandable_string_literal"
    if in_string and following == b":" and not _text(node).startswith("${"):
        script.add(node, "SYN004", f"{name}: in a string names a scope: write ${{{name[1:]}}}:")
    if name in FROM_7:
        script.add(node, "PS7002", f"{name} does not exist in 5.1")
    elif not name.startswith("$env:") and name not in script.assigned | AUTOMATIC:
        script.add(node, "VAR001", f"{name} is never assigned")
    elif _is_target(node) and name not in script.read | AUTOMATIC:
        script.add(node, "VAR002", f"{name} is never read")


def _logic(script: Script, node: Node) -> None:
    around = node.parent.parent if node.parent else None
    if node.type == "assignment_expression" and around and around.type in CONDITIONS:
        script.add(node, "LOG001", "an assignment as condition: write -eq")
    if node.type == "redirected_file_name" and _text(node).strip().lower() != "$null":
        script.add(node, "LOG002", f"> {_text(node).strip()} writes a file: write -gt to compare")
    if node.type == "member_name" and _text(node).lower() not in MEMBERS:
        script.add(node, "MEM001", f"unknown member {_text(node)!r}")
    first = node.children[0] if node.children else None
    if node.type == "command_elements" and first and first.type == "parenthesized_expression":
        before = node.prev_sibling
        if before and before.end_byte == node.start_byte and "," in _text(first):
            script.add(node, "CALL001", "f(a, b) passes one array: write f a b")


def _commands(script: Script, node: Node) -> None:
    if node.type != "command":
        return
    name = next((child for child in node.children if child.type in ("command_name", "command_name_expr")), None)
    if name is None or name.type == "command_name_expr":
        if name is not None and "\\" in _text(name):
            script.add(node, "PATH001", f"path {_text(name)!r} built by hand: use Join-Path")
        return
    known = _text(name).lower()
    if known in script.functions or re.match(r"\d+\.\.", known):  # a range looks like a command to the grammar
        return
    if known not in COMMANDS:
        script.add(node, "CMD001", f"unknown command {_text(name)!r}")
        return
    elements = next((child for child in node.children if child.type == "command_elements"), None)
    for part in elements.children if elements else []:
        if part.type == "command_parameter":
            parameter = _text(part).strip("-:").lower()
            if parameter not in COMMANDS[known] | COMMON:
                script.add(part, "PS7003", f"{_text(name)} has no -{parameter} in 5.1")
    if known == "join-path" and elements and sum(c.type == "generic_token" for c in elements.children) > 2:
        script.add(node, "PS7004", "Join-Path with three parts needs PowerShell 6")


RULES: tuple[Callable[[Script, Node], None], ...] = (_syntax, _variables, _logic, _commands)


def _form(script: Script) -> None:
    for node in script.nodes:
        for rule in RULES:
            rule(script, node)
    for pattern, code, text in REQUIRED:
        if not re.search(pattern, script.source):
            script.add(1, code, text)


def check(source: bytes) -> list[str]:
    """The findings, as `LINE: CODE text`, in the order of lines."""
    has_bom = source.startswith(b"\xef\xbb\xbf")
    script = Script(source.removeprefix(b"\xef\xbb\xbf"))
    for number, line in enumerate(script.source.split(b"\n"), 1):
        if not has_bom and any(byte > 127 for byte in line):
            script.add(number, "ENC001", "not ASCII and no BOM: 5.1 reads it in the ANSI code page")
        for pattern, code, text in BY_LINE:
            if re.search(pattern, line):
                script.add(number, code, text)
    _form(script)
    if not any(code.startswith("SYN") for _, code, _ in script.findings):
        for text in deviations(PARSER.parse(script.source.replace(b"\r\n", b"\n")).root_node):
            script.add(1, "RUN001", text)
    return [f"{line}: {code} {text}" for line, code, text in sorted(script.findings)]


def main(files: list[str]) -> int:
    """Prints every finding; 1 if there was one."""
    found = [f"{file}:{finding}" for file in files for finding in check(Path(file).read_bytes())]
    print("\n".join([*found, f"{len(found)} finding(s) in {len(files)} file(s)"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
