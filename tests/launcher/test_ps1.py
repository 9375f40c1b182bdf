"""launch.ps1 passes its gate, and the gate finds faults that are planted in the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ps1_gate import check, main

SCRIPT = Path(__file__).resolve().parents[2] / "launch.ps1"

# What is replaced, by what, and the code of the finding that must come.
PLANTED = {
    "brace not closed": ("        exit $LASTEXITCODE\r\n    }", "        exit $LASTEXITCODE\r\n", "SYN001"),
    "string not closed": ("'SymbolicLink')", "'SymbolicLink)", "SYN001"),
    "parenthesis not closed": ("@($file.Target)[0]", "@($file.Target[0]", "SYN001"),
    "ternary": ("@($file.Target)[0]", "$file.Target ? 1 : 2", "SYN001"),
    "null coalescing": ("@($file.Target)[0]", "$file.Target ?? 1", "SYN001"),
    "bash test": ("if ($verdict -eq 'good') {", "if [ $verdict = good ]; then", "SYN001"),
    "and chain": ("    & $program @options -I $launcher @args", "    & $program -I $launcher && exit 0", "PS7001"),
    "or chain": ("    & $program @options -I $launcher @args", "    & $program -I $launcher || exit 1", "PS7001"),
    "no catch": ("    catch {\r\n        return ''\r\n    }\r\n", "", "SYN003"),
    "typed catch": ("    catch {", "    catch [System.Net.WebException] {", "NET001"),
    "misspelt catch": ("    catch {", "    cach {", "CMD001"),
    "export": ("$ErrorActionPreference = 'Stop'", "$ErrorActionPreference = 'Stop'\r\nexport A=1", "CMD001"),
    "bash assignment": ("$root = Get-OwnFolder", "$root = Get-OwnFolder\r\nFOO=bar", "CMD001"),
    "dev null": ("2>$null", "2>/dev/null", "SH002"),
    "backslash continuation": ("$root = Get-OwnFolder", "$root = \\\r\n Get-OwnFolder", "SH001"),
    "backtick and blank": ("$root = Get-OwnFolder", "$root = ` \r\n Get-OwnFolder", "SYN002"),
    "scope in a string": ('"$root has', '"$root: holds', "SYN004"),
    "three-part Join-Path": ("Join-Path -Path $PSScriptRoot -ChildPath $target", "Join-Path a b c", "PS7004"),
    "variable of 7": ("$PSScriptRoot }", "$IsWindows }", "PS7002"),
    "parameter of 7": ("Test-Path -LiteralPath", "Test-Path -SkipHttpErrorCheck -LiteralPath", "PS7003"),
    "misspelt command": ("Get-Command -Name", "Get-Comand -Name", "CMD001"),
    "misspelt variable": ("return Split-Path -Path $target", "return Split-Path -Path $tarrget", "VAR001"),
    "assigned, never read": ("$root = Get-OwnFolder", "$root = Get-OwnFolder\r\n$rooot = 1", "VAR002"),
    "misspelt member": ("$file.LinkType", "$file.LinkTyp", "MEM001"),
    "misspelt static member": ("::IsPathRooted", "::IsRooted", "MEM001"),
    "assignment as condition": ("if ($file.LinkType -ne 'SymbolicLink')", "if ($file = 'SymbolicLink')", "LOG001"),
    "greater sign": ("$LASTEXITCODE -eq 0", "$LASTEXITCODE > 0", "LOG002"),
    "call with a comma": ("Get-Verdict $program $options", "Get-Verdict($program, $options)", "CALL001"),
    "index in parentheses": ("$words[0]", "$words(0)", "CALL002"),
    "Python string": ("Write-Words 'Then open", "Write-Words f'Then open", "PY001"),
    "typographic quote": ("'Stop'", "\u2018Stop\u2019", "ENC002"),
    "not ASCII": ("Install it with", "Get \u00eft with", "ENC001"),
    "path by hand": ("& $program @options -I $launcher @args", "& .venv\\Scripts\\python.exe", "PATH001"),
    "no Requires": ("#Requires -Version 5.1", "#", "REQ001"),
    "no strict mode": ("Set-StrictMode -Version 2.0", "", "REQ002"),
    "errors go on": ("\n$ErrorActionPreference = 'Stop'", "\n$ErrorActionPreference = 'Continue'", "REQ003"),
    "exit codes unread": ("$LASTEXITCODE", "0", "REQ004"),
    "dot for an ampersand": (
        "    & $program @options -I $launcher @args",
        "    . $program @options -I $launcher",
        "CALL003",
    ),
    # What means something else than it should, though its form is right.
    "the exit code is lost": ("exit $LASTEXITCODE", "exit 0", "RUN001"),
    "arguments are lost": ("$launcher @args", "$launcher", "RUN001"),
    "not isolated": ("@options -I $launcher", "@options $launcher", "RUN001"),
    "the wrong folder is run": ("-I $launcher @args", "-I $root @args", "RUN001"),
    "the check is another file": ("'interpreter.py'", "'main.py'", "RUN001"),
    "one that has no packages is taken": ("-eq 'good'", "-ne ''", "RUN001"),
    "a verdict is lost": ("-or $LASTEXITCODE -eq 2", "", "RUN001"),
    "a condition turned round": ("$LASTEXITCODE -eq 0", "$LASTEXITCODE -ne 0", "RUN001"),
    "a path with brackets": ("Test-Path -LiteralPath", "Test-Path -Path", "RUN001"),
    "a name instead of its value": ('"touchstone: $text"', "'touchstone: $text'", "RUN001"),
    "words on standard output": ("[Console]::Error.WriteLine(", "[Console]::WriteLine(", "RUN001"),
    "the first line of the check": (" | Select-Object -Last 1", " | Select-Object -First 1", "RUN001"),
    "the stub's complaint shown": ("$check 2>$null", "$check", "RUN001"),
    "a warning of Python's stops 5.1": ("$ErrorActionPreference = 'Continue' # 5.1", "# 5.1", "RUN001"),
    "the first word as option": ("-Skip 1", "-Skip 0", "RUN001"),
    "the order of candidates": ("'py -3.13', 'py -3.12'", "'py -3.12', 'py -3.13'", "RUN001"),
    "no way out for the Store's stub": ("'python', 'python3'", "'python'", "RUN001"),
    "3.14 is not tried": ("'py -3.14', ", "", "RUN001"),
    "uv is not tried": (", 'uv')", ")", "RUN001"),
    "nothing is written of what was skipped": ("{ $skipped = $verdict }", "{ $skipped = '' }", "RUN001"),
    "the link itself instead of its target": (
        "return Split-Path -Path $target",
        "return Split-Path -Path $PSCommandPath",
        "RUN001",
    ),
    "a text taken for a list": ("@($file.Target)[0]", "($file.Target)[0]", "RUN001"),
    "another program's identifier": ("Python.Python.3.13", "Python.Python.2", "RUN001"),
    "success where nothing was found": ("repeat this command.'\r\nexit 1", "repeat this command.'\r\nexit 0", "RUN001"),
    "something that nobody looked at": ("$root = Get-OwnFolder", "$root = Get-OwnFolder\r\n$root += ''", "RUN001"),
    "exit codes thrown": ("$PSNativeCommandUseErrorActionPreference = $false", "", "REQ005"),
}


def test_launch_ps1_has_no_finding() -> None:
    assert check(SCRIPT.read_bytes()) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(fault: str) -> None:
    old, new, code = PLANTED[fault]
    text = SCRIPT.read_bytes().decode()
    assert old in text
    found = check(text.replace(old, new).encode())
    assert any(f" {code} " in finding for finding in found), found


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(SCRIPT)]) == 0
    gate = [sys.executable, str(SCRIPT.parent / "tests" / "ps1_gate.py"), str(SCRIPT)]
    assert subprocess.run(gate, cwd=tmp_path, check=True, capture_output=True).stdout == b"0 finding(s) in 1 file(s)\n"
    (tmp_path / "broken.ps1").write_text("if (1) {")
    assert main([str(tmp_path / "broken.ps1")]) == 1
    assert "SYN001" in capsys.readouterr().out


def test_the_script_is_thin() -> None:
    """It cannot be run where it is tested, so all that decides anything stands in Python."""
    code = [line for line in SCRIPT.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= 65


def test_launch_cmd_lifts_the_policy_for_itself_alone() -> None:
    lines = SCRIPT.with_name("launch.cmd").read_bytes()
    assert lines.count(b"\n") == lines.count(b"\r\n") and lines.isascii()
    code = [line for line in lines.decode().splitlines() if not line.startswith("rem ")]
    assert code == [
        "@echo off",
        'powershell.exe -NoLogo -NoProfile -ExecutionPolicy Bypass -File "%~dp0launch.ps1" %*',
        "exit /b %ERRORLEVEL%",
    ]


def test_line_endings_and_mode_are_as_the_shells_need_them() -> None:
    assert SCRIPT.read_bytes().count(b"\n") == SCRIPT.read_bytes().count(b"\r\n")
    bash = SCRIPT.with_name("launch_wsl.sh")
    assert b"\r" not in bash.read_bytes()
    assert bash.stat().st_mode & 0o100
