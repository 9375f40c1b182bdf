"""`python -I backend/child probe | survey | run | render | packages | fetch …`: a folder, as `-m` fails under `-I`."""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Runs one of the child's programs and returns its exit code."""
    # Under -I the first entry is this folder, whose file names must not hide other packages' modules.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from backend.child import process

    program, rest = arguments[0], arguments[1:]
    if program == "fetch":
        from backend.child import fetch

        process.die_with_parent()
        return fetch.main(rest)
    if program == "render":  # its pipes and its own limit end it; a death signal would follow one thread of the worker
        from backend.templates import jinja

        return jinja.main()
    from backend.child.wire import claim_stdio

    channel = claim_stdio()
    process.die_with_parent()
    process.lower_priority()
    if program == "probe":
        from backend.child import probe

        return probe.main(channel, rest)
    if program == "survey":
        from backend.child import survey

        return survey.main(channel, rest)
    if program == "packages":
        from backend.child import packages

        return packages.main(channel)
    from backend.child import run

    return run.main(channel)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
