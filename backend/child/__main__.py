"""Run a program of the child: `python -I backend/child PROGRAM [ARGUMENT …]`; see PROGRAMS.

The folder is run as a script, since `python -I -m` does not find it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """A program: `main` of a module, called with the arguments, or with a channel first if it speaks the protocol."""

    module: str
    has_channel: bool = True
    has_arguments: bool = True
    dies_with_parent: bool = True
    may_gain_privileges: bool = False  # a driver may need help: NVIDIA's library runs the setuid `nvidia-modprobe`


PROGRAMS = {
    "run": Program("backend.child.programs.run", has_arguments=False),
    "probe": Program("backend.child.programs.probe", may_gain_privileges=True),
    "prove_engine": Program("backend.child.programs.prove_engine", has_channel=False, may_gain_privileges=True),
    "survey": Program("backend.child.programs.survey", may_gain_privileges=True),
    "packages": Program("backend.child.programs.packages", has_arguments=False),
    "convert": Program("backend.child.programs.convert", has_arguments=False),
    "download": Program("backend.child.programs.download", has_channel=False),
    "search": Program("backend.child.programs.search", has_channel=False),
    "install": Program("backend.child.programs.install", has_channel=False),
    "library_steps": Program("backend.child.convert.library_steps", has_channel=False),
    # A pipe and a timeout end this one: the death signal would follow one thread of the worker.
    "render": Program(
        "backend.tasks.text.templates.environment", has_channel=False, has_arguments=False, dies_with_parent=False
    ),
}


def main(arguments: list[str]) -> int:
    """Run the program that the first argument names; return its exit code."""
    _add_package()
    from backend.child import process

    name, *rest = arguments
    program = PROGRAMS[name]
    process.drop_privileges(also_new=not program.may_gain_privileges)
    given: list[object] = []
    if program.has_channel:
        from backend.child.wire_protocol import claim_stdio

        given.append(claim_stdio())
        process.lower_priority()
    if program.dies_with_parent:
        process.die_with_parent()
    if program.has_arguments:
        given.append(rest)
    code: int = importlib.import_module(program.module).main(*given)
    return code


def _add_package() -> None:
    """Make the package `backend` importable, and nothing that is in the folder around it.

    Under -I the first path is this folder, whose file names must not hide other packages' modules. Where pip installed
    the package, the folder around it has the server's packages: on the path, they would replace the runtime's own.
    """
    del sys.path[0]
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        package.name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec and spec.loader
    module = sys.modules[package.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
