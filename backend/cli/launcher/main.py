"""Chooses the environment for a verb, runs the verb in it, and reports failures."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from backend.cli.launcher import checkout_dir, wsl
from backend.cli.launcher.checkout_dir import full, too_deep, unwritable
from backend.cli.launcher.console import SetupFailed, explain, say
from backend.cli.launcher.environment import Environment
from backend.cli.launcher.start import start, verb_command
from backend.cli.launcher.update import update
from backend.cli.verbs import table, unknown_verb, verb_summaries
from backend.common import commands
from backend.common.errors import Configuration, TouchstoneError

HELP = """\
usage: {launcher} [serve] [--host HOST] [--port PORT] [--no-browser] [--gpu auto|NAME|none] [--model auto|ID|none]
       {launcher}         [OPTIONS OF serve]
       {launcher} test [STAGE ...]
       {launcher} update [FILE.zip] [--check] [--back]
       {launcher} VERB [ARGUMENTS]

Without a verb: prepares .venv, downloads a small test model, starts the server, waits until it is healthy, prints its
address and opens the page (not with --no-browser or without a display). Offers a runtime for the card, and a text model
for the memory of this machine. Ctrl-C stops the server.
`test` prepares .venv-test and runs the tests. Every other verb runs in .venv, like `python -m backend VERB`:

{verbs}

`{launcher} VERB --help` describes each.
"""
ASKS_FOR_HELP = ("-h", "--help")
NOT_A_START = ("--list-devices", "--version")  # options that act as verbs


def main(root: Path, arguments: Sequence[str]) -> int:
    """Run the launcher in the repository at `root` and return the exit code."""
    commands.announce(commands.launcher())
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        return _run(root, list(arguments))
    except KeyboardInterrupt:
        say("Interrupted; the next start resumes.")
        return 130
    except TouchstoneError as error:
        explain(error)
        return 2 if isinstance(error, Configuration) else 1
    except OSError as error:
        explain(_os_failure(root, error))
        return 1


def _run(root: Path, arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ASKS_FOR_HELP:
        sys.stdout.write(_help(root))
        return 0
    summaries = verb_summaries(root / "backend" / "cli" / "commands")
    if summaries and first and not first.startswith("-") and first not in summaries:
        message = unknown_verb(first, arguments[1:], summaries)
        raise Configuration(f"U{message[1:]}", f"`{commands.command('--help')}` lists the verbs.")
    base = root / "requirements.txt"
    if first == "test":
        tests = Environment(root / ".venv-test", (base, root / "tests" / "requirements.txt"))
        os.chdir(root)
        return _become(verb_command(tests.ensure(), *arguments))
    if first == "update":
        return update(root, arguments[1:])
    starts = first in ("", "serve") or (first.startswith("-") and first not in NOT_A_START)
    starts = starts and not any(word in ASKS_FOR_HELP for word in arguments)
    environment = Environment(root / ".venv", (base,), root / "constraints.txt")
    if starts:
        _report_surroundings(root, fresh=not environment.folder.exists())
    python = environment.ensure()
    if starts:
        return start(python, arguments[1:] if first == "serve" else arguments)
    return _become(verb_command(python, *arguments))


def _os_failure(root: Path, error: OSError) -> TouchstoneError:
    """Return the error, with a remedy, for an OSError in the repository's folder."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        path = Path(error.filename or root)
        return unwritable(path if path.exists() else root)
    if error.errno in (errno.ENOSPC, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.ENOSPC):
        return full(root, shutil.disk_usage(root).free)
    if error.errno == errno.ENOENT:
        return SetupFailed(
            f"This copy is incomplete: {error.filename or root} is missing.",
            "Fetch it again (`git status` shows what is missing, `git restore .` brings it back), or unpack it again.",
        )
    if error.errno == errno.ENAMETOOLONG:
        return too_deep(root)
    return SetupFailed(
        f"{error.strerror or error}: {error.filename or root}.",
        "Keep the repository in a folder that you own, on a disk with 1 GB free, and start again.",
    )


def _report_surroundings(root: Path, fresh: bool) -> None:
    environment = wsl.detect()
    for line in wsl.notices(environment):
        say(line)
    if fresh and environment.version and checkout_dir.on_windows_disk(root):
        for line in checkout_dir.slowness(root, Path.home()):
            say(line)


def _become(command: list[str]) -> int:
    """Replace the launcher with the verb, which then has its streams, signals and exit code."""
    if sys.platform != "win32":
        os.execv(command[0], command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows cannot replace a process; the verb handles Ctrl-C
    return subprocess.run(command).returncode


def _help(root: Path) -> str:
    verbs = table(verb_summaries(root / "backend" / "cli" / "commands"))
    return HELP.format(launcher=commands.launcher(), verbs=verbs)


def _on_terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
