"""Opens the page in the user's browser, where there is a display and something to open it with."""

import contextlib
import os
import shutil
import subprocess
import sys

# Under WSL the browser is Windows's. explorer.exe is last: it opens the page but always reports failure. Where Windows'
# PATH is kept out of WSL, PowerShell still lies where Windows puts it.
_OPEN = ("-NoProfile", "-NonInteractive", "-Command", "Start-Process '{url}'")
IN_WSL = (
    ("wslview", "{url}"),
    ("powershell.exe", *_OPEN),
    ("/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe", *_OPEN),
    ("explorer.exe", "{url}"),
)
ON_LINUX = (("xdg-open", "{url}"), ("gio", "open", "{url}"))


def open_page(url: str, in_wsl: bool) -> bool:
    """Whether something was started that should show the page; a text browser is never started."""
    if sys.platform == "win32":
        os.startfile(url)
        return True
    return any(_started(command, url) for command in _commands(in_wsl))


def _started(command: tuple[str, ...], url: str) -> bool:
    found = shutil.which(command[0])
    if found is None:
        return False
    with contextlib.suppress(OSError):  # a program of Windows where WSL may start none
        subprocess.Popen(
            [found, *(word.format(url=url) for word in command[1:])],
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
