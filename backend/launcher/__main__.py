"""Entry point: `python -I backend/launcher [VERB] [ARGUMENTS]`, run by the system's own Python."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run() -> int:
    """Hands over to `program.main`, or says which Python is needed."""
    if sys.version_info < (3, 11):  # noqa: UP036 (whoever starts this by hand may have an older one)
        sys.stderr.write(f"touchstone: Python 3.11 or newer is needed; this one is {sys.version.split()[0]}.\n")
        return 1
    sys.path[0] = str(ROOT)  # instead of this folder, so that the package `backend` is found and nothing is shadowed
    from backend.launcher.program import main

    return main(ROOT, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
