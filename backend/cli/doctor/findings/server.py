"""The server: the port that it would take, and whether the running one answers."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step


def port(facts: Facts) -> Iterator[Finding]:
    """A port that another program has, or that the system keeps for itself.

    Reports: lllyasviel/Fooocus#1926; localsend/localsend#2884 (Hyper-V's reserved ranges).
    """
    server = facts.server
    if server is None or server.url or server.port_state not in ("taken", "forbidden"):
        return
    other = server.free_port
    free = Step("Start on another port.", f"python -m backend serve --port {other}" if other else None)
    if server.port_state == "taken":
        detail = f"Another program has port {server.port} of {server.host}."
        yield Finding("port-taken", "advice", "server", "server", detail, (free,))
        return
    detail = f"The system lets this user have no server on port {server.port}"
    if facts.platform.system == "win32":
        detail += ": it lies in a range that Windows keeps."
        show = Step("See the ranges.", "netsh interface ipv4 show excludedportrange protocol=tcp")
        yield Finding("port-reserved", "advice", "server", "server", detail, (free, show))
    else:
        detail += ": ports below 1024 are root's."
        yield Finding("port-reserved", "advice", "server", "server", detail, (free,))


def silent(facts: Facts) -> Iterator[Finding]:
    """A server that could not be asked for its devices, or devices that could not be probed."""
    if facts.server and facts.server.trouble:
        step = Step("Look at the server's log; stop it and start it again.")
        yield Finding("devices-unknown", "broken", "server", "server", facts.server.trouble, (step,))


FINDINGS = (port, silent)
