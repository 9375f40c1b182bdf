"""The server: the port that it would use, and whether the running one answers."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.common.commands import command


def port(facts: Facts) -> Iterator[Finding]:
    """A port that another program uses, or that the system reserves.

    Reports: lllyasviel/Fooocus#1926; localsend/localsend#2884 (Hyper-V's reserved ranges).
    """
    server = facts.server
    if server is None or server.url or server.port_state not in ("taken", "forbidden"):
        return
    other = server.free_port
    free = Step("Start on another port.", command(f"serve --port {other}") if other else None)
    if server.port_state == "taken":
        detail = f"Another program uses port {server.port} of {server.host}."
        yield Finding("port-taken", "advice", "server", "server", detail, (free,))
        return
    detail = f"The system does not permit this user to listen on port {server.port}"
    if facts.platform.system == "win32":
        detail += ": it is in a range that Windows reserves."
        show = Step("List the ranges.", "netsh interface ipv4 show excludedportrange protocol=tcp")
        yield Finding("port-reserved", "advice", "server", "server", detail, (free, show))
    else:
        detail += ": ports below 1024 require root."
        yield Finding("port-reserved", "advice", "server", "server", detail, (free,))


def silent(facts: Facts) -> Iterator[Finding]:
    """A server that did not report its devices, or devices that could not be probed."""
    if facts.server and facts.server.trouble:
        step = Step("Check the server's log, then restart the server.")
        yield Finding("devices-unknown", "broken", "server", "server", facts.server.trouble, (step,))


FINDINGS = (port, silent)
