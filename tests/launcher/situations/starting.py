"""How the script is started, and which Python it finds."""
# ruff: noqa: E501 (the words stand as they are seen)

from __future__ import annotations

from tests.launcher.situations.kinds import FIRST, NEEDED, NEWER, SCRIPT, WORKS, Situation, program, python


def lack(name: str, manager: str, command: str) -> Situation:
    return Situation(
        SCRIPT, name, (NEEDED, f"    {command}"), program(manager) + program("id", "echo 1000"), code=1, tools=True
    )


SITUATIONS = (
    Situation(FIRST, "with `sh`", WORKS, run='sh "$F/launch_wsl.sh" echo <<<launched'),
    Situation(
        FIRST,
        "sourced (`. launch_wsl.sh`)",
        ("touchstone: run this script (./launch_wsl.sh), do not source it.", "the shell stays"),
        run='bash -c \'. "$1"; echo "the shell stays"\' bash "$F/launch_wsl.sh"',
    ),
    Situation(
        FIRST,
        "saved on Windows, with CRLF line ends",
        WORKS,
        "sed -i 's/$/\\r/' \"$F/launch_wsl.sh\"",
    ),
    Situation(
        FIRST,
        "by a link from another folder",
        WORKS,
        'ln -s "$F/launch_wsl.sh" $T/link',
        "cd /; $T/link echo <<<launched",
    ),
    Situation(
        FIRST,
        "the script alone, copied out of the repository",
        ("touchstone: …/elsewhere has no backend/cli/launcher: run the script in a complete copy of the repository, …",),
        'mkdir $T/elsewhere; cp "$F/launch_wsl.sh" $T/elsewhere/',
        "$T/elsewhere/launch_wsl.sh",
        code=1,
    ),
    Situation(
        FIRST,
        "in a copy that lacks requirements.txt",
        ("touchstone: This copy is incomplete: {folder}/requirements.txt is missing.", "touchstone: Fetch it again (…"),
        'rm "$F/requirements.txt"',
        code=1,
        bare=True,
    ),
    Situation(
        FIRST,
        "in a copy that lacks a part of the program",
        ("touchstone: this copy is incomplete: …. Fetch or unpack it again.",),
        'rm "$F/backend/cli/launcher/lock.py"',
        code=1,
        bare=True,
    ),
    Situation(FIRST, "with nothing in the environment (`env -i`)", WORKS, run='env -i "$F/launch_wsl.sh" echo <<<launched'),
    Situation(
        FIRST,
        "in Git Bash, MSYS2 or Cygwin on Windows",
        ("touchstone: this is bash for Windows, not WSL. Start .\\launch.cmd in PowerShell instead, or …",),
        env={"OSTYPE": "msys"},
        code=1,
    ),
    Situation(
        FIRST,
        "from a folder that was deleted",
        WORKS,
        run='mkdir $T/gone; cd $T/gone; rmdir $T/gone; "$F/launch_wsl.sh" echo <<<launched',
    ),
    Situation(FIRST, "with standard output closed", ("closed: 0",), run='"$F/launch_wsl.sh" echo >&- <<<x; echo closed: $?'),
    Situation(
        FIRST,
        "twice at the same moment",
        ("touchstone: Another launcher is preparing .venv; waiting for it ...", *WORKS),
        'echo "# changed" >>"$F/requirements.txt"; exec 8>>"$F/.venv.lock"; flock 8',
        '"$F/launch_wsl.sh" echo <<<launched >$T/said 2>&1 8>&- & until grep -q waiting $T/said; do sleep 0.05; done\n'
        "flock -u 8; wait $!; cat $T/said",
    ),
    lack("none, on Debian, Ubuntu, WSL", "apt-get", "sudo apt-get …install -y python3 python3-venv"),
    lack("none, on Fedora", "dnf", "sudo dnf install -y python3"),
    lack("none, on Arch", "pacman", "sudo pacman -S --noconfirm python"),
    lack("none, on openSUSE", "zypper", "sudo zypper install -y python312"),
    lack("none, with Homebrew", "brew", "brew install python@3.13"),
    lack("none, with uv", "uv", "uv python install 3.13"),
    lack("none, and no known package manager", "true", "(no known package manager: install Python 3.13 …)"),
    Situation(
        SCRIPT,
        "too new, and another one",
        ("touchstone: Python 3.15 is not supported: the packages exist for 3.11 to 3.14. Using python3.14 instead.", *WORKS),
        python("python3", NEWER) + python("python3.14"),
        tools=True,
    ),
    Situation(
        SCRIPT,
        "too new",
        ("touchstone: Python 3.15 is not supported: the packages exist for 3.11 to 3.14. Install another one with:",),
        python("python3", NEWER) + program("dnf"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "too old",
        ("touchstone: Python 3.9.2 is too old or does not run; Python 3.11 to 3.14 is required. Install it with:",),
        python("python3", "old", "Python 3.9.2") + program("apt-get"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "without the module venv (Debian, Ubuntu)",
        (
            "touchstone: Python 3.12.1 lacks the module venv, which Debian and Ubuntu package separately. Install it with:",
            "    …apt-get install -y python3-venv",
        ),
        python("python3", "ensurepip") + program("apt-get"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "built without ssl",
        ("touchstone: Python 3.12.1 was built without the module ssl. Install a complete one with:",),
        python("python3", "ssl"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "of 32 bits",
        ("touchstone: Python 3.12.1 is a 32-bit program; the packages require 64 bits. Install another one with:",),
        python("python3", "32-bit"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "only a Windows program, through PATH",
        ("touchstone: The only Python found is a Windows program (…/python3); WSL requires a Linux one. Install it with:",),
        python("python3", "windows\\r"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "a Windows Python before a Linux one in PATH",
        WORKS,
        python("python3", "windows\\r") + python("python"),
        tools=True,
    ),
    Situation(
        SCRIPT,
        "a version manager's stub that runs nothing",
        WORKS,
        program("python3.13", "exit 127") + python("python3"),
        tools=True,
    ),
)  # fmt: skip
