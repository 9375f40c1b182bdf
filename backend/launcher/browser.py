"""Opens the page in the user's browser, where there is a display and something to open it with."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Under WSL the browser is Windows's. explorer.exe is last: it opens the page but always reports failure.
IN_WSL = (
    ("wslview", "{url}"),
    ("powershell.exe", "-NoProfile", "-NonInteractive", "-Command", "Start-Process '{url}'"),
    ("explorer.exe", "{url}"),
)
ON_LINUX = (("xdg-open", "{url}"), ("gio", "open", "{url}"))


def open_page(url: str) -> bool:
    """Whether something was started that should show the page; a text browser is never started."""
    if sys.platform == "win32":
        os.startfile(url)
        return True
    for command in _commands():
        if shutil.which(command[0]):
            subprocess.Popen(
                [word.format(url=url) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            return True
    return False


def _commands() -> tuple[tuple[str, ...], ...]:
    if sys.platform == "darwin":
        return () if "SSH_CONNECTION" in os.environ else (("open", "{url}"),)
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return (IN_WSL if _is_wsl() else ()) + (ON_LINUX if display else ())


def _is_wsl() -> bool:
    try:
        return "microsoft" in Path("/proc/version").read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return False
