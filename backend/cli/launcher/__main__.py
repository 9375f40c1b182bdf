"""Entry point: `python -I backend/cli/launcher [VERB] [ARGUMENTS]`, run by the system's own Python."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run() -> int:
    """Run the launcher, or report that another Python is required."""
    if sys.version_info < (3, 11):  # noqa: UP036 (a user may start this with an older Python)
        sys.stderr.write(f"touchstone: Python 3.11 to 3.14 is required, not {sys.version.split()[0]}.\n")
        return 1
    _open_streams()
    sys.path[0] = str(ROOT)  # instead of this folder, so that the package `backend` is found and no module is shadowed
    try:
        from backend.cli.launcher.interpreter import find_missing_packages
        from backend.cli.launcher.main import main
    except ImportError as error:
        sys.stderr.write(f"touchstone: this copy is incomplete: {error}. Fetch or unpack it again.\n")
        return 1

    if sentence := find_missing_packages(sys.version_info[:2]):
        sys.stderr.write(f"touchstone: {sentence}\n")
        return 1
    return main(ROOT, sys.argv[1:])


def _open_streams() -> None:
    """Connect closed standard streams (`>&-`) to the null device, before a pipe gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    sys.exit(run())
