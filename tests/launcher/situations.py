"""Situations in which somebody starts Touchstone, and the exact words that they then see.

`words` are matched line by line, anywhere in what is printed; `…` stands for any text, {folder} for the repository's.
docs/starts.md is the same table for people; `python -m tests.launcher.situations` prints it.
"""
# ruff: noqa: E501 (the words stand as they are seen)

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


def _python(name: str, said: str = "good", version: str = "Python 3.12.1") -> str:
    """A stand-in for an interpreter that says this of itself; one that is good becomes the true one."""
    judged = f'exec {shlex.quote(sys.executable)} "$@"' if said == "good" else f"printf '{said}\\n'"
    body = f'#!/bin/sh\ncase "$*" in --version) echo "{version}" ;; *%d.%d*) echo 3.12 ;; *) {judged} ;; esac\n'
    return f'cat >"$B/{name}" <<\'END\'\n{body}END\nchmod +x "$B/{name}"\n'


def _program(name: str, body: str = "exit 0") -> str:
    return f'printf \'#!/bin/sh\\n{body}\\n\' >"$B/{name}"; chmod +x "$B/{name}"\n'


NEEDED = "touchstone: Python 3.11 or newer is needed and not found. Get it with:"
DEAD = "http://127.0.0.1:9"
SERVE = '"$F/launch_wsl.sh" --no-browser'
INDEX = f"printf -- '--index-url {DEAD}/simple\\nanchor\\n' >\"$F/requirements.txt\""
HTTPS = "printf -- '--index-url https://127.0.0.1:9/simple\\nanchor\\n' >\"$F/requirements.txt\""


def _lack(name: str, manager: str, command: str) -> Situation:
    return Situation(
        SCRIPT, name, (NEEDED, f"    {command}"), _program(manager) + _program("id", "echo 1000"), code=1, tools=True
    )


def _wsl(release: str, interop: bool = True, settings: str = "", networking: str = "", drive: bool = False) -> str:
    """Bash that makes a mount namespace look like WSL."""
    lines = [
        f"echo '{release}' >$T/release; mount --bind $T/release /proc/sys/kernel/osrelease",
        "mount -t tmpfs tmpfs /mnt; mkdir -p /mnt/c/Windows/System32/WindowsPowerShell/v1.0 $T/binfmt $T/home",
        "mount --bind $T/binfmt /proc/sys/fs/binfmt_misc",
        "touch /mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe",
        "touch $T/binfmt/WSLInterop" if interop else "",
        f"printf '[wsl2]\\n{settings}\\n' >$T/home/.wslconfig" if settings else "",
        _program("cmd.exe", "echo C:/Users/me") + _program("wslpath", 'echo "$T/home"') if settings else "",
        _program("wslinfo", f"echo {networking}") if networking else "",
    ]
    return "\n".join(line for line in lines if line)


TWO, ONE = "6.6.87.2-microsoft-standard-WSL2", "4.4.0-19041-Microsoft"

SITUATIONS = (
    Situation(FIRST, "with `sh`", WORKS, run='sh "$F/launch_wsl.sh" echo <<<launched'),
    Situation(
        FIRST,
        "sourced (`. launch_wsl.sh`)",
        ("touchstone: start it (./launch_wsl.sh), do not source it.", "the shell stays"),
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
        ("touchstone: …/elsewhere holds no backend/launcher: run the script inside a complete copy of the repository …",),
        'mkdir $T/elsewhere; cp "$F/launch_wsl.sh" $T/elsewhere/',
        "$T/elsewhere/launch_wsl.sh",
        code=1,
    ),
    Situation(
        FIRST,
        "in a copy that lacks requirements.txt",
        ("touchstone: This copy is not whole: {folder}/requirements.txt is missing.", "touchstone: Fetch it again (…"),
        'rm "$F/requirements.txt"',
        code=1,
        bare=True,
    ),
    Situation(
        FIRST,
        "in a copy that lacks a part of the program",
        ("touchstone: this copy is not whole: …. Fetch or unpack it again.",),
        'rm "$F/backend/launcher/lock.py"',
        code=1,
        bare=True,
    ),
    Situation(FIRST, "with nothing in the environment (`env -i`)", WORKS, run='env -i "$F/launch_wsl.sh" echo <<<launched'),
    Situation(
        FIRST,
        "in Git Bash, MSYS2 or Cygwin on Windows",
        ("touchstone: this is a bash of Windows, not WSL. Start .\\launch.cmd in PowerShell instead, or …",),
        env={"OSTYPE": "msys"},
        code=1,
    ),
    Situation(
        FIRST,
        "from a folder that is gone",
        WORKS,
        run='mkdir $T/gone; cd $T/gone; rmdir $T/gone; "$F/launch_wsl.sh" echo <<<launched',
    ),
    Situation(FIRST, "with standard output closed", ("closed: 0",), run='"$F/launch_wsl.sh" echo >&- <<<x; echo closed: $?'),
    Situation(
        FIRST,
        "twice at the same moment",
        ("touchstone: Another launcher is preparing .venv; waiting until it has finished ...", *WORKS),
        'echo "# changed" >>"$F/requirements.txt"; exec 8>>"$F/.venv.lock"; flock 8',
        '"$F/launch_wsl.sh" echo <<<launched >$T/said 2>&1 8>&- & until grep -q waiting $T/said; do sleep 0.05; done\n'
        "flock -u 8; wait $!; cat $T/said",
    ),
    _lack("none, on Debian, Ubuntu, WSL", "apt-get", "sudo apt-get …install -y python3 python3-venv"),
    _lack("none, on Fedora", "dnf", "sudo dnf install -y python3"),
    _lack("none, on Arch", "pacman", "sudo pacman -S --noconfirm python"),
    _lack("none, on openSUSE", "zypper", "sudo zypper install -y python312"),
    _lack("none, with Homebrew", "brew", "brew install python@3.13"),
    _lack("none, with uv", "uv", "uv python install 3.13"),
    _lack("none, and no package manager that is known", "true", "(no known package manager: install Python 3.13 …)"),
    Situation(
        SCRIPT,
        "too old",
        ("touchstone: Python 3.9.2 is too old or does not run; Python 3.11 or newer is needed. Get it with:",),
        _python("python3", "old", "Python 3.9.2") + _program("apt-get"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "without the module venv (Debian, Ubuntu)",
        (
            "touchstone: Python 3.12.1 is here, but its venv module is not (Debian and Ubuntu package it apart). Get it with:",
            "    …apt-get install -y python3-venv",
        ),
        _python("python3", "ensurepip") + _program("apt-get"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "built without ssl",
        ("touchstone: Python 3.12.1 was built without its module ssl. Get a complete one with:",),
        _python("python3", "ssl"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "of 32 bits",
        ("touchstone: Python 3.12.1 is a 32-bit program, and the packages exist for 64 bits alone. Get another with:",),
        _python("python3", "32-bit"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "Windows' own alone, through PATH",
        ("touchstone: The only Python here is Windows' own (…/python3); WSL needs one of Linux. Get it with:",),
        _python("python3", "windows\\r"),
        code=1,
        tools=True,
    ),
    Situation(
        SCRIPT,
        "Windows' own before that of Linux in PATH",
        WORKS,
        _python("python3", "windows\\r") + _python("python"),
        tools=True,
    ),
    Situation(
        SCRIPT,
        "a version manager's stub that runs nothing",
        WORKS,
        _program("python3.13", "exit 127") + _python("python3"),
        tools=True,
    ),
    Situation(
        ENVIRONMENT,
        "a shell of conda",
        WORKS,
        _python("python3"),
        env={"CONDA_PREFIX": "/opt/conda", "CONDA_DEFAULT_ENV": "base", "CONDA_SHLVL": "1"},
        tools=True,
    ),
    Situation(
        ENVIRONMENT,
        "PYTHONPATH with a module that shadows ours",
        WORKS,
        "mkdir $T/stray; echo 'raise SystemExit(\"stray\")' | tee $T/stray/json.py >$T/stray/ballast.py",
        'PYTHONPATH=$T/stray "$F/launch_wsl.sh" echo <<<launched',
    ),
    Situation(ENVIRONMENT, "PYTHONHOME of another installation", WORKS, env={"PYTHONHOME": "/nowhere"}),
    Situation(
        ENVIRONMENT,
        "packages of the user's own site",
        WORKS,
        "d=$T/home/.local/lib/python$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])')/site-packages\n"
        "mkdir -p $d; echo 'raise SystemExit(\"leaked\")' | tee $d/usercustomize.py >$d/ballast.py",
        'HOME=$T/home "$F/launch_wsl.sh" echo <<<launched',
    ),
    Situation(ENVIRONMENT, "no HOME", WORKS, run='env -u HOME "$F/launch_wsl.sh" echo <<<launched'),
    Situation(ENVIRONMENT, "the locale C", WORKS, env={"LC_ALL": "C", "LANG": "C"}),
    Situation(
        ENVIRONMENT,
        "pip set to install elsewhere (PIP_TARGET, PIP_USER)",
        ("touchstone: Installing what requirements.txt names; this takes a minute or two ...", *WORKS),
        'echo "# changed" >>"$F/requirements.txt"; rm -r "$F"/.venv/lib/*/site-packages/ballast*',
        env={"PIP_TARGET": "/nowhere", "PIP_USER": "1"},
    ),
    Situation(
        ENVIRONMENT,
        "packages gone from .venv",
        ("touchstone: .venv has lost packages (ballast.py): making it again.", *WORKS),
        'rm "$F"/.venv/lib/*/site-packages/ballast.py',
    ),
    Situation(
        ENVIRONMENT,
        "the Python of .venv gone, as after an upgrade of the system",
        ("touchstone: .venv is not usable (an interrupted start, or another Python since): making it again.", *WORKS),
        'rm "$F"/.venv/bin/python*; ln -s /nowhere/python3 "$F/.venv/bin/python"',
    ),
    Situation(
        ENVIRONMENT,
        "a .venv that is a link to a folder which is gone",
        ("touchstone: Making {folder}/.venv with Python …", *WORKS),
        'rm -r "$F/.venv"; ln -s /nowhere/venv "$F/.venv"',
    ),
    Situation(
        ENVIRONMENT,
        "a file called .venv",
        ("touchstone: {folder}/.venv is a file, where the environment would be.", "touchstone: Rename or remove it."),
        'touch "$F/.venv"',
        code=1,
        bare=True,
    ),
    Situation(
        ENVIRONMENT,
        "a .venv that Windows made",
        ("touchstone: {folder}/.venv was made by Windows.", "touchstone: One folder serves one system: …"),
        'mkdir -p "$F/.venv/Scripts"',
        code=1,
        bare=True,
    ),
    Situation(
        ENVIRONMENT,
        "a .venv of somebody else's making, without pip",
        (
            "touchstone: {folder}/.venv exists, was not made by this launcher, and has no Python 3.11 or newer with pip.",
            "touchstone: Rename or remove that folder and start again.",
        ),
        'mkdir -p "$F/.venv/bin"; touch "$F/.venv/bin/python"',
        code=1,
        bare=True,
    ),
    Situation(
        NETWORK,
        "none, at the first start",
        (
            "touchstone: The first start needs the network, to fetch the packages, and it was not reached: …",
            "touchstone: Connect this machine and start again; later starts need no network. Behind a proxy set …",
        ),
        INDEX,
        env={"PIP_RETRIES": "1"},
        code=1,
    ),
    Situation(NETWORK, "none, at a later start", WORKS, env={"PIP_INDEX_URL": DEAD, "HTTPS_PROXY": DEAD}),
    Situation(
        NETWORK,
        "a proxy that is not there",
        ("touchstone: The proxy did not let the packages through: …", "touchstone: Correct HTTPS_PROXY …"),
        HTTPS,
        env={"PIP_RETRIES": "1", "HTTPS_PROXY": DEAD, "https_proxy": DEAD},
        code=1,
    ),
    Situation(
        NETWORK,
        "a SOCKS proxy",
        ("touchstone: The proxy of the environment is a SOCKS proxy, which pip cannot use by itself: …",),
        HTTPS,
        env={"PIP_RETRIES": "0", "HTTPS_PROXY": "socks5://127.0.0.1:9", "https_proxy": "socks5://127.0.0.1:9"},
        code=1,
    ),
    Situation(
        NETWORK,
        "no package for this Python or system",
        ("touchstone: A package is not to be had for this Python: …", "touchstone: No ready-made package fits Python …"),
        'printf -- \'--no-index\\n--find-links ./wheels\\nballast>=99\\n\' >"$F/requirements.txt"',
        code=1,
    ),
    Situation(
        NETWORK,
        "a proxy for everything: the own health check does not go through it",
        ("Touchstone is ready: http://127.0.0.1:…",),
        run=SERVE,
        env={"http_proxy": DEAD, "HTTP_PROXY": DEAD, "ALL_PROXY": DEAD, "no_proxy": ""},
        serves=True,
    ),
    Situation(
        FOLDER,
        "a name with blanks, accents, emoji, quotes and $()",
        WORKS,
        'N="$T/\\$(touch pwned) \'quote\' \\"two\\" é 日本 😀"; mv "$F" "$N"; ln -s "$N" "$F"',
        'cd $T; "$N/launch_wsl.sh" echo <<<launched; [ ! -e pwned ]',
    ),
    Situation(
        FOLDER,
        "a name with a colon",
        ("touchstone: The folder's path … holds ':', with which no Python environment can be made.",),
        'mv "$F" "$T/a:b"; ln -s "$T/a:b" "$F"',
        code=1,
        bare=True,
    ),
    Situation(
        FOLDER,
        "read-only, at the first start",
        ("touchstone: Nothing can be written to {folder}….", "touchstone: Copy the repository to a folder that you own, …"),
        'mount --bind "$F" "$F"; mount -o remount,ro,bind "$F"',
        code=1,
        bare=True,
        mounts=True,
    ),
    Situation(
        FOLDER,
        "read-only, with an environment",
        ("started",),
        'mount --bind "$F" "$F"; mount -o remount,ro,bind "$F"',
        '"$F/.venv/bin/python" -I -c "import ballast"; echo started',
        mounts=True,
    ),
    Situation(
        FOLDER,
        "on a disk mounted with noexec",
        ("touchstone: … lies on a disk mounted with noexec, from which no library can be loaded.",),
        'mkdir $T/disk; mount -t tmpfs -o noexec tmpfs $T/disk; cp -r "$F/." $T/disk/',
        "bash $T/disk/launch_wsl.sh echo",
        code=1,
        bare=True,
        mounts=True,
    ),
    Situation(
        FOLDER,
        "TMPDIR mounted with noexec",
        ("touchstone: Installing what requirements.txt names; this takes a minute or two ...", *WORKS),
        'mkdir $T/tmp; mount -t tmpfs -o noexec tmpfs $T/tmp; echo "# changed" >>"$F/requirements.txt"',
        'TMPDIR=$T/tmp "$F/launch_wsl.sh" echo <<<launched',
        mounts=True,
    ),
    Situation(
        FOLDER,
        "a disk that is full",
        ("touchstone: The disk is full: … MB are free at …, and 1000 MB are needed.", "touchstone: Free some space, …"),
        'mkdir $T/disk; mount -t tmpfs -o size=20m tmpfs $T/disk; cp -r "$F/." $T/disk/',
        "$T/disk/launch_wsl.sh echo",
        code=1,
        bare=True,
        mounts=True,
    ),
    Situation(
        WSL,
        "WSL 1",
        (
            "touchstone: This is WSL 1, which reaches no card; the CPU works.",
            "touchstone: For cards, in PowerShell: wsl --set-version Ubuntu 2",
            "touchstone: On Windows: http://localhost:…",
        ),
        _wsl(ONE),
        SERVE,
        env={"WSL_DISTRO_NAME": "Ubuntu"},
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "WSL 2 to which Windows lends no card",
        ("touchstone: Windows lends no card to this WSL (/dev/dxg is missing); the CPU works. `doctor` says what is needed.",),
        _wsl(TWO),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "WSL 2 with NAT (the usual way)",
        ("touchstone: On Windows: http://localhost:…",),
        _wsl(TWO, networking="nat"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "WSL 2 with mirrored networking",
        ("touchstone: On Windows: http://localhost:…",),
        _wsl(TWO, networking="mirrored", settings="localhostForwarding=false"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "localhostForwarding=false",
        (
            "touchstone: Windows does not reach port …: localhostForwarding=false stands in .wslconfig.",
            "touchstone: Remove that line there and run `wsl --shutdown` in PowerShell, or set TOUCHSTONE_TOKEN and start …",
        ),
        _wsl(TWO, settings="localhostForwarding=false"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "localhostForwarding=false, in a .wslconfig that PowerShell wrote (UTF-16)",
        ("touchstone: Windows does not reach port …: localhostForwarding=false stands in .wslconfig.",),
        _wsl(TWO, settings="localhostForwarding=false") + "\niconv -f utf-8 -t utf-16 $T/home/.wslconfig >$T/c; mv $T/c $T/home/.wslconfig",
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "localhostForwarding=false, listening on all addresses",
        ("touchstone: On Windows: http://… (localhostForwarding=false stands in .wslconfig)",),
        _wsl(TWO, settings="localhostForwarding = false"),
        SERVE,
        plan={"host": "0.0.0.0"},
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "networkingMode=none",
        ("touchstone: Windows does not reach port …: networkingMode=none stands in .wslconfig.",),
        _wsl(TWO, settings="networkingMode=none"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "interop off: Windows' browser cannot be opened",
        (
            "touchstone: Programs of Windows cannot be started from here: open the address yourself. Ctrl-C here stops …",
        ),
        _wsl(TWO, interop=False),
        'env -u DISPLAY -u WAYLAND_DISPLAY "$F/launch_wsl.sh"',
        mounts=True,
        serves=True,
    ),
    Situation(
        START,
        "no display to open a browser on",
        ("Touchstone is ready: http://127.0.0.1:…", "touchstone: No display was found to open a browser on: open …"),
        run='env -u DISPLAY -u WAYLAND_DISPLAY "$F/launch_wsl.sh"',
        serves=True,
    ),
    Situation(
        START,
        "the default model cannot be fetched",
        (
            "touchstone: The default model is not here, so the server starts without it; the next start tries again.",
            "Touchstone is ready: http://127.0.0.1:…",
        ),
        run=SERVE,
        plan={"fetch": 1},
        serves=True,
    ),
    Situation(
        START,
        "a server that ends at once",
        ("touchstone: The server ended before it was ready, with exit code 42; what it said stands above.",),
        run=SERVE,
        plan={"crash": 42},
        code=42,
    ),
    Situation(
        START,
        "a server that takes its time",
        ("touchstone: Waiting for the server until http://127.0.0.1:… answers (5 s) ...", "Touchstone is ready: http://…"),
        run=SERVE,
        plan={"sick_s": 6},
        serves=True,
    ),
    Situation(
        START,
        "--gpu without a value",
        ("touchstone: --gpu needs a value.", "touchstone: Give auto, none or a runtime's name, as in --gpu none."),
        run=SERVE + " --gpu",
        code=2,
    ),
    Situation(
        SERVER,
        "the port is taken",
        ("touchstone: Port … is taken by another program.", "  Start with --port …, or stop the other program."),
        run="--port $TAKEN",
        code=2,
        real=True,
    ),
    Situation(
        SERVER,
        "another address than this machine's own, without a token",
        ("touchstone: …0.0.0.0…",),
        run="--host 0.0.0.0 --port 0",
        code=2,
        real=True,
    ),
    Situation(
        SERVER,
        "a setting that does not exist",
        ("touchstone: …devise…", "…device…"),
        'echo "devise: cpu" >$T/config.yaml',
        "--port 0 --config $T/config.yaml",
        code=2,
        real=True,
    ),
    Situation(
        SERVER,
        "a data folder that cannot be made",
        ("touchstone: The data folder …/file/data cannot be used: …", "  Set TOUCHSTONE_DATA_DIR to a folder that you may …"),
        "touch $T/file",
        "--port 0 --data-dir $T/file/data",
        code=2,
        real=True,
    ),
)  # fmt: skip


def table() -> str:
    """The page's table, part by part."""
    lines: list[str] = []
    for part in dict.fromkeys(situation.part for situation in SITUATIONS):
        lines += ["", f"## {part}", "| situation | what is said |", "|---|---|"]
        for situation in (one for one in SITUATIONS if one.part == part):
            said = [f"`{_shown(words)}`" for words in situation.words if words not in QUIET] or ["(it works)"]
            ends = f" (exit code {situation.code})" if situation.code else ""
            lines.append(f"| {situation.name} | {'<br>'.join(said)}{ends} |")
    return "\n".join(lines[1:]) + "\n"


def _shown(words: str) -> str:
    return words.replace("{folder}", "FOLDER").replace("|", "\\|").replace("`", "'").strip()


if __name__ == "__main__":
    sys.stdout.write(table())
