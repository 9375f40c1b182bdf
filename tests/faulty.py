"""Start the child with planned faults in place of the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backend.child.handle import Spawn

CHILD = Path(__file__).parent / "faults" / "child.py"


def faulty(fault: str) -> Spawn:
    """A Spawn whose children play that fault."""

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(CHILD), fault, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return spawn
