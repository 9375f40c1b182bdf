"""Runs a helper process to its end, and ends it when the launcher itself is interrupted."""

import subprocess
from collections.abc import Callable, Mapping, Sequence

GOOD_BYE_S = 5.0


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    hear: Callable[[str], None] | None = None,
) -> int:
    """The exit code. stdout goes to our stderr, the place for progress; `hear` gets stderr line by line, if given."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=subprocess.PIPE if hear else None,
        env=environment,
        text=True,
        errors="replace",
    )
    try:
        if hear and process.stderr:
            for line in process.stderr:
                hear(line.rstrip())
        return process.wait()
    except BaseException:
        process.terminate()  # not kill: it may have a child of its own to end
        try:
            process.wait(GOOD_BYE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        if process.stderr:
            process.stderr.close()
