"""`python -m backend VERB`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 (anyone may type `python3 -m backend` with an older one)
        version = sys.version.split()[0]
        sys.stderr.write(f"touchstone: Python 3.11 or newer is needed, not {version}. Start ./launch_wsl.sh VERB.\n")
        sys.exit(2)
    from backend.cli.main import main

    sys.exit(main(sys.argv[1:]))
