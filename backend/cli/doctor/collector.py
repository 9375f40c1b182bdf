"""Collects the facts: from the running server or from probes, from files and child processes. Failures leave gaps."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from backend.child.handle import spawn
from backend.cli.client import probed, remote
from backend.cli.doctor.facts import Facts, Platform, PortState, ServerFacts
from backend.cli.doctor.pip_commands import BASE
from backend.cli.doctor.runtimes import runtime_facts
from backend.cli.doctor.storage_facts import storage_facts
from backend.common.config.settings import Settings
from backend.common.errors import Configuration, TouchstoneError
from backend.common.hardware.checks import System
from backend.common.system.shared_libraries import distribution_ids
from backend.common.types import Device, Hardware, JsonObject, Model
from backend.models import Catalogue
from backend.runtimes.recipes import recipes
from backend.runtimes.store import RUNTIMES, RuntimeStore
from backend.runtimes.user_environments import user_pythons
from backend.scheduling.probing.inventory import query_system
from backend.scheduling.probing.missing_devices import missing_devices
from backend.server.process import bind, free_port

Fact = TypeVar("Fact")
_DEVICES = TypeAdapter(list[Device])
_HARDWARE = TypeAdapter(list[Hardware])


@dataclass(frozen=True)
class _Answer:
    """The devices, as a server or probes report them."""

    devices: list[Device]
    hardware: list[Hardware]
    default: str | None = None
    default_reason: str | None = None


async def gather(settings: Settings, wanted: str | None = None) -> tuple[Facts, JsonObject]:
    """Return all facts, and further data of the report: default device, missing devices, unusable model files.

    `wanted`: optional, the name of a card that may be missing.
    Takes as long as the slowest probe. Does not raise; facts that cannot be determined are None or empty.
    """
    devices_task = asyncio.create_task(_devices(settings))
    made = RuntimeStore(settings.data_dir / RUNTIMES).pythons(recipes())
    own = user_pythons(settings)
    system, runtimes, storage = await asyncio.gather(
        query_system(spawn, settings.supervision.probe_s),
        runtime_facts({BASE: sys.executable, **made, **own}, kept=made.keys() - own.keys()),
        asyncio.to_thread(storage_facts, settings.data_dir),
    )
    answer, url, error = await devices_task
    no_models: tuple[list[Model], list[tuple[str, str, str]]] = ([], [])
    models, notices = _fact_or_default(lambda: _models(settings), no_models)
    facts = Facts(
        platform=_platform(system),
        checks=system.checks if system else [],
        hardware=answer.hardware,
        devices=answer.devices,
        runtimes=runtimes,
        storage=storage,
        server=_server(settings, url, error),
        models=models,
    )
    missing = [asdict(each) for each in missing_devices(answer.hardware, answer.devices, wanted)]
    default = {"default": answer.default, "default_reason": answer.default_reason}
    return facts, {**default, "missing": missing if answer.devices else [], "notices": notices}


async def _devices(settings: Settings) -> tuple[_Answer, str | None, str | None]:
    """Return the devices, the URL of the server that reported them, and what went wrong. Optional: URL, error."""
    failure = None
    try:
        async with remote(settings) as server:
            if server:
                return _read(await server.devices()), server.url, None
    except (TouchstoneError, httpx.HTTPError, ValidationError, KeyError) as error:
        failure = f"The running server did not report its devices: {_message(error)} They were probed without it."
    try:
        return _read(await probed(settings)), None, failure
    except (TouchstoneError, OSError, ExceptionGroup) as error:
        return _Answer([], []), None, f"The devices could not be probed: {_message(error)}"


def _read(listing: Mapping[str, Any]) -> _Answer:
    return _Answer(
        _DEVICES.validate_python(listing["devices"]),
        _HARDWARE.validate_python(listing["hardware"]),
        listing["default"],
        listing["default_reason"],
    )


def _server(settings: Settings, url: str | None, error: str | None) -> ServerFacts:
    host, port = settings.server.host, settings.server.port
    unknown: tuple[PortState | None, int | None] = (None, None)
    state, other = _fact_or_default(lambda: _port_state(host, port), unknown) if url is None and port else unknown
    return ServerFacts(url, error, host, port, state, other)


def _port_state(host: str, port: int) -> tuple[PortState | None, int | None]:
    """Return whether a server could listen on the port, and the next free port. Optional: None if unknown."""
    try:
        bind(host, port).close()
        return "free", None
    except Configuration as refused:
        states: dict[int | None, PortState] = {errno.EADDRINUSE: "taken", errno.EACCES: "forbidden"}
        return states.get(getattr(refused.__cause__, "errno", None)), free_port(host, max(port + 1, 8000))


def _models(settings: Settings) -> tuple[list[Model], list[tuple[str, str, str]]]:
    catalogue = Catalogue(settings)
    return catalogue.models(), catalogue.notices()


def _platform(system: System | None) -> Platform:
    base = Platform(sys.platform, platform.release(), distribution_ids(), name=platform.platform())
    if system is None:
        return replace(base, machine=platform.machine(), joined=_fact_or_default(_groups_by_database, ()))
    return replace(
        base,
        wsl=system.wsl,
        container=system.container,
        name=system.name,
        machine=system.machine,
        libc=system.libc,
        groups=tuple(system.groups),
        joined=_fact_or_default(_groups_by_database, ()),
    )


def _groups_by_database() -> tuple[str, ...]:
    """Return this user's groups by the system's database; a new one takes effect in the next session."""
    if sys.platform == "win32":
        return ()
    import grp
    import pwd

    user = pwd.getpwuid(os.getuid())
    return tuple(grp.getgrgid(number).gr_name for number in os.getgrouplist(user.pw_name, user.pw_gid))


def _fact_or_default(fact: Callable[[], Fact], default: Fact) -> Fact:
    """Return a fact, or `default` if it cannot be determined."""
    with contextlib.suppress(OSError, TouchstoneError, ValueError, KeyError):
        return fact()
    return default


def _message(error: BaseException) -> str:
    if isinstance(error, TouchstoneError):
        return error.detail
    if isinstance(error, BaseExceptionGroup):
        return _message(error.exceptions[0])
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".") + "."
