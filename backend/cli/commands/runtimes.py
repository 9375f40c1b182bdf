"""List, install, verify, update, roll back or remove runtimes: through the running server, or without one.

Without a server this process does the server's work, so that proofs, jobs and history are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from backend.cli.commands._settings import DATA_DIR_HELP, settings_from
from backend.cli.job_follower import JobSource, ManagerJobs, follow_to_end
from backend.cli.progress_bar import ProgressBar
from backend.common.types import JsonObject

if TYPE_CHECKING:
    from backend.common.config.settings import Settings

RETRY_REMEDY = "Repeat the command; downloaded files are kept."
_ACTIONS = {
    "install": "install a runtime, prove its devices, and use it from then on",
    "verify": "prove the devices of a runtime again",
    "update": "install the newest version; the current one serves until the new one is proved",
    "rollback": "go back to the version before the last update",
    "remove": "remove a runtime and free its disk space",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each action. Default action: list."""
    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)
    parser.add_argument("--json", action="store_true", help="print the answer of GET /api/runtimes")
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(metavar="ACTION")
    for name, text in {"list": "print the table (default action)", **_ACTIONS}.items():
        sub = actions.add_parser(name, help=text, description=text)
        sub.set_defaults(action=name)
        for flag in ("--config", "--data-dir"):  # launchers append them to the end of the line
            sub.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text")
        if name != "list":
            sub.add_argument("name", help="name of the runtime, as `runtimes` lists it")


def run(args: argparse.Namespace) -> int:
    """Run the action and return 0. A failure raises an error with its layer and a remedy."""
    from backend.common.clean_text import escape

    settings = settings_from(args)
    if args.action == "list":
        listing = asyncio.run(_list(settings))
        print(json.dumps(listing, indent=2, ensure_ascii=False) if args.json else table(listing))
        return 0
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        result = asyncio.run(_change(settings, args.action, args.name, bar))
    if args.json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        print(escape(_summary(args.action, args.name, result)))
    return 0


def table(listing: JsonObject) -> str:
    """Return the text for a terminal: installed runtimes, installable ones, and the rest by name."""
    from backend.common.clean_text import escape

    groups = (("Installed", ("installed", "broken")), ("Can be installed", ("installable", "installing")))
    lines: list[str] = []
    for title, states in groups:
        runtimes = [runtime for runtime in listing["runtimes"] if runtime["state"] in states]
        lines += [f"{title} ({len(runtimes)}):", *(line for runtime in runtimes for line in _lines(runtime)), ""]
    unsupported = [runtime["name"] for runtime in listing["runtimes"] if runtime["state"] == "unsupported"]
    lines += [f"Not for this machine: {', '.join(unsupported)}."] if unsupported else []
    if listing.get("best"):
        lines += ["", f"Recommended: {listing['best']}. {listing['best_reason']}"]
    return "\n".join(escape(line) for line in lines)


def _lines(runtime: JsonObject) -> list[str]:
    state = "" if runtime["state"] in ("installed", "installable") else f" [{runtime['state']}]"
    lines = [f"  {runtime['name']}{state}: {runtime['title']}"]
    if runtime["bytes"] is not None:
        previous = f", {runtime['previous']} to roll back to" if runtime["previous"] else ""
        lines.append(f"      version {runtime['version']}, {runtime['bytes'] / 1e6:.0f} MB{previous}")
    lines += [f"      devices: {', '.join(runtime['devices'])}"] if runtime["devices"] else []
    return lines + [f"      {runtime[key]}" for key in ("reason", "remedy", "note") if runtime[key]]


def _summary(action: str, name: str, result: JsonObject) -> str:
    if action == "remove":
        return f"{name} is removed."
    if action == "rollback":
        return f"{name} is back at version {result['version']}: {', '.join(result['devices']) or 'no device works'}."
    return str(result["output"]["text"])


class _RuntimeStore(JobSource, Protocol):
    """Where runtimes are changed: in the server, or in this process."""

    async def runtimes(self) -> JsonObject: ...
    async def change_runtime(self, task: str, name: str) -> JsonObject: ...
    async def remove_runtime(self, name: str) -> None: ...


class _LocalRuntimes(ManagerJobs):
    """The runtimes of a manager in this process."""

    async def runtimes(self) -> JsonObject:
        """Return the answer of GET /api/runtimes."""
        return self.manager.runtime_service.overview()

    async def change_runtime(self, task: str, name: str) -> JsonObject:
        """Start a job and return it; for `rollback` return the Runtime."""
        if task == "rollback":
            return asdict(await self.manager.runtime_service.rollback(name))
        return (await self.manager.runtime_service.submit(task, name, "command line")).view()

    async def remove_runtime(self, name: str) -> None:
        """Remove a runtime."""
        await self.manager.runtime_service.remove(name)


@contextlib.asynccontextmanager
async def _open_store(settings: Settings) -> AsyncIterator[_RuntimeStore]:
    from backend.cli.client import HttpClient, open_manager

    async with open_manager(settings) as manager:
        if isinstance(manager, HttpClient):
            yield manager
        else:
            await manager.probes.wait_until_idle()
            yield _LocalRuntimes(manager)


async def _list(settings: Settings) -> JsonObject:
    from backend.cli.client import remote
    from backend.manager import ModelManager

    async with remote(settings) as server:
        if server:
            return await server.runtimes()
    manager = ModelManager(settings)
    await manager.probe_only()
    return manager.runtime_service.overview()


async def _change(settings: Settings, action: str, name: str, bar: ProgressBar) -> JsonObject:
    async with _open_store(settings) as store:
        if action == "remove":
            await store.remove_runtime(name)
            return {}
        if action == "install" and (cost := _cost(await store.runtimes(), name)):
            bar.print_line(cost)
        result = await store.change_runtime(action, name)
        return result if action == "rollback" else await follow_to_end(store, result["id"], bar, RETRY_REMEDY)


def _cost(listing: JsonObject, name: str) -> str | None:
    """Return what an install takes, as a sentence. Optional: None if it is installed, or cannot be installed."""
    from backend.runtimes.recipes import costs, recipes

    recipe = recipes().get(name)
    build = recipe.build() if recipe else None
    installed = any(runtime["name"] == name and runtime["version"] for runtime in listing["runtimes"])
    if recipe is None or build is None or installed:
        return None
    note = f" {recipe.note}" if recipe.note else ""
    return f"{recipe.title}: {costs(build)}.{note}"
