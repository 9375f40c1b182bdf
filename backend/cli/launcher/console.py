"""Messages of the launcher. They go to stderr: stdout belongs to the verb."""

import sys

from backend.common.errors import TouchstoneError


class SetupFailed(TouchstoneError):
    """Setting up Touchstone failed: environment, packages, files or the server's start."""

    code, title = "setup_failed", "Touchstone could not be set up"


def say(text: str) -> None:
    """Print one line."""
    sys.stderr.write(f"touchstone: {text}\n")
    sys.stderr.flush()


def explain(error: TouchstoneError) -> None:
    """Print an error and its remedy."""
    say(error.detail)
    say(error.remedy)


def interactive() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr.isatty()
