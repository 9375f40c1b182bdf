"""List, install, prove, update, go back from or remove runtimes: through the running server, or one of its own.

Without a server the verb is the manager meanwhile, so that proofs, jobs and history are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Protocol

from backend.cli.job_follower import Here, Source, follow_to_end
from backend.cli.progress_bar import ProgressBar
from backend.common.config.settings import Settings, load_settings
from backend.runtimes.recipes import costs, recipes
from backend.server.log_format import escaped

AGAIN = "Start it again; what was fetched is kept."
_ACTIONS = {
    "install": "make a runtime, prove its devices, and use it from then on",
    "verify": "prove the devices of a runtime again",
    "update": "make the newest version beside the one in use, which serves until the new one is proved",
    "rollback": "go back to the version before the last update",
    "remove": "remove a runtime and free its disk space",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`runtimes` alone lists."""
    parser.add_argument("--data-dir", help="folder for models, runtimes and history")
    parser.add_argument("--json", action="store_true", help="the answer of GET /api/runtimes")
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(metavar="ACTION")
    for name, text in {"list": "the table (also without an action)", **_ACTIONS}.items():
        sub = actions.add_parser(name, help=text, description=text)
        sub.set_defaults(action=name)
        for flag in ("--config", "--data-dir"):  # launchers append them to the end of the line
            sub.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON instead of words")
        if name != "list":
            sub.add_argument("name", help="name of the runtime, as `runtimes` lists it")


def run(args: argparse.Namespace) -> int:
    """0 if all went well; a failure says its layer and its remedy."""
    settings = load_settings({"config": args.config, "storage.data_dir": args.data_dir})
    if args.action == "list":
        found = asyncio.run(_listed(settings))
        print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else table(found))
        return 0
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        said = asyncio.run(_change(settings, args.action, args.name, bar))
    words = json.dumps(said, indent=2, ensure_ascii=False) if args.json else _words(args.action, args.name, said)
    print(words if args.json else escaped(words))
    return 0


def table(found: dict[str, Any]) -> str:
    """The runtimes in words: the installed ones, what could be, and what cannot."""
    groups = (("Installed", ("installed", "broken")), ("Can be installed", ("installable", "installing")))
    lines: list[str] = []
    for title, states in groups:
        rows = [one for one in found["runtimes"] if one["state"] in states]
        lines += [f"{title} ({len(rows)}):", *(line for row in rows for line in _row(row)), ""]
    rest = [one["name"] for one in found["runtimes"] if one["state"] == "unsupported"]
    lines += [f"Not for this machine: {', '.join(rest)}."] if rest else []
    if found.get("best"):
        lines += ["", f"Worth installing: {found['best']}. {found['best_reason']}"]
    return "\n".join(escaped(line) for line in lines)


def _row(row: dict[str, Any]) -> list[str]:
    state = "" if row["state"] in ("installed", "installable") else f" [{row['state']}]"
    facts = [f"  {row['name']}{state}: {row['title']}"]
    if row["bytes"] is not None:
        back = f", {row['previous']} to go back to" if row["previous"] else ""
        facts.append(f"      version {row['version']}, {row['bytes'] / 1e6:.0f} MB{back}")
    facts += [f"      devices: {', '.join(row['devices'])}"] if row["devices"] else []
    return facts + [f"      {row[key]}" for key in ("reason", "remedy", "note") if row[key]]


def _words(action: str, name: str, said: dict[str, Any]) -> str:
    if action == "remove":
        return f"{name} is removed."
    if action == "rollback":
        return f"{name} is back at version {said['version']}: {', '.join(said['devices']) or 'no device works'}."
    return str(said["output"]["text"])


class _Keeper(Source, Protocol):
    """Who has the runtimes: the server, or a manager of our own."""

    async def runtimes(self) -> dict[str, Any]: ...
    async def change_runtime(self, task: str, name: str) -> dict[str, Any]: ...
    async def remove_runtime(self, name: str) -> None: ...


class _Here(Here):
    """A manager in this process."""

    async def runtimes(self) -> dict[str, Any]:
        """All of them."""
        return self.manager.runtime_service.overview()

    async def change_runtime(self, task: str, name: str) -> dict[str, Any]:
        """The job, or for a rollback the Runtime."""
        if task == "rollback":
            return asdict(await self.manager.runtime_service.rollback(name))
        return (await self.manager.runtime_service.submit(task, name, "command line")).view()

    async def remove_runtime(self, name: str) -> None:
        """Removes it."""
        await self.manager.runtime_service.remove(name)


@contextlib.asynccontextmanager
async def _keeper(settings: Settings) -> AsyncIterator[_Keeper]:
    from backend.cli.client import HttpClient, open_manager

    async with open_manager(settings) as found:
        if isinstance(found, HttpClient):
            yield found
        else:
            await found.probes.wait_until_idle()
            yield _Here(found)


async def _listed(settings: Settings) -> dict[str, Any]:
    from backend.cli.client import remote
    from backend.manager import ModelManager

    async with remote(settings) as server:
        if server:
            return await server.runtimes()
    manager = ModelManager(settings)
    await manager.probe_only()
    return manager.runtime_service.overview()


async def _change(settings: Settings, action: str, name: str, bar: ProgressBar) -> dict[str, Any]:
    async with _keeper(settings) as keeper:
        if action == "remove":
            await keeper.remove_runtime(name)
            return {}
        if action == "install" and (cost := _cost(await keeper.runtimes(), name)):
            bar.say(cost)
        said = await keeper.change_runtime(action, name)
        return said if action == "rollback" else await follow_to_end(keeper, said["id"], bar, AGAIN)


def _cost(found: dict[str, Any], name: str) -> str | None:
    """What an install will take, in words; nothing where it is here already, or cannot be made."""
    recipe = recipes().get(name)
    build = recipe.build() if recipe else None
    if recipe is None or build is None or any(one["name"] == name and one["version"] for one in found["runtimes"]):
        return None
    note = f" {recipe.note}" if recipe.note else ""
    return f"{recipe.title}: {costs(build)}.{note}"
