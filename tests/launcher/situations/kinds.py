"""What a situation is, and the small pieces of bash that arrange one in the folder $T, with $B first in PATH."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FIRST, SCRIPT, ENVIRONMENT, NETWORK, FOLDER, WSL, START, SERVER = (
    "How it is started",
    "Finding a Python",
    "Variables and environments",
    "Network, proxies and certificates",
    "The folder and its disk",
    "WSL",
    "The start itself",
    "The server",
)
WORKS = ("launched",)  # what the stand-in for a verb prints: nothing is in the way
QUIET = ("launched", "started", "closed: 0", "the shell stays")  # said by nobody but the test


@dataclass(frozen=True)
class Situation:
    """One of them. `arrange` is bash, run before in the folder $T; `run` the command; the rest says what is needed."""

    part: str
    name: str
    words: Sequence[str]
    arrange: str = ""
    run: str = '"$F/launch_wsl.sh" echo <<<launched'
    code: int = 0
    tools: bool = False  # only the system's small tools are in PATH: no Python, no package manager
    env: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, object] = field(default_factory=dict)  # how the stand-in for the server behaves
    serves: bool = False  # a server runs, and is ended once the words are there
    bare: bool = False  # as cloned: no environment yet
    mounts: bool = False  # in a mount namespace of its own
    real: bool = False  # the true server, by `python -m backend serve`


def python(name: str, said: str = "good", version: str = "Python 3.12.1") -> str:
    """A stand-in for an interpreter that says this of itself; one that is good becomes the true one."""
    judged = f'exec {shlex.quote(sys.executable)} "$@"' if said == "good" else f"printf '{said}\\n'"
    body = f'#!/bin/sh\ncase "$*" in --version) echo "{version}" ;; *%d.%d*) echo 3.12 ;; *) {judged} ;; esac\n'
    return f'cat >"$B/{name}" <<\'END\'\n{body}END\nchmod +x "$B/{name}"\n'


def program(name: str, body: str = "exit 0") -> str:
    return f'printf \'#!/bin/sh\\n{body}\\n\' >"$B/{name}"; chmod +x "$B/{name}"\n'


NEWER = "Python 3.15 is not supported: the packages exist for 3.11 to 3.14."
NEEDED = "touchstone: Python 3.11 to 3.14 is required but was not found. Install it with:"
DEAD = "http://127.0.0.1:9"
SERVE = '"$F/launch_wsl.sh" --no-browser'
INDEX = f"printf -- '--index-url {DEAD}/simple\\nanchor\\n' >\"$F/requirements.txt\""
HTTPS = "printf -- '--index-url https://127.0.0.1:9/simple\\nanchor\\n' >\"$F/requirements.txt\""
