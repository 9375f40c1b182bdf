"""What the launcher says to a person. It goes to stderr: stdout belongs to the verb that is being run."""

import sys

from backend.common.errors import TouchstoneError


class SetupFailed(TouchstoneError):
    """Something between a fresh copy of the repository and a running server went wrong."""

    code, title = "setup_failed", "Touchstone could not be set up"


def say(text: str) -> None:
    """One line."""
    sys.stderr.write(f"touchstone: {text}\n")
    sys.stderr.flush()


def explain(error: TouchstoneError) -> None:
    """What is wrong, and what to do."""
    say(error.detail)
    say(error.remedy)


def interactive() -> bool:
    """Whether a person watches."""
    return sys.stderr.isatty()
