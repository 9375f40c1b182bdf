"""WSL as the launcher meets it: which of the two, what Windows lets it do, and from where Windows reaches a server."""

from __future__ import annotations

import codecs
import configparser
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from backend.common.hardware.host import Host
from backend.common.hardware.wsl import NODE, powershell, wsl

LIMIT_S = 5.0
WILDCARDS = ("0.0.0.0", "::")
_UNROUTED = "192.0.2.1"  # RFC 5737; nothing is sent to it, only the own address is learnt that would send


@dataclass(frozen=True)
class Wsl:
    """`version` is None outside WSL. `networking` is WSL's own word; `forwarding` whether localhost is forwarded."""

    version: int | None = None
    interop: bool = False
    card: bool = False
    networking: str = "nat"
    forwarding: bool = True
    distribution: str = "DISTRIBUTION"


def look(host: Host | None = None) -> Wsl:
    """Asks the system; programs of Windows are asked only under WSL 2."""
    host = host or Host()
    version = wsl(host)
    if version is None:
        return Wsl()
    name = host.environment.get("WSL_DISTRO_NAME") or "DISTRIBUTION"
    interop, card = powershell(host) is not None, host.path(NODE).exists()
    if version == 1:
        return Wsl(1, interop, card, distribution=name)
    settings = _settings(host) if interop else {}
    told = host.run(("wslinfo", "--networking-mode"), LIMIT_S).text.strip().lower()
    networking = told or settings.get("networkingmode", "nat").lower()
    return Wsl(2, interop, card, networking, settings.get("localhostforwarding", "true").lower() != "false", name)


def _settings(host: Host) -> dict[str, str]:
    """The section `wsl2` of the user's .wslconfig, which lies on the Windows side; empty where it cannot be read."""
    told = host.run(("cmd.exe", "/d", "/c", "echo %USERPROFILE%"), LIMIT_S).text.strip()
    folder = host.run(("wslpath", "-u", told), LIMIT_S).text.strip() if told else ""
    parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    try:
        content = (Path(folder or os.devnull) / ".wslconfig").read_bytes()
        parser.read_string(content.decode("utf-16" if content.startswith(codecs.BOM_UTF16_LE) else "utf-8-sig"))
        return {key: (value or "").strip(" \"'") for key, value in parser.items("wsl2")}
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}


def notices(wsl: Wsl) -> list[str]:
    """What a user of WSL should know before anything is made."""
    if wsl.version == 1:
        return [
            "This is WSL 1, which reaches no card; the CPU works.",
            f"For cards, in PowerShell: wsl --set-version {wsl.distribution} 2",
        ]
    if wsl.version == 2 and not wsl.card:
        return [f"Windows lends no card to this WSL (/{NODE} is missing); the CPU works. `doctor` says what is needed."]
    return []


def windows_url(wsl: Wsl, url: str) -> str | None:
    """The address at which a browser of Windows reaches the server; None if at none."""
    parts = urlsplit(url)
    if wsl.version == 1 or wsl.networking == "mirrored" or (wsl.networking != "none" and wsl.forwarding):
        return parts._replace(netloc=f"localhost:{parts.port}").geturl()
    return None


def reach(wsl: Wsl, url: str, everywhere: bool) -> list[str]:
    """How Windows reaches the server; `everywhere` tells that it listens on all addresses."""
    if wsl.version is None:
        return []
    if address := windows_url(wsl, url):
        return [f"On Windows: {address}"]
    port = urlsplit(url).port
    if wsl.networking == "none":
        return [
            f"Windows does not reach port {port}: networkingMode=none stands in .wslconfig.",
            "Remove that line there and run `wsl --shutdown` in PowerShell; programs inside WSL reach it as it is.",
        ]
    if everywhere:
        return [f"On Windows: http://{_own_address()}:{port}/ (localhostForwarding=false stands in .wslconfig)"]
    return [
        f"Windows does not reach port {port}: localhostForwarding=false stands in .wslconfig.",
        "Remove that line there and run `wsl --shutdown` in PowerShell, or set TOUCHSTONE_TOKEN and start with "
        "--host 0.0.0.0.",
    ]


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_UNROUTED, 9))
        except OSError:
            return "ADDRESS-OF-THIS-WSL"
        return str(probe.getsockname()[0])
