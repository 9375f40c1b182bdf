"""Opens the page in the user's browser, if there is a display and a program that can open it."""

import contextlib
import os
import shutil
import subprocess
import sys

# Under WSL the browser is a Windows program. explorer.exe is last: it opens the page but always reports failure. If
# Windows' PATH is not passed to WSL, PowerShell is found at its usual place.
_OPEN = ("-NoProfile", "-NonInteractive", "-Command", "Start-Process '{url}'")
IN_WSL = (
    ("wslview", "{url}"),
    ("powershell.exe", *_OPEN),
    ("/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe", *_OPEN),
    ("explorer.exe", "{url}"),
)
ON_LINUX = (("xdg-open", "{url}"), ("gio", "open", "{url}"))


def open_page(url: str, in_wsl: bool) -> bool:
    """Start a program that shows the page; return whether one was found. Never starts a text browser."""
    if sys.platform == "win32":
        os.startfile(url)
        return True
    return any(_start(command, url) for command in _commands(in_wsl))


def _start(command: tuple[str, ...], url: str) -> bool:
    program = shutil.which(command[0])
    if program is None:
        return False
    with contextlib.suppress(OSError):  # a Windows program, and WSL may not start any
        subprocess.Popen(
            [program, *(word.format(url=url) for word in command[1:])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return True
    return False


def _commands(in_wsl: bool) -> tuple[tuple[str, ...], ...]:
    if sys.platform == "darwin":
        return () if "SSH_CONNECTION" in os.environ else (("open", "{url}"),)
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return (IN_WSL if in_wsl else ()) + (ON_LINUX if display else ())
