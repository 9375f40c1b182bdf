"""Run the tests in named and timed stages: all of them, or those that are named.

A run keeps the output of each stage in its folder below .test-runs. `test --resume` continues the last run that is not
running any more, after its last passed stage.
"""

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
from backend.cli.launcher.run_record import Result, RunRecord
from backend.cli.launcher.stages import Stage, stages
from backend.cli.launcher.tools import Tool
from backend.common.commands import command
from backend.common.errors import Configuration

ROOT = Path(__file__).resolve().parents[3]
NO_TESTS_COLLECTED = 5  # pytest's exit code
LIMIT_S = 1800.0
TESTS_TO_CODE = 0.9
# Programs started by hand, which are not part of the service.
_PROGRAMS = ("backend/cli/bench/harness/", "backend/tasks/music/tools/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stages and the flags of a run; `-k` goes to pytest."""
    names = [stage.name for stage in stages(ROOT)]
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{' '.join(names)} (default: all)")
    parser.add_argument("-k", metavar="WORDS", dest="words", help="only the tests whose names match, as pytest's -k")
    parser.add_argument("--resume", action="store_true", help="continue the last run after its last passed stage")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, metavar="N", help=f"time limit of a command (default: {LIMIT_S:.0f})"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON; the tools write to stderr")


def run(args: argparse.Namespace) -> int:
    """Run the stages; return 1 if one failed. In CI a stage that cannot run has failed. Raises Configuration."""
    by_name = {stage.name: stage for stage in stages(ROOT)}
    record = _resumed(args) if args.resume else _new_record(args, by_name)
    out = 2 if args.json else 1
    runner = _Runner(record, args.limit_s, out)
    _print(out, f"The output of each stage is kept in {record.folder.relative_to(ROOT)}.")
    for name in record.left:
        record.add(runner.run(by_name[name]))
    results = record.results
    counts = {end: sum(result.result == end for result in results) for end in ("passed", "failed", "skipped")}
    if args.json:
        stages_ = [asdict(result) for result in results]
        print(json.dumps({"stages": stages_, **counts, "tests_to_code": round(tests_to_code(ROOT), 3)}, indent=2))
    else:
        print("\n" + table(results))
        print(f"tests to code of the service by lines: {tests_to_code(ROOT):.2f} (goal: {TESTS_TO_CODE})")
        print(f"stages: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        print(failure_summary(results), end="")
    nothing_matched = record.words and not counts["passed"]
    return 1 if counts["failed"] or nothing_matched else 0


def _new_record(args: argparse.Namespace, by_name: dict[str, Stage]) -> RunRecord:
    for name in args.stages:
        if name not in by_name:
            raise Configuration(f"Unknown stage {name!r}.", f"Name some of: {', '.join(by_name)}.")
    chosen = [stage for stage in by_name.values() if stage.name in args.stages or not args.stages]
    if args.words:
        chosen = [stage for stage in chosen if stage.tests]
    return RunRecord.create(ROOT, [stage.name for stage in chosen], args.words)


def _resumed(args: argparse.Namespace) -> RunRecord:
    if args.stages or args.words:
        raise Configuration("--resume continues with the stages of the last run.", "Leave out stages and -k.")
    record = RunRecord.latest(ROOT)
    if record is None:
        raise Configuration("No run to resume was found.", f"Start one: {command('test')}")
    return record


def table(results: Sequence[Result]) -> str:
    """Return one line for each stage, and the sum."""
    rows = [
        f"{result.stage:<10} {result.result:<8} {result.seconds:7.1f} s  {result.reason or ''}".rstrip()
        for result in results
    ]
    return "\n".join([*rows, f"{'all':<10} {'':<8} {sum(result.seconds for result in results):7.1f} s"])


def failure_summary(results: Sequence[Result]) -> str:
    """Return the first failure, for the end of a long log; empty if there is none."""
    first = next((result for result in results if result.result == "failed"), None)
    if first is None:
        return ""
    return "\n".join([f"\nFirst failure, in the stage {first.stage}: {first.reason}", *first.excerpt]) + "\n"


def tests_to_code(root: Path) -> float:
    """Return the lines of the tests divided by those of the service, without empty lines."""
    service = (file for file in root.glob("backend/**/*.py") if not file.is_relative_to(root / "backend/frontend"))
    code = sum(_lines(file) for file in service if not str(file.relative_to(root).as_posix()).startswith(_PROGRAMS))
    return sum(map(_lines, root.glob("tests/**/*.py"))) / max(code, 1)


def _lines(file: Path) -> int:
    return sum(1 for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


@dataclass
class _Runner:
    """Runs stages for one run. `out` is the file number for the output."""

    record: RunRecord
    limit_s: float
    out: int

    def run(self, stage: Stage) -> Result:
        """Run a stage and return its result."""
        started_s = time.monotonic()
        _print(self.out, f"\n===== {stage.name} =====")
        result, reason, excerpt = self._outcome(stage)
        if result == "skipped" and os.environ.get("CI") == "true" and not self.record.words:
            result = "failed"
        return Result(stage.name, result, round(time.monotonic() - started_s, 1), reason, tuple(excerpt))

    def _outcome(self, stage: Stage) -> tuple[str, str | None, Sequence[str]]:
        """Return the result, the reason, and an excerpt of the first failure."""
        words = self.record.words
        if stage.posix_only and sys.platform == "win32":
            return "skipped", "it requires bash: run it under WSL or Linux", ()
        for tool in stage.tools:
            missing = _install(tool)
            if missing:
                return "skipped", missing, ()
        failures: list[str] = []
        excerpt: Sequence[str] = ()
        for command_ in () if words else stage.commands:
            code, lines = self._run(stage, command_)
            if code:
                excerpt = excerpt or first_failure(lines)
                failures.append(" ".join(Path(word).name for word in command_[:4]))
        if stage.tests:
            code, lines = self._run(stage, self._pytest(stage))
            if code == NO_TESTS_COLLECTED and words:
                return "skipped", f"no test matches {words!r}", ()
            if code:
                excerpt = excerpt or first_failure(lines)
                failures.append("pytest")
        return ("failed", "; ".join(failures), excerpt) if failures else ("passed", None, ())

    def _pytest(self, stage: Stage) -> list[str]:
        """Return the command of a stage's tests, with temporary files of this run alone."""
        temporary = self.record.temporary(stage.name)
        temporary.parent.mkdir(exist_ok=True)
        reporting = ["-p", "tests.reporting", f"--durations-file={self.record.durations(stage.name)}"]
        # pytest-playwright deletes its output folder when it starts, and by default all runs share one.
        folders = [f"--basetemp={temporary}", f"--output={temporary.with_suffix('.pages')}"]
        chosen = ["-k", self.record.words] if self.record.words else []
        return [sys.executable, "-m", "pytest", *stage.tests, *reporting, *folders, *chosen]

    def _run(self, stage: Stage, words: Sequence[str]) -> tuple[int, list[str]]:
        """Run a command and return its exit code and output. The user's TOUCHSTONE_ variables are not passed on."""
        paths = {tool.names[0]: str(tool.find()) for tool in stage.tools}
        words = [paths.get(words[0], words[0]), *words[1:]]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
        shown = " ".join([Path(words[0]).name, *words[1:]])
        _print(self.out, f"$ {shown if len(shown) <= 120 else shown[:117] + '...'}")
        log = self.record.output(stage.name)
        try:
            return output_excerpt.run(words, ROOT, environment, self.out, self.limit_s, log)
        except subprocess.TimeoutExpired:
            message = (
                f"Stopped after {self.limit_s:.0f} s; the output so far is in {log.relative_to(ROOT)}. "
                f"More time: {command('test --resume --limit-s')} {2 * self.limit_s:.0f}"
            )
            _print(self.out, message)
            return 1, [message]


def _install(tool: Tool) -> str | None:
    """Install a tool if it is missing and that is allowed. Optional: return what to do if it is still missing."""
    if tool.find() is None:
        tool.install()
    if tool.find() is not None:
        return None
    return f"{tool.names[0]} is missing; enable this stage with: {tool.command() or f'(install {tool.names[0]})'}"


def _print(out: int, line: str) -> None:
    """Print past Python's buffers, so that the line precedes the output of the tools."""
    os.write(out, f"{line}\n".encode())
