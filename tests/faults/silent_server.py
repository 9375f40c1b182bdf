"""`serve` on a machine whose files do not answer: run as `python -m tests.faults.silent_server FOLDER serve …`.

Reads of paths that contain `dead-mount` never return, as on a dead network mount. The children of `survey` see FOLDER
as the root of a machine whose /sys and tools do not answer; those of `probe` never answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.child import handle
from backend.child.handle import PROGRAM

DEAD = "dead-mount"
_SURVEY = """
import os, sys
from pathlib import Path
from backend.child.programs import survey
from backend.child.wire_protocol import claim_stdio
from backend.common.hardware import host
channel = claim_stdio()
root = Path(sys.argv[1])
tool = (str(root / "usr/bin/nvidia-smi"),)
run = host.run_command
survey.run_command = lambda command, limit_s: run((*tool, *command[1:]), limit_s)
host.Host.root = root
survey.Host.__init__.__defaults__ = (root, *survey.Host.__init__.__defaults__[1:])
sys.exit(survey.main(channel, sys.argv[3:]))
"""


def hang_on(name: str, owner: Any) -> None:
    """Replace a function of a path by one that never returns on the dead mount."""
    real: Callable[..., object] = getattr(owner, name)

    def called(path: object, *arguments: Any, **options: Any) -> object:
        if isinstance(path, str | os.PathLike) and DEAD in os.fspath(path):
            threading.Event().wait()
        return real(path, *arguments, **options)

    setattr(owner, name, called)


def main() -> None:
    """Install the faults and run the command line."""
    folder = Path(sys.argv[1])
    for name in ("stat", "lstat", "scandir", "listdir", "open", "readlink"):
        hang_on(name, os)
    real = handle.spawn

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        if arguments[0] == "survey":
            code = [sys.executable, "-c", _SURVEY, str(folder), *arguments]
        elif arguments[0] == "probe" and (folder / "probes-hang").exists():
            code = [sys.executable, "-c", "import time; time.sleep(3600)"]
        else:
            return real(python, arguments)
        pipe = subprocess.PIPE
        root = PROGRAM.parents[1]
        return subprocess.Popen(code, stdin=pipe, stdout=pipe, stderr=pipe, cwd=root, start_new_session=True)

    for module in ("backend.manager.core.handle", "backend.server.process"):
        __import__(module.removesuffix(".handle"))
    from backend.server import process

    process.serve.__defaults__ = (False, spawn, lambda: None)
    from backend.cli.main import main as run

    sys.argv[1:] = sys.argv[2:]
    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
