"""Runs the service in one process on one socket. It stops within seconds, even with open streams."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import http.client
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from backend import __version__
from backend.child.handle import Spawn, spawn
from backend.common.commands import command
from backend.common.config.settings import Settings, check_exposure, is_loopback
from backend.common.data_dir import DataDir
from backend.common.errors import Configuration
from backend.manager import ModelManager
from backend.server.app import create_app
from backend.server.auth_token import Token, make_token
from backend.server.http_protocol import LimitedHttpProtocol

log = logging.getLogger(__name__)
GRACE_S = 3
STOP_LOOK_S = 0.5
KEEP_ALIVE_S = 75  # longer than clients keep a connection: if the server closed it, their next request would fail
_PORTS_TRIED = 50
_ANY_ADDRESS = ("0.0.0.0", "::")
_ASK_S = 1.0
_HEALTH_BYTES = 1 << 20


async def serve(
    settings: Settings,
    say: Callable[[str], None],
    container: bool = False,
    spawn: Spawn = spawn,
    on_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM. `say` is called with the first line of output when the server listens.

    `on_stopping` is called when the server starts to stop. In a container a token is generated if one is required and
    missing: its loopback cannot be reached from outside. Raises Configuration.
    """
    stopping = asyncio.Event()
    with _signals(stopping.set):  # from the start, so that everything started before a signal is stopped in order
        await _serve(settings, say, container, stopping, spawn, on_stopping)


async def _serve(
    settings: Settings,
    say: Callable[[str], None],
    container: bool,
    stopping: asyncio.Event,
    spawn: Spawn,
    on_stopping: Callable[[], None],
) -> None:
    token = Token(settings)
    has_generated_token = container and settings.server.token is None and not is_loopback(settings.server.host)
    if has_generated_token and token.value is None:
        make_token(settings.data_dir)
    check_exposure(settings.server.host, token.value)
    listening = bind(settings.server.host, settings.server.port)
    try:
        manager = ModelManager(settings, spawn)
        await manager.start()
    except BaseException:
        listening.close()
        raise
    url = url_of(listening)
    config = uvicorn.Config(
        create_app(manager, token),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=functools.partial(LimitedHttpProtocol, settings.server),  # type: ignore[arg-type]
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(config)

    def on_listening() -> None:
        manager.data_dir.heartbeat(url)
        log.info("server listening", extra={"url": url, "version": __version__})
        lines = [f"Touchstone {__version__} listening on {url}"]
        if has_generated_token:  # localhost: for the browser of this machine, at the published port
            port = settings.server.port or url.rpartition(":")[2]
            lines.append(f"Open http://localhost:{port}/#token={token.value}")
        say("\n".join(lines))

    server.on_listening = on_listening
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    signalled = asyncio.create_task(stopping.wait())
    requested = asyncio.create_task(_wait_for_stop_file(manager.data_dir))
    await asyncio.wait({serving, signalled, requested}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    requested.cancel()
    on_stopping()
    log.info("server stopping", extra={"url": url})
    server.should_exit = True
    # Concurrently: the end of jobs ends their streams, and the server waits for the streams.
    await asyncio.gather(manager.stop(), serving)


async def _wait_for_stop_file(data_dir: DataDir) -> None:
    """Return when the `stop` command requests a stop by a file. Signals do not cross Windows consoles or WSL."""
    while not await asyncio.to_thread(data_dir.stop_asked):
        await asyncio.sleep(STOP_LOOK_S)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would exit with the signal's exit code."""

    on_listening: Callable[[], None] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _signals(stop: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":
        numbers.append(signal.SIGBREAK)
    previous = {number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises Configuration with the reason and a free port."""
    family, kind, protocol, _, address = _resolved(host, port)
    # With an explicit protocol asyncio sets TCP_NODELAY on accepted connections; otherwise ACKs add 40 ms of latency.
    listening = socket.socket(family, kind, protocol)
    if sys.platform != "win32":  # on Windows it would let two servers share the port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise _refused(host, port, error) from error
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of the socket for a browser on this machine."""
    host, port = listening.getsockname()[:2]
    if host in _ANY_ADDRESS:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[object, ...]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise Configuration(
            f"server.host {host[:100]!r} is not an address of this machine.", "Use 127.0.0.1."
        ) from error


def _refused(host: str, port: int, error: OSError) -> Configuration:
    free = free_port(host, port + 1)
    offer = (
        f"Start with --port {free}, or stop the other program." if free else "Start with --port 0 for any free port."
    )
    if error.errno == errno.EADDRINUSE and (version := _running_version(host, port)):
        url = f"http://{'127.0.0.1' if host in _ANY_ADDRESS else host}:{port}"
        return Configuration(
            f"Touchstone {version} already runs on port {port}: {url}.",
            f"Use it, stop it with `{command('stop')}`, or start another with its own data folder"
            + (f" and --port {free}." if free else " and --port 0."),
        )
    if error.errno == errno.EADDRINUSE:
        return Configuration(f"Port {port} is taken by another program.", offer)
    if error.errno == errno.EACCES:
        return Configuration(f"This user may not use port {port}, or the system reserves it.", offer)
    return Configuration(f"The server cannot listen on {host} port {port}: {error.strerror}.", offer)


def _running_version(host: str, port: int) -> str | None:
    """Return the version of the Touchstone that listens there, None if it is another program."""
    address = "127.0.0.1" if host in _ANY_ADDRESS else host
    connection = contextlib.closing(http.client.HTTPConnection(address, port, timeout=_ASK_S))
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError), connection as asking:
        asking.request("GET", "/api/health")
        with asking.getresponse() as answer:
            health = json.loads(answer.read(_HEALTH_BYTES))
        if isinstance(health, dict) and {"status", "version", "uptime_s"} <= health.keys():
            return str(health["version"])
    return None


def free_port(host: str, first: int) -> int | None:
    """Return the first free port from `first` on, None if 50 ports in a row are in use."""
    for port in range(first, min(first + _PORTS_TRIED, 65536)):
        family, _, _, _, address = _resolved(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return port
    return None
