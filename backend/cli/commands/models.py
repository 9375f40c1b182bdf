"""List, search, add, fetch, convert or remove models: through the running server if there is one, else directly."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from backend.cli.commands._model_table import search_page, table
from backend.cli.commands._settings import DATA_DIR_HELP, settings_from
from backend.cli.job_follower import ManagerJobs, follow_to_end
from backend.cli.progress_bar import ProgressBar
from backend.common.byte_sizes import gb
from backend.common.commands import command
from backend.common.errors import ModelBroken, ModelNotDownloaded
from backend.common.types import JsonObject

if TYPE_CHECKING:
    from backend.cli.client import HttpClient
    from backend.common.config.settings import Settings
    from backend.common.types import Progress
    from backend.models import Catalogue, Entry

RETRY_REMEDY = "Repeat the command; it resumes."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each action. Default action: list."""
    from backend.child.convert import FORMS

    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)
    parser.add_argument("--json", action="store_true", help="print the answer of GET /api/models")
    parser.add_argument("--all", action="store_true", help="also list the models that can be downloaded")
    parser.set_defaults(action=_list)
    actions = parser.add_subparsers(metavar="ACTION")
    for name, action, text in (
        ("list", _list, "print the models on this machine (default action)"),
        ("search", _search, "search Hugging Face, with what fits this machine"),
        ("fetch", _fetch_named, "download a model of the catalogue"),
        ("fetch-default", _fetch_default, "download the default models that are missing"),
        ("add", _add, "add a model permanently: an https URL, hf:OWNER/REPO, ollama:NAME, or a path on this machine"),
        ("import", _import, "list the models of Ollama, LM Studio, Hugging Face's cache and llama.cpp"),
        (
            "convert",
            _convert,
            "convert a GGUF or safetensors model for another engine, in a separate environment",
        ),
        ("remove", _remove, "remove a downloaded or added model"),
    ):
        sub = actions.add_parser(name, help=text, description=text)
        sub.set_defaults(action=action)
        for flag in ("--config", "--data-dir"):  # launchers append them to the end of the line
            sub.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if name in ("list", "search", "import"):
            sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
        if name == "list":
            sub.add_argument("--all", action="store_true", default=argparse.SUPPRESS, help="also downloadable models")
        if name == "search":
            sub.add_argument("words", nargs="+", help="words in the name of a model or its publisher")
            sub.add_argument("--task", help="text (default), embeddings or onnx")
            sub.add_argument("--limit", type=int, default=5, help="number of repositories, at most 30 (default: 5)")
        if name == "convert":
            usual = next(iter(FORMS))
            sub.add_argument("--to", choices=tuple(FORMS), default=usual, help=f"target format (default: {usual})")
        if name in ("fetch", "convert", "remove"):
            sub.add_argument("id", help="id of the model, as `models` lists it")
        if name == "add":
            sub.add_argument(
                "source", help="URL, hf:OWNER/REPO[/FILE][@REVISION], hf:OWNER/REPO:Q4_K_M, ollama:NAME, or path"
            )
            sub.add_argument("--id", help="model id (default: made from the file's name)")
            sub.add_argument("--task", help="task of the model (default: the first task of its engine)")


def run(args: argparse.Namespace) -> int:
    """Run the action and return 0; failures raise."""
    action: Callable[[Settings, argparse.Namespace], int] = args.action
    return action(settings_from(args), args)


def _list(settings: Settings, args: argparse.Namespace) -> int:
    listed = asyncio.run(_models(settings))
    print(json.dumps(listed, indent=2, ensure_ascii=False) if args.json else table(listed, args.all))
    return 0


def _search(settings: Settings, args: argparse.Namespace) -> int:
    results = asyncio.run(_find(settings, " ".join(args.words), args.task, args.limit))
    print(json.dumps({"results": results}, indent=2, ensure_ascii=False) if args.json else search_page(results))
    return 0


def _fetch_named(settings: Settings, args: argparse.Namespace) -> int:
    from backend.models import Catalogue

    catalogue = Catalogue(settings)
    _fetch(settings, catalogue, catalogue.resolve(args.id))
    return 0


def _fetch_default(settings: Settings, args: argparse.Namespace) -> int:
    from backend.models import Catalogue
    from backend.models.entries import BUILT_IN

    catalogue = Catalogue(settings)
    for task in ("text", "music"):
        if getattr(settings.default_models, task) is None:
            continue
        entry = catalogue.default_for(task)
        if entry.source and entry.source.kind == BUILT_IN:
            continue  # part of the program; the server reports damage
        try:
            catalogue.path_of(entry)
        except (ModelNotDownloaded, ModelBroken):
            if entry.source is None:
                raise
            _fetch(settings, catalogue, entry)
    return 0


def _add(settings: Settings, args: argparse.Namespace) -> int:
    from backend.models import Catalogue, registration
    from backend.models.sources import STORES, parse

    catalogue = Catalogue(settings)
    source = parse(args.source)
    if args.source not in catalogue.entries() and (source is None or source.kind in STORES):
        entry = registration.add(catalogue, args.source, args.id, args.task, anywhere=True).entry
        print(f"{entry.id} is ready: {entry.target}")
        return 0
    print(f"Fetching {source or args.source} ...", flush=True)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        message = asyncio.run(_add_from_source(settings, catalogue, args, bar))
    print(message, flush=True)
    return 0


def _import(settings: Settings, args: argparse.Namespace) -> int:
    found = asyncio.run(_importable(settings))
    print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else importable_table(found))
    return 0


async def _importable(settings: Settings) -> JsonObject:
    from backend.cli.client import remote
    from backend.models import Catalogue

    async with remote(settings) as server:
        if server:
            return await server.importable_models()
    return asdict(Catalogue(settings).importable())


def importable_table(found: JsonObject) -> str:
    """Return the models of other programs, one line each with its source, and the folders that were searched."""
    rows = [("SOURCE", "SIZE", "QUANTIZATION", "STATE")]
    for model in found["models"]:
        size = "?" if model["bytes"] is None else f"{model['bytes'] / 1e9:.1f} GB"
        state = f"added as {model['id']}" if model["id"] else model["state"]
        rows.append((model["source"], size, model["quantisation"] or "-", state))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for place, model in reversed(list(enumerate(found["models"], 1))):
        if model["state"] == "broken":
            lines[place + 1 : place + 1] = [f"    {model[key]}" for key in ("reason", "remedy") if model[key]]
    if not found["models"]:
        lines = ["No models of Ollama, LM Studio, Hugging Face's cache or llama.cpp are on this machine."]
    lines += [f"{store['path']}: {store['reason']}" for store in found["stores"] if store["reason"]]
    lines += [f"{each['path']}: {each['reason']} {each['remedy']}" for each in found["skipped"]]
    if any(model["state"] == "ready" and not model["id"] for model in found["models"]):
        lines.append(f"Add one: {command('models add SOURCE')}. It is used in place.")
    return "\n".join(lines)


def _convert(settings: Settings, args: argparse.Namespace) -> int:
    from backend.models import Catalogue, conversion

    catalogue = Catalogue(settings)
    entry = catalogue.resolve(args.id)
    conversion.check(entry, args.to, settings)
    print(conversion.cost(settings, args.to, catalogue.source_of(entry)), flush=True)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        print(asyncio.run(_run_conversion(settings, entry.id, args.to, bar)), flush=True)
    return 0


def _remove(settings: Settings, args: argparse.Namespace) -> int:
    asyncio.run(_remove_model(settings, args.id))
    print(f"{args.id} is removed.")
    return 0


async def _models(settings: Settings) -> JsonObject:
    from backend.cli.client import remote
    from backend.manager.model_advice import memory_places, recommendation_data
    from backend.models import Catalogue
    from backend.models.recommendation import recommend
    from backend.tasks.options import options_schema

    async with remote(settings) as server:
        if server:
            return await server.models()
    catalogue = Catalogue(settings, lambda task: options_schema(task, settings.text.max_tokens))
    models = catalogue.models()
    found = recommend(catalogue.shipped_entries(), memory_places([]))
    recommended = found and recommendation_data(found, models)
    return {"models": [asdict(model) for model in models], "recommended": recommended}


async def _find(settings: Settings, query: str, task: str | None, limit: int) -> list[JsonObject]:
    from backend.cli.client import remote
    from backend.manager.model_advice import with_fits
    from backend.models.search import search

    async with remote(settings) as server:
        if server:
            return await server.search_models(query, task, limit)
    return with_fits(await search(query, task, limit), [])


def _fetch(settings: Settings, catalogue: Catalogue, entry: Entry) -> None:
    known_bytes = entry.size_bytes or entry.facts.get("listed_bytes")
    size = f", {gb(known_bytes)}" if known_bytes else ""
    terms = f", licence {entry.licence}" if entry.licence else ""
    print(f"Fetching {entry.name}{size}{terms}, from {entry.source} ...", flush=True)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        asyncio.run(_download(settings, catalogue, entry, bar))
    print(f"{entry.id} is ready: {catalogue.resolve(entry.id).target}", flush=True)


async def _download(settings: Settings, catalogue: Catalogue, entry: Entry, bar: ProgressBar) -> None:
    from backend.cli.client import remote
    from backend.models import download, registration

    async with remote(settings) as server:
        if server:
            await _download_in_server(server, {"source": entry.id}, bar)
            return
    registration.settle(catalogue, entry, await download.fetch(entry, _progress_callback(bar)))


async def _add_from_source(settings: Settings, catalogue: Catalogue, args: argparse.Namespace, bar: ProgressBar) -> str:
    from backend.cli.client import remote
    from backend.models import download, registration

    async with remote(settings) as server:
        if server:
            body = {"source": args.source, "id": args.id, "task": args.task}
            job = await _download_in_server(server, {key: value for key, value in body.items() if value}, bar)
            return _ready_message(job["model"], job["output"].get("text"))
    addition = registration.add(catalogue, args.source, args.id, args.task)
    try:
        result = await download.fetch(addition.entry, _progress_callback(bar))
        registration.settle(catalogue, addition.entry, result)
    finally:
        registration.forget_if_nothing_came(catalogue, addition)
    return _ready_message(addition.entry.id, result.get("said"))


async def _run_conversion(settings: Settings, model: str, to: str, bar: ProgressBar) -> str:
    from backend.cli.client import CALLER, HttpClient, open_manager

    async with open_manager(settings) as manager:
        if isinstance(manager, HttpClient):
            started = await manager.convert_model(model, to)
            job = await follow_to_end(manager, started["id"], bar, RETRY_REMEDY)
        else:
            live_job = await manager.model_jobs.convert(model, to, CALLER)
            job = await follow_to_end(ManagerJobs(manager), live_job.id, bar, RETRY_REMEDY)
    return str(job["output"]["text"])


async def _remove_model(settings: Settings, model: str) -> None:
    from backend.cli.client import remote
    from backend.models import Catalogue, registration

    async with remote(settings) as server:
        if server:
            await server.remove_model(model)
            return
    registration.remove(Catalogue(settings), model)


def _progress_callback(bar: ProgressBar) -> Callable[[Progress], Awaitable[None]]:
    async def show(progress: Progress) -> None:
        bar.show(progress)

    return show


async def _download_in_server(server: HttpClient, body: JsonObject, bar: ProgressBar) -> JsonObject:
    """Let the server download, follow its job and return it. Leaving early cancels the job."""
    return await follow_to_end(server, (await server.add_model(body))["id"], bar, RETRY_REMEDY)


def _ready_message(model: str, note: str | None) -> str:
    return f"{note}\n{model} is ready." if note else f"{model} is ready."
