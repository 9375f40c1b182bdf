"""The stages of `test`: their commands and tests in order, and the tools that each requires."""

import sys
from dataclasses import dataclass
from pathlib import Path

from backend.cli.launcher.tools import BATS, CHROMIUM, NPM, SHELLCHECK, SHFMT, Tool

TYPESCRIPT = "7.0.2"
PAGE_TYPES = "tests/browser/jsconfig.json"
# The rooms that workers import too, under interpreters from Python 3.10 on.
LOWER_ROOMS = ("child", "engines", "devices", "tasks", "common")


@dataclass(frozen=True)
class Stage:
    """`commands` run one after the other. `tests` are arguments of pytest; `-k` narrows only them."""

    name: str
    commands: tuple[tuple[str, ...], ...] = ()
    tests: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    posix_only: bool = False


def stages(root: Path) -> tuple[Stage, ...]:
    """Return all stages of the repository at `root`, in order."""
    python = (sys.executable, "-m")
    lower = [f"backend/{room}" for room in LOWER_ROOMS]
    bash_files = ("launch_wsl.sh", ".ci/run", "tests/launcher/launch_wsl.bats", "tests/slow/docker.sh")
    formatted = ("launch_wsl.sh", ".ci/run", "tests/slow/docker.sh")
    return (
        Stage(
            "lint",
            (
                (*python, "ruff", "check"),
                (*python, "ruff", "format", "--check"),
                (*python, "mypy", "--strict", "backend", "tests", "touchstone.py"),
                (str(Path(sys.executable).with_name("lint-imports")), "--no-cache"),
            ),
        ),
        # mypy checks syntax and standard library as of Python 3.10.
        Stage("compile", ((*python, "mypy", "--strict", "--python-version", "3.10", "--exclude", "/tools/", *lower),)),
        # Three concurrent processes, each file of tests in one of them: most tests wait for children. Two processes
        # used 1,130 s of processor time in 740 s. The model that they share is downloaded first.
        Stage(
            "unit",
            ((*python, "backend", "models", "fetch-default", "--data-dir", ".test-data"),),
            tests=(
                "tests",
                "--numprocesses=3",
                "--dist=loadfile",
                "-m",
                "not browser and not javascript",
                "--ignore=tests/launcher",
                "--ignore=tests/browser",
                "--ignore=tests/faulty_stacks",
                "--ignore=tests/test_webgpu_device.py",
            ),
        ),
        # Prints how many stand-in stacks were judged, and how many wrongly.
        Stage("stacks", tests=("tests/faulty_stacks", "--numprocesses=2", "--dist=loadfile", "-m", "not by_hand")),
        Stage(
            "launcher",
            (
                _tool(SHELLCHECK, "--severity=style", *bash_files),
                _tool(SHFMT, "--diff", "--indent", "2", "--case-indent", *formatted),
                _tool(BATS, "--timing", "tests/launcher/launch_wsl.bats"),
                (sys.executable, "tests/ps1_gate.py", "launch.ps1"),
            ),
            tests=("tests/launcher", "--numprocesses=2", "--dist=load", "-m", "not newcomer"),
            tools=(SHELLCHECK, SHFMT, BATS),
            posix_only=True,
        ),
        Stage("javascript", tests=("tests/openai", "-m", "javascript"), tools=(NPM,)),
        # TypeScript checks the page's JSDoc types; npm caches it between runs.
        Stage(
            "page",
            (_tool(NPM, "exec", "--yes", f"--package=typescript@{TYPESCRIPT}", "--", "tsc", "-p", PAGE_TYPES),),
            tools=(NPM,),
        ),
        Stage("browser", tests=("tests/browser", "--numprocesses=2", "--dist=loadfile"), tools=(CHROMIUM,)),
        # Chromium includes a software Vulkan.
        Stage("webgpu", tests=("tests/test_webgpu_device.py",), tools=(CHROMIUM,)),
        Stage("newcomer", tests=("tests/launcher", "-m", "newcomer", "-s"), posix_only=True),
    )


def _tool(tool: Tool, *arguments: str) -> tuple[str, ...]:
    """Return a command that starts with the tool's first name; its path is looked up when the stage starts."""
    return (tool.names[0], *arguments)
