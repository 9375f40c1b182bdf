"""Interpreters that do not start, or that fail before Touchstone's program runs."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

KNOWN = (
    KnownError(
        "interpreter-dangling",
        r"cannot be started: it is a link to \S+, which does not exist"
        r"|did not find executable at|No Python at ['\"]",
        "The Python that this environment was made from was removed or upgraded. {interpreter}",
        "runtime package",
        source="https://github.com/python/cpython/issues/143768",
    ),
    KnownError(
        "interpreter-missing",
        r"cannot be started: it (?:does not exist|is a script for \S+, which does not exist)"
        r"|bad interpreter: No such file|cannot execute: required file not found",
        "The interpreter was deleted or moved. {interpreter}",
        "runtime package",
        source="https://github.com/streamlink/streamlink/issues/6462",
    ),
    KnownError(
        "interpreter-folder",
        r"cannot be started: it is a folder",
        "Name the interpreter itself, such as `bin/python` in that folder, as `runtimes.{runtime}.python` in "
        "config.yaml, then restart the server.",
        "runtime package",
    ),
    KnownError(
        "interpreter-not-executable",
        r"cannot be started: it is not executable",
        "Run `chmod +x {python}` if it is a Python interpreter. {interpreter}",
        "permission",
    ),
    KnownError(
        "interpreter-noexec",
        r"cannot be started: it may not be executed",
        "Its file system is mounted `noexec`, or a folder above it denies access: `findmnt -T {python}` shows the "
        "mount. Run `sudo mount -o remount,exec MOUNT`, or move the environment to another disk, then refresh.",
        "permission",
    ),
    KnownError(
        "interpreter-not-python",
        r"cannot be started: it is not a program",
        "The file is not a Python interpreter. {interpreter}",
        "runtime package",
    ),
    KnownError(
        "interpreter-architecture",
        r"Exec format error|Bad CPU type in executable|WinError 216|cannot be started: it is a program for",
        {
            "darwin": "It is a program for another kind of processor. Install a Python for this Mac ({machine}); for "
            "an Intel program on Apple silicon run `softwareupdate --install-rosetta`. {interpreter}",
            "container": "It is a program for another kind of processor than this container's ({machine}). Use an "
            "image for this architecture (`docker run --platform`). {interpreter}",
            "any": "It is a program for another kind of processor than this machine's ({machine}). Install a Python "
            "for {machine}. {interpreter}",
        },
        "runtime package",
        source="https://github.com/SWE-agent/SWE-agent/issues/180",
    ),
    KnownError(
        "banner",
        r"while starting: it sent an invalid frame",
        "Something prints to the output of {python} before Touchstone's program runs: a wrapper script, a module "
        "system's banner, or a sitecustomize.py. Name the Python binary itself as `runtimes.{runtime}.python` in "
        "config.yaml, or let the wrapper print to stderr, then restart the server.",
        "runtime package",
    ),
    KnownError(
        "sitecustomize",
        r"(?:^|while starting:.*?)(?:File \"(?P<file>[^\"]*(?:site|user)customize\.py)\"|Error in "
        r"(?P<module>(?:site|user)customize)\b)",
        "The environment's start-up file {file}{module} fails. Correct or remove it "
        '(`{python} -c "import sitecustomize; print(sitecustomize.__file__)"` shows where it is), then refresh.',
        "runtime package",
        source="https://github.com/metacall/distributable-linux/issues/16",
        lines=3,
    ),
    KnownError(
        "pth-file",
        r"(?:^|while starting:.*?)(?:Error processing line \d+ of (?P<file>.+?\.pth)|File \"<frozen site>\", line \d+, "
        r"in addpackage)",
        "{file} runs code at each start of this Python, and that code fails. Remove the file, or reinstall the package "
        "that it belongs to; `ls {environment}/lib/python3*/site-packages/*.pth` lists such files. Then refresh.",
        "runtime package",
        source="https://github.com/pdm-project/pdm/issues/623",
        lines=3,
    ),
    KnownError(
        "python-home",
        r"init_?fs_?encoding|No module named 'encodings'",
        "This Python does not find its standard library: the installation that the environment was made from was "
        "moved or removed. {interpreter}",
        "runtime package",
        source="https://github.com/pypa/virtualenv/issues/1850",
    ),
    KnownError(
        "store-stub",
        r"Python was not found; run without arguments",
        "This is Windows' placeholder, not a Python. Install Python (`winget install Python.Python.3.12`). "
        "{interpreter}",
        "runtime package",
    ),
)
