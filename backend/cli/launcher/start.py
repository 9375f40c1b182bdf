"""The start flow: default model, server, health, address, browser, and then to wait for the end."""

import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from backend.cli.launcher import browser, gpu_runtime, options, subprocesses, wsl
from backend.cli.launcher.console import SetupFailed, say
from backend.cli.launcher.server import Server

ROOT = Path(__file__).resolve().parents[3]
READY_LIMIT_S = 180.0
PATIENCE_S = 5.0  # after this long without health, and each time again, the user is told what is being waited for


def backend(python: Path, *words: str) -> list[str]:
    """The command line of a verb: isolated from the caller's folder and PYTHON variables, UTF-8 on every system."""
    return [str(python), "-I", "-u", "-X", "utf8", "-m", "backend", *words]


def start(python: Path, arguments: Sequence[str], ready_limit_s: float = READY_LIMIT_S) -> int:
    """Serves until the end, with the page opened; returns the exit code. Raises SetupFailed."""
    own = options.parse(arguments)
    code = _fetch_default_model(python, own.rest)
    if code:
        return code
    server = Server(backend(python, "serve", *own.rest))
    try:
        server.start()
        if _wait_until_healthy(server, ready_limit_s):
            _welcome(server, own.browser)
            gpu_runtime.offer(ROOT, server.url or "", own.gpu, partial(backend, python), _shared_flags(own.rest))
        elif not server.stopping:
            say(f"The server ended before it was ready, with exit code {server.wait()}; what it said stands above.")
        return server.wait()
    finally:
        server.stop()
        server.wait()


def _fetch_default_model(python: Path, rest: Sequence[str]) -> int:
    """Exit code 2 (wrong usage or configuration) ends the start; without a model the server still serves others."""
    command = backend(python, "models", "fetch-default", *_shared_flags(rest))
    code = subprocesses.run(command)
    if code == 2:
        return code
    if code:
        say("The default model is not here, so the server starts without it; the next start tries again.")
    return 0


def _shared_flags(rest: Sequence[str]) -> list[str]:
    """Those of the server's flags that say where models lie."""
    shared: list[str] = []
    for word, following in pairwise([*rest, ""]):
        name, equals, _ = word.partition("=")
        if name in ("--config", "--data-dir"):
            shared += [word] if equals else [word, following]
    return shared


def _wait_until_healthy(server: Server, limit_s: float) -> bool:
    began = said = time.monotonic()
    while server.exit_code() is None and not server.stopping:
        if server.healthy():
            return True
        now = time.monotonic()
        if now - began > limit_s:
            missing = "did not listen" if server.url is None else f"did not answer at {server.url}"
            raise SetupFailed(
                f"The server {missing} within {limit_s:.0f} s, so it is stopped.",
                "Its log above says more; start again, or run `doctor` in place of the start.",
            )
        if now - said > PATIENCE_S:
            said = now
            missing = "to listen" if server.url is None else f"until {server.url} answers"
            say(f"Waiting for the server {missing} ({now - began:.0f} s) ...")
        time.sleep(0.05)
    return False


def _welcome(server: Server, wanted: bool) -> None:
    url = server.url or ""
    sys.stdout.write(f"Touchstone is ready: {url}\n")
    sys.stdout.flush()
    around = wsl.look()
    for line in wsl.reach(around, url, server.everywhere):
        say(line)
    if not wanted:
        return
    address = wsl.windows_url(around, url) if around.version else url
    if address and browser.open_page(address, around.version is not None):
        say("The page opens in your browser; Ctrl-C here stops the server.")
    elif around.version and not around.interop:
        say("Programs of Windows cannot be started from here: open the address yourself. Ctrl-C here stops the server.")
    else:
        say("No display was found to open a browser on: open the address above. Ctrl-C here stops the server.")
