"""Runs the service: one socket, one process, and an end within seconds whatever streams are open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from backend import __version__
from backend.child.handle import Spawn, spawn
from backend.common.config.settings import Settings, check_exposure, is_loopback
from backend.common.data_dir import DataDir
from backend.common.errors import Configuration
from backend.manager import ModelManager
from backend.server.app import create_app
from backend.server.auth_token import Token, make_token
from backend.server.http_protocol import LimitedHttpProtocol

GRACE_S = 3
STOP_LOOK_S = 0.5
KEEP_ALIVE_S = 75  # longer than clients keep a connection, so that they close it and not we under their next request
_PORTS_TRIED = 50


async def serve(settings: Settings, say: Callable[[str], None], container: bool = False, spawn: Spawn = spawn) -> None:
    """Serves until SIGINT or SIGTERM. `say` gets the first line, once the server listens. Raises Configuration.

    In a container, whose own loopback nobody outside can reach, a token is made where one is needed and missing.
    """
    stopping = asyncio.Event()
    with _signals(stopping.set):  # from the first moment on: what has been started by then is ended in order
        await _serve(settings, say, container, stopping, spawn)


async def _serve(
    settings: Settings, say: Callable[[str], None], container: bool, stopping: asyncio.Event, spawn: Spawn
) -> None:
    token = Token(settings)
    own = container and settings.server.token is None and not is_loopback(settings.server.host)
    if own and token.value is None:
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

    def listens() -> None:
        manager.data_dir.heartbeat(url)
        lines = [f"Touchstone {__version__} listening on {url}"]
        if own:  # localhost: the browser of this machine, at the port that is published
            port = settings.server.port or url.rpartition(":")[2]
            lines.append(f"Open http://localhost:{port}/#token={token.value}")
        say("\n".join(lines))

    server.on_listening = listens
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    told = asyncio.create_task(stopping.wait())
    asked = asyncio.create_task(_asked(manager.data_dir))
    await asyncio.wait({serving, told, asked}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    asked.cancel()
    server.should_exit = True
    # Together: jobs that end let their streams end, and the server waits for those.
    await asyncio.gather(manager.stop(), serving)


async def _asked(folder: DataDir) -> None:
    """Ends when `stop` asks for the end: by a file, since signals do not cross Windows' consoles or into WSL."""
    while not folder.stop_asked():
        await asyncio.sleep(STOP_LOOK_S)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which ends the process with the signal's exit code."""

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
    wanted = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":
        wanted.append(signal.SIGBREAK)
    previous = {number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop)) for number in wanted}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises Configuration that says who is in the way and which port is free."""
    family, kind, protocol, _, address = _resolved(host, port)
    # With the protocol named, asyncio sets TCP_NODELAY on what is accepted; without it answers wait 40 ms for an ACK.
    listening = socket.socket(family, kind, protocol)
    if sys.platform != "win32":  # there it would let two servers share the port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise _refused(host, port, error) from error
    return listening


def url_of(listening: socket.socket) -> str:
    """Where a browser on this machine reaches the socket."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[object, ...]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:  # the second for what can be no host name at all
        raise Configuration(f"server.host {host[:100]!r} is no address of this machine.", "Use 127.0.0.1.") from error


def _refused(host: str, port: int, error: OSError) -> Configuration:
    free = free_port(host, port + 1)
    offer = (
        f"Start with --port {free}, or stop the other program." if free else "Start with --port 0 for any free port."
    )
    if error.errno == errno.EADDRINUSE:
        return Configuration(f"Port {port} is taken by another program.", offer)
    if error.errno == errno.EACCES:
        return Configuration(f"Port {port} may not be used by this user or is reserved by the system.", offer)
    return Configuration(f"The server cannot listen on {host} port {port}: {error.strerror}.", offer)


def free_port(host: str, first: int) -> int | None:
    """The first port from `first` on that can be had, None if the next 50 are all taken."""
    for port in range(first, min(first + _PORTS_TRIED, 65536)):
        family, _, _, _, address = _resolved(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return port
    return None
