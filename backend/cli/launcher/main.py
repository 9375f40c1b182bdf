"""Which verb was asked, in which environment it runs, and how a failure is told."""

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
from backend.cli.launcher.start import backend, start
from backend.cli.launcher.update import update
from backend.common.errors import Configuration, TouchstoneError

HELP = """\
usage: {launcher} [serve] [--host HOST] [--port PORT] [--no-browser] [--gpu auto|NAME|none] [OPTIONS OF serve]
       {launcher} test [STAGE ...]
       {launcher} update [FILE.zip] [--check] [--back]
       {launcher} VERB [ARGUMENTS]

Without a verb: prepares .venv, fetches the default model, starts the server, waits until it is healthy, prints its
address and opens the page (not with --no-browser, nor without a display). Ctrl-C stops it.
`test` prepares .venv-test and runs every test. Any other verb runs in .venv as `python -m backend VERB` would:
    {verbs}
Each has its own --help.
"""
ASKS_FOR_HELP = ("-h", "--help")
NOT_A_START = ("--list-devices", "--version")  # options that stand for a verb of their own


def main(root: Path, arguments: Sequence[str]) -> int:
    """Runs the launcher in the repository at `root`; returns the exit code."""
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        return _run(root, list(arguments))
    except KeyboardInterrupt:
        say("Interrupted; the next start goes on from there.")
        return 130
    except TouchstoneError as error:
        explain(error)
        return 2 if isinstance(error, Configuration) else 1
    except OSError as error:
        explain(_refused(root, error))
        return 1


def _run(root: Path, arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ASKS_FOR_HELP:
        sys.stdout.write(_help(root))
        return 0
    base = root / "requirements.txt"
    if first == "test":
        tests = Environment(root / ".venv-test", (base, root / "tests" / "requirements.txt"))
        os.chdir(root)
        return _become(backend(tests.ensure(), *arguments))
    if first == "update":
        return update(root, arguments[1:])
    starts = first in ("", "serve") or (first.startswith("-") and first not in NOT_A_START)
    starts = starts and not any(word in ASKS_FOR_HELP for word in arguments)
    environment = Environment(root / ".venv", (base,))
    if starts:
        _tell_of_surroundings(root, fresh=not environment.folder.exists())
    python = environment.ensure()
    if starts:
        return start(python, arguments[1:] if first == "serve" else arguments)
    return _become(backend(python, *arguments))


def _refused(root: Path, error: OSError) -> TouchstoneError:
    """The words for what the system did not let us do in our folder."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        at = Path(error.filename or root)
        return unwritable(at if at.exists() else root)
    if error.errno in (errno.ENOSPC, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.ENOSPC):
        return full(root, shutil.disk_usage(root).free)
    if error.errno == errno.ENOENT:
        return SetupFailed(
            f"This copy is not whole: {error.filename or root} is missing.",
            "Fetch it again (`git status` shows what is missing, `git restore .` brings it back), or unpack it again.",
        )
    if error.errno == errno.ENAMETOOLONG:
        return too_deep(root)
    return SetupFailed(
        f"{error.strerror or error}: {error.filename or root}.",
        "Keep the repository in a folder that you own, on a disk with 1 GB free, and start again.",
    )


def _tell_of_surroundings(root: Path, fresh: bool) -> None:
    around = wsl.look()
    for line in wsl.notices(around):
        say(line)
    if fresh and around.version and checkout_dir.on_windows_disk(root):
        for line in checkout_dir.slowness(root, Path.home()):
            say(line)


def _become(command: list[str]) -> int:
    """Replaces the launcher by the verb: its streams, signals and exit code are then the verb's own."""
    if sys.platform != "win32":
        os.execv(command[0], command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows cannot replace a process; Ctrl-C is the verb's to handle
    return subprocess.run(command).returncode


def _help(root: Path) -> str:
    launcher = ".\\launch.ps1" if sys.platform == "win32" else "./launch_wsl.sh"
    verbs = sorted(
        file.stem for file in (root / "backend" / "cli" / "commands").glob("*.py") if file.stem != "__init__"
    )
    return HELP.format(launcher=launcher, verbs=" ".join(verbs))


def _on_terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
