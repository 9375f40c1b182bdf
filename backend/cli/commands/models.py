"""List, add, fetch or remove models: through the running server if there is one, else directly."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from backend.child.convert import FORMS
from backend.cli.job_follower import Here, follow_to_end
from backend.cli.progress_bar import ProgressBar
from backend.common.config.settings import Settings, load_settings
from backend.common.errors import ModelBroken, ModelNotDownloaded
from backend.common.types import Progress
from backend.models import Catalogue, Entry, conversion, registration
from backend.models.entries import BUILT_IN
from backend.models.sources import parse

if TYPE_CHECKING:
    from backend.cli.client import HttpClient

AGAIN = "Start it again: it goes on."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`models` alone lists."""
    parser.add_argument("--data-dir", help="folder for models and history")
    parser.add_argument("--json", action="store_true", help="the answer of GET /api/models")
    parser.set_defaults(action=_list)
    actions = parser.add_subparsers(metavar="ACTION")
    for name, action, text in (
        ("list", _list, "the table (also without an action)"),
        ("fetch", _fetch_named, "download a model of the catalogue"),
        ("fetch-default", _fetch_default, "download the default models that are not here yet"),
        ("add", _add, "add a model for good: an https address, hf:OWNER/REPO, or a path on this machine"),
        (
            "convert",
            _convert,
            "make another engine's form of a GGUF model or of safetensors, in an environment of its own",
        ),
        ("remove", _remove, "remove a model that was downloaded or added"),
    ):
        sub = actions.add_parser(name, help=text, description=text)
        sub.set_defaults(action=action)
        for flag in ("--config", "--data-dir"):  # launchers append them to the end of the line
            sub.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if name == "list":
            sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
        if name == "convert":
            sub.add_argument("--to", choices=tuple(FORMS), default=next(iter(FORMS)), help="the form to make")
        if name in ("fetch", "convert", "remove"):
            sub.add_argument("id", help="id of the model, as `models` lists it")
        if name == "add":
            sub.add_argument("source", help="address, hf:OWNER/REPO[/FILE][@REVISION], hf:OWNER/REPO:Q4_K_M, or path")
            sub.add_argument("--id", help="what it is to be called; otherwise made from the file's name")
            sub.add_argument("--task", help="what it is for; otherwise the first task of its engine")


def run(args: argparse.Namespace) -> int:
    """0 if everything asked for is there."""
    settings = load_settings({"config": args.config, "storage.data_dir": args.data_dir})
    action: Callable[[Settings, argparse.Namespace], int] = args.action
    return action(settings, args)


def _list(settings: Settings, args: argparse.Namespace) -> int:
    found = asyncio.run(_models(settings))
    print(json.dumps({"models": found}, indent=2, ensure_ascii=False) if args.json else table(found))
    return 0


def _fetch_named(settings: Settings, args: argparse.Namespace) -> int:
    catalogue = Catalogue(settings)
    _fetch(settings, catalogue, catalogue.resolve(args.id))
    return 0


def _fetch_default(settings: Settings, args: argparse.Namespace) -> int:
    catalogue = Catalogue(settings)
    for task in ("text", "music"):
        if getattr(settings.default_models, task) is None:
            continue
        entry = catalogue.default_for(task)
        if entry.source and entry.source.kind == BUILT_IN:
            continue  # nothing to fetch; what is wrong with it, the server says
        try:
            catalogue.path_of(entry)
        except (ModelNotDownloaded, ModelBroken):
            if entry.source is None:
                raise
            _fetch(settings, catalogue, entry)
    return 0


def _add(settings: Settings, args: argparse.Namespace) -> int:
    catalogue = Catalogue(settings)
    source = parse(args.source)
    if source is None and args.source not in catalogue.entries():
        entry = registration.add(catalogue, args.source, args.id, args.task, anywhere=True).entry
        print(f"{entry.id} is ready: {entry.target}")
        return 0
    print(f"Fetching {source or args.source} ...", flush=True)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        said = asyncio.run(_add_here_or_there(settings, catalogue, args, bar))
    print(said, flush=True)
    return 0


def _convert(settings: Settings, args: argparse.Namespace) -> int:
    catalogue = Catalogue(settings)
    entry = catalogue.resolve(args.id)
    conversion.check(entry, args.to, settings)
    print(conversion.cost(settings, args.to, catalogue.source_of(entry)), flush=True)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        print(asyncio.run(_convert_here_or_there(settings, entry.id, args.to, bar)), flush=True)
    return 0


def _remove(settings: Settings, args: argparse.Namespace) -> int:
    asyncio.run(_remove_here_or_there(settings, args.id))
    print(f"{args.id} is removed.")
    return 0


def table(models: list[dict[str, Any]]) -> str:
    """The models in columns, each reason and remedy below."""
    rows = [("ID", "TASK", "STATE", "SIZE", "ENGINES")]
    for model in models:
        mark = " (default)" if model["default"] else ""
        size = "?" if model["bytes"] is None else f"{model['bytes'] / 1e6:.1f} MB"
        rows.append((model["id"] + mark, model["task"], model["state"], size, ", ".join(model["engines"]) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for place, model in reversed(list(enumerate(models, 1))):
        lines[place + 1 : place + 1] = [f"    {model[key]}" for key in ("reason", "remedy") if model[key]]
    return "\n".join(lines)


async def _models(settings: Settings) -> list[dict[str, Any]]:
    from backend.cli.client import remote
    from backend.tasks.options import options_schema

    async with remote(settings) as server:
        if server:
            return await server.models()
    catalogue = Catalogue(settings, lambda task: options_schema(task, settings.text.max_tokens))
    return [asdict(model) for model in catalogue.models()]


def _fetch(settings: Settings, catalogue: Catalogue, entry: Entry) -> None:
    size = f", {entry.size_bytes / 1e6:.1f} MB" if entry.size_bytes else ""
    terms = f", licence {entry.licence}" if entry.licence else ""
    print(f"Fetching {entry.name}{size}{terms}, from {entry.source} ...", flush=True)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        asyncio.run(_fetch_here_or_there(settings, catalogue, entry, bar))
    print(f"{entry.id} is ready: {catalogue.resolve(entry.id).target}", flush=True)


async def _fetch_here_or_there(settings: Settings, catalogue: Catalogue, entry: Entry, bar: ProgressBar) -> None:
    from backend.cli.client import remote
    from backend.models import download

    async with remote(settings) as server:
        if server:
            await _fetch_through(server, {"source": entry.id}, bar)
            return
    registration.settle(catalogue, entry, await download.fetch(entry, _shown_on(bar)))


async def _add_here_or_there(
    settings: Settings, catalogue: Catalogue, args: argparse.Namespace, bar: ProgressBar
) -> str:
    from backend.cli.client import remote
    from backend.models import download

    async with remote(settings) as server:
        if server:
            asked = {"source": args.source, "id": args.id, "task": args.task}
            job = await _fetch_through(server, {key: value for key, value in asked.items() if value}, bar)
            return _ready(job["model"], job["output"].get("text"))
    addition = registration.add(catalogue, args.source, args.id, args.task)
    try:
        came = await download.fetch(addition.entry, _shown_on(bar))
        registration.settle(catalogue, addition.entry, came)
    finally:
        registration.forget_if_nothing_came(catalogue, addition)
    return _ready(addition.entry.id, came.get("said"))


async def _convert_here_or_there(settings: Settings, model: str, to: str, bar: ProgressBar) -> str:
    from backend.cli.client import CALLER, HttpClient, open_manager

    async with open_manager(settings) as found:
        if isinstance(found, HttpClient):
            done = await follow_to_end(found, (await found.convert_model(model, to))["id"], bar, AGAIN)
        else:
            job = await found.model_jobs.convert(model, to, CALLER)
            done = await follow_to_end(Here(found), job.id, bar, AGAIN)
    return str(done["output"]["text"])


async def _remove_here_or_there(settings: Settings, model: str) -> None:
    from backend.cli.client import remote

    async with remote(settings) as server:
        if server:
            await server.remove_model(model)
            return
    registration.remove(Catalogue(settings), model)


def _shown_on(bar: ProgressBar) -> Callable[[Progress], Awaitable[None]]:
    async def show(progress: Progress) -> None:
        bar.show(progress)

    return show


async def _fetch_through(server: HttpClient, asked: dict[str, Any], bar: ProgressBar) -> dict[str, Any]:
    """Lets the server download and follows its job; leaving early cancels it. Returns the job."""
    return await follow_to_end(server, (await server.add_model(asked))["id"], bar, AGAIN)


def _ready(model: str, said: str | None) -> str:
    return f"{said}\n{model} is ready." if said else f"{model} is ready."
