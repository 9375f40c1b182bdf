"""`python -I backend/child PROGRAM …`: probe, survey, run, render, packages, convert, weights or fetch.

A folder is run, since `-m` fails under `-I`.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Runs one of the child's programs and returns its exit code."""
    # Under -I the first entry is this folder, whose file names must not hide other packages' modules.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from backend.child import process

    program, rest = arguments[0], arguments[1:]
    process.give_up_rights(also_new=program not in ("probe", "survey"))
    if program == "fetch":
        from backend.child.programs import download

        process.die_with_parent()
        return download.main(rest)
    if program == "install":
        from backend.child.programs import install

        process.die_with_parent()
        return install.main(rest)
    if program == "render":  # its pipes and its own limit end it; a death signal would follow one thread of the worker
        from backend.tasks.text.templates import environment

        return environment.main()
    if program == "weights":
        from backend.child.convert import library_steps

        process.die_with_parent()
        return library_steps.main(rest)
    from backend.child.wire_protocol import claim_stdio

    channel = claim_stdio()
    process.die_with_parent()
    process.lower_priority()
    if program == "probe":
        from backend.child.programs import probe

        return probe.main(channel, rest)
    if program == "survey":
        from backend.child.programs import survey

        return survey.main(channel, rest)
    if program == "convert":
        from backend.child.programs import convert

        return convert.main(channel)
    if program == "packages":
        from backend.child.programs import packages

        return packages.main(channel)
    from backend.child.programs import run

    return run.main(channel)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
