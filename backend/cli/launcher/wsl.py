"""WSL: its version, what Windows allows it, and the address at which Windows reaches a server."""

from __future__ import annotations

import codecs
import configparser
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from backend.common.commands import command
from backend.common.hardware.host import Host
from backend.common.hardware.wsl import NODE, powershell, wsl

TIMEOUT_S = 5.0
WILDCARDS = ("0.0.0.0", "::")
_UNROUTED = "192.0.2.1"  # RFC 5737; connecting a UDP socket only selects the local address


@dataclass(frozen=True)
class Wsl:
    """`version` is None outside WSL. `networking` is WSL's networkingMode; `forwarding` its localhostForwarding."""

    version: int | None = None
    interop: bool = False
    card: bool = False
    networking: str = "nat"
    forwarding: bool = True
    distribution: str = "DISTRIBUTION"


def detect(host: Host | None = None) -> Wsl:
    """Query the system. Windows programs are started under WSL 2 only."""
    host = host or Host()
    version = wsl(host)
    if version is None:
        return Wsl()
    name = host.environment.get("WSL_DISTRO_NAME") or "DISTRIBUTION"
    interop, card = powershell(host) is not None, host.path(NODE).exists()
    if version == 1:
        return Wsl(1, interop, card, distribution=name)
    settings = _settings(host) if interop else {}
    mode = host.run(("wslinfo", "--networking-mode"), TIMEOUT_S).text.strip().lower()
    networking = mode or settings.get("networkingmode", "nat").lower()
    return Wsl(2, interop, card, networking, settings.get("localhostforwarding", "true").lower() != "false", name)


def _settings(host: Host) -> dict[str, str]:
    """Return the section `wsl2` of the Windows user's .wslconfig; empty if it cannot be read."""
    profile = host.run(("cmd.exe", "/d", "/c", "echo %USERPROFILE%"), TIMEOUT_S).text.strip()
    folder = host.run(("wslpath", "-u", profile), TIMEOUT_S).text.strip() if profile else ""
    parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    try:
        content = (Path(folder or os.devnull) / ".wslconfig").read_bytes()
        parser.read_string(content.decode("utf-16" if content.startswith(codecs.BOM_UTF16_LE) else "utf-8-sig"))
        return {key: (value or "").strip(" \"'") for key, value in parser.items("wsl2")}
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}


def notices(wsl: Wsl) -> list[str]:
    """Return what a user of WSL should know before the installation."""
    if wsl.version == 1:
        return [
            "This is WSL 1, which cannot access GPUs; the CPU works.",
            f"For GPUs, run in PowerShell: wsl --set-version {wsl.distribution} 2",
        ]
    if wsl.version == 2 and not wsl.card:
        hint = f"`{command('doctor')}` shows how to change that."
        return [f"This WSL has no GPU from Windows (/{NODE} is missing); the CPU works. {hint}"]
    return []


def windows_url(wsl: Wsl, url: str) -> str | None:
    """Return the address at which a Windows browser reaches the server. Optional: None if it cannot."""
    parts = urlsplit(url)
    if wsl.version == 1 or wsl.networking == "mirrored" or (wsl.networking != "none" and wsl.forwarding):
        return parts._replace(netloc=f"localhost:{parts.port}").geturl()
    return None


def address_notices(wsl: Wsl, url: str, everywhere: bool) -> list[str]:
    """Return lines that explain how Windows reaches the server; `everywhere`: it listens on all addresses."""
    if wsl.version is None:
        return []
    if address := windows_url(wsl, url):
        return [f"On Windows: {address}"]
    port = urlsplit(url).port
    if wsl.networking == "none":
        return [
            f"Windows cannot reach port {port}: .wslconfig sets networkingMode=none.",
            "Remove that line and run `wsl --shutdown` in PowerShell; programs inside WSL reach it as it is.",
        ]
    if everywhere:
        return [f"On Windows: http://{_own_address()}:{port}/ (.wslconfig sets localhostForwarding=false)"]
    return [
        f"Windows cannot reach port {port}: .wslconfig sets localhostForwarding=false.",
        "Remove that line and run `wsl --shutdown` in PowerShell, or set TOUCHSTONE_TOKEN and start with "
        "--host 0.0.0.0.",
    ]


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_UNROUTED, 9))
        except OSError:
            return "ADDRESS-OF-THIS-WSL"
        return str(probe.getsockname()[0])
