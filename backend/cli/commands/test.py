"""Run the tests in named and timed stages: all of them, or those that are named."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from backend.cli.launcher import output_excerpt
from backend.cli.launcher.output_excerpt import first_failure
from backend.cli.launcher.stages import Stage, stages
from backend.cli.launcher.tools import Tool
from backend.common.errors import Configuration

ROOT = Path(__file__).resolve().parents[3]
NOTHING_COLLECTED = 5  # pytest's exit code
LIMIT_S = 1800.0


@dataclass(frozen=True)
class Result:
    """How a stage ended: `passed`, `failed` or `skipped`, why if not passed, and what its first failure wrote."""

    stage: str
    result: str
    seconds: float
    reason: str | None
    excerpt: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Stages by name; `-k` goes to pytest."""
    names = [stage.name for stage in stages(ROOT)]
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{' '.join(names)} (default: all)")
    parser.add_argument("-k", metavar="WORDS", dest="words", help="only the tests whose names match, as pytest's -k")
    parser.add_argument("--json", action="store_true", help="the table as JSON on stdout; what the tools say on stderr")


def run(args: argparse.Namespace) -> int:
    """1 if a stage failed. Under CI a stage that cannot run has failed."""
    known = {stage.name: stage for stage in stages(ROOT)}
    for name in args.stages:
        if name not in known:
            raise Configuration(f"There is no stage {name!r}.", f"Name some of: {', '.join(known)}.")
    chosen = [stage for stage in known.values() if stage.name in args.stages or not args.stages]
    if args.words:
        chosen = [stage for stage in chosen if stage.tests]
    out = 2 if args.json else 1
    results = [_run_stage(stage, args.words, out) for stage in chosen]
    counts = {end: sum(result.result == end for result in results) for end in ("passed", "failed", "skipped")}
    if args.json:
        print(json.dumps({"stages": [asdict(result) for result in results], **counts}, indent=2))
    else:
        print("\n" + table(results))
        print(f"stages: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        print(told_last(results), end="")
    nothing_matched = args.words and not counts["passed"]
    return 1 if counts["failed"] or nothing_matched else 0


def table(results: Sequence[Result]) -> str:
    """One line a stage, and the whole."""
    rows = [
        f"{result.stage:<10} {result.result:<8} {result.seconds:7.1f} s  {result.reason or ''}".rstrip()
        for result in results
    ]
    return "\n".join([*rows, f"{'all':<10} {'':<8} {sum(result.seconds for result in results):7.1f} s"])


def told_last(results: Sequence[Result]) -> str:
    """The first failure, so that the end of a long log says what to look at; empty if there was none."""
    first = next((result for result in results if result.result == "failed"), None)
    if first is None:
        return ""
    return "\n".join([f"\nFirst failure, in the stage {first.stage}: {first.reason}", *first.excerpt]) + "\n"


def _run_stage(stage: Stage, words: str | None, out: int) -> Result:
    began = time.monotonic()
    _tell(out, f"\n===== {stage.name} =====")
    result, reason, written = _outcome(stage, words, out)
    if result == "skipped" and os.environ.get("CI") == "true" and not words:
        result = "failed"
    return Result(stage.name, result, round(time.monotonic() - began, 1), reason, tuple(written))


def _outcome(stage: Stage, words: str | None, out: int) -> tuple[str, str | None, Sequence[str]]:
    """The result, the reason, and the excerpt of the first failure."""
    if stage.posix_only and sys.platform == "win32":
        return "skipped", "it needs bash: run it under WSL or Linux", ()
    for tool in stage.tools:
        missing = _bring(tool)
        if missing:
            return "skipped", missing, ()
    failures: list[str] = []
    written: Sequence[str] = ()
    for command in () if words else stage.commands:
        code, lines = _run(command, stage.tools, out)
        if code:
            written = written or first_failure(lines)
            failures.append(" ".join(Path(word).name for word in command[:4]))
    if stage.tests:
        pytest = [sys.executable, "-m", "pytest", *stage.tests, *(["-k", words] if words else [])]
        code, lines = _run(pytest, (), out)
        if code == NOTHING_COLLECTED and words:
            return "skipped", f"no test matches {words!r}", ()
        if code:
            written = written or first_failure(lines)
            failures.append("pytest")
    return ("failed", "; ".join(failures), written) if failures else ("passed", None, ())


def _bring(tool: Tool) -> str | None:
    """None if the tool is here, or could be installed; else what to do."""
    if tool.find() is None:
        tool.install()
    if tool.find() is not None:
        return None
    return f"{tool.names[0]} is missing; enable this stage with: {tool.command() or f'(install {tool.names[0]})'}"


def _run(command: Sequence[str], tools: Sequence[Tool], out: int) -> tuple[int, list[str]]:
    """The exit code, and what was written; settings of the user's own service must not reach the tests."""
    found = {tool.names[0]: str(tool.find()) for tool in tools}
    words = [found.get(command[0], command[0]), *command[1:]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    shown = " ".join([Path(words[0]).name, *words[1:]])
    _tell(out, f"$ {shown if len(shown) <= 120 else shown[:117] + '...'}")
    try:
        return output_excerpt.run(words, ROOT, environment, out, LIMIT_S)
    except subprocess.TimeoutExpired:
        ended = f"It was ended after {LIMIT_S:.0f} s."
        _tell(out, ended)
        return 1, [ended]


def _tell(out: int, line: str) -> None:
    """Past Python's buffers, so that it stands before what the tools write."""
    os.write(out, f"{line}\n".encode())
