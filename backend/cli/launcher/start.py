"""The start: fetch the default model, start the server, wait until it is healthy, open the page, wait for the end."""

import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from backend.cli.launcher import browser, gpu_runtime, model_offer, options, subprocesses, wsl
from backend.cli.launcher.console import SetupFailed, say
from backend.cli.launcher.server import Server
from backend.common.commands import command

ROOT = Path(__file__).resolve().parents[3]
READY_LIMIT_S = 180.0
NOTICE_INTERVAL_S = 5.0  # between messages about what the launcher waits for


def verb_command(python: Path, *words: str) -> list[str]:
    """Return the command line of a verb: isolated from the caller's folder and PYTHON variables, UTF-8 everywhere."""
    return [str(python), "-I", "-u", "-X", "utf8", "-m", "backend", *words]


def start(python: Path, arguments: Sequence[str], ready_limit_s: float = READY_LIMIT_S) -> int:
    """Serve until the server ends and return its exit code. Opens the page. Raises SetupFailed."""
    own = options.parse(arguments)
    code = _fetch_default_model(python, own.rest)
    if code:
        return code
    server = Server(verb_command(python, "serve", *own.rest))
    try:
        server.start()
        if _wait_until_healthy(server, ready_limit_s):
            _welcome(server, own.browser)
            threading.Thread(target=_make_offers, args=(python, server.url or "", own), daemon=True).start()
        elif not server.stopping:
            say(f"The server ended before it was ready, with exit code {server.wait()}; see its messages above.")
        return server.wait()
    finally:
        server.stop()
        server.wait()


def _make_offers(python: Path, url: str, own: options.Options) -> None:
    """Offer a runtime for the card, then a model: the card decides which one fits."""
    verb, flags = partial(verb_command, python), _shared_flags(own.rest)
    gpu_runtime.offer(ROOT, url, own.gpu, verb, flags)
    model_offer.offer(ROOT, url, own.model, verb, flags)


def _fetch_default_model(python: Path, rest: Sequence[str]) -> int:
    """Return 2 for wrong usage or configuration, which ends the start; else 0: a model is not required to start."""
    command = verb_command(python, "models", "fetch-default", *_shared_flags(rest))
    code = subprocesses.run(command)
    if code == 2:
        return code
    if code:
        say("The test model could not be downloaded; the server starts without it, and the next start retries.")
    return 0


def _shared_flags(rest: Sequence[str]) -> list[str]:
    """Return those of the server's flags that determine the models folder."""
    shared: list[str] = []
    for word, following in pairwise([*rest, ""]):
        name, equals, _ = word.partition("=")
        if name in ("--config", "--data-dir"):
            shared += [word] if equals else [word, following]
    return shared


def _wait_until_healthy(server: Server, limit_s: float) -> bool:
    started_s = noticed_s = time.monotonic()
    while server.exit_code() is None and not server.stopping:
        if server.healthy():
            return True
        now_s = time.monotonic()
        if now_s - started_s > limit_s:
            missing = "did not listen" if server.url is None else f"did not answer at {server.url}"
            raise SetupFailed(
                f"The server {missing} within {limit_s:.0f} s and was stopped.",
                f"See its log above; start again, or run `{command('doctor')}`.",
            )
        if now_s - noticed_s > NOTICE_INTERVAL_S:
            noticed_s = now_s
            missing = "to listen" if server.url is None else f"to answer at {server.url}"
            say(f"Waiting for the server {missing} ({now_s - started_s:.0f} s) ...")
        time.sleep(0.05)
    return False


def _welcome(server: Server, open_browser: bool) -> None:
    url = server.url or ""
    sys.stdout.write(f"Touchstone is ready: {url}\n")
    sys.stdout.flush()
    environment = wsl.detect()
    for line in wsl.address_notices(environment, url, server.everywhere):
        say(line)
    if not open_browser:
        return
    address = wsl.windows_url(environment, url) if environment.version else url
    if address and browser.open_page(address, environment.version is not None):
        say("The page opens in your browser. Ctrl-C stops the server.")
    elif environment.version and not environment.interop:
        say("Windows programs cannot be started from here: open the address yourself. Ctrl-C stops the server.")
    else:
        say("No display for a browser was found: open the address above. Ctrl-C stops the server.")
