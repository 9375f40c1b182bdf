"""List the models, or fetch one: through the running server if there is one, else directly."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any, TextIO

from backend.catalogue import Catalogue, Entry
from backend.errors import ModelBroken, ModelNotDownloaded, from_code
from backend.settings import Settings, load_settings
from backend.types import Progress

LINE_EVERY_S = 5.0
_BAR_WIDTH = 24


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
    ):
        sub = actions.add_parser(name, help=text, description=text)
        sub.set_defaults(action=action)
        for flag in ("--config", "--data-dir"):  # launchers append them to the end of the line
            sub.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if name == "list":
            sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
        if name == "fetch":
            sub.add_argument("id", help="id of the model, as `models` lists it")


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
    _fetch(settings, Catalogue(settings).resolve(args.id))
    return 0


def _fetch_default(settings: Settings, args: argparse.Namespace) -> int:
    catalogue = Catalogue(settings)
    for task in ("text", "music"):
        if getattr(settings.default_models, task) is None:
            continue
        entry = catalogue.default_for(task)
        try:
            catalogue.path_of(entry)
        except (ModelNotDownloaded, ModelBroken):
            if entry.source is None:
                raise
            _fetch(settings, entry)
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
    from backend.client import running_server
    from backend.requests import options_schema

    if url := await running_server(settings):
        async with _http(settings, url) as http:
            answer = _checked(await http.get("/api/models"))
        found: list[dict[str, Any]] = answer["models"]
        return found
    catalogue = Catalogue(settings, lambda task: options_schema(task, settings.text.max_tokens))
    return [asdict(model) for model in catalogue.models()]


def _fetch(settings: Settings, entry: Entry) -> None:
    size = f", {entry.size_bytes / 1e6:.1f} MB" if entry.size_bytes else ""
    print(f"Fetching {entry.name}{size} from {entry.source} ...", flush=True)
    bar = Bar(sys.stderr)
    try:
        asyncio.run(_fetch_here_or_there(settings, entry, bar))
    finally:
        bar.close()
    print(f"{entry.id} is ready: {entry.target}", flush=True)


async def _fetch_here_or_there(settings: Settings, entry: Entry, bar: Bar) -> None:
    from backend import downloads
    from backend.client import running_server

    async def show(progress: Progress) -> None:
        bar.show(progress)

    if url := await running_server(settings):
        await _fetch_through(settings, url, entry.id, show)
    else:
        await downloads.fetch(entry, show)


async def _fetch_through(settings: Settings, url: str, model: str, show: Callable[[Progress], Awaitable[None]]) -> None:
    """Lets the server download and follows its job; leaving early cancels it."""
    async with _http(settings, url) as http:
        job = _checked(await http.post("/api/models", json={"source": model}))["id"]
        ended = False
        try:
            async with http.stream("GET", f"/api/jobs/{job}/events") as answer:
                async for event, data in _events(answer.aiter_lines()):
                    if event == "progress":
                        await show(Progress(*(data[key] for key in ("phase", "done", "total", "unit", "eta_s"))))
                    ended = event in ("done", "error", "cancelled", "interrupted")
            if event in ("error", "interrupted"):
                raise from_code(data["code"], data["detail"], data["remedy"])
            if event != "done":
                raise ModelNotDownloaded(f"The download of {model} was cancelled.", "Start it again.")
        finally:
            if not ended:
                await http.post(f"/api/jobs/{job}/cancel")


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    event = ""
    async for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)


def _http(settings: Settings, url: str) -> Any:
    import httpx

    token = settings.server.token
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False)


def _checked(answer: Any) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    if answer.status_code >= 400:
        raise from_code(body["code"], body["detail"], body["remedy"])
    return body


class Bar:
    """Progress on a terminal as one line that moves; elsewhere as a new line now and then."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._moves = stream.isatty()
        self._phase, self._since_s, self._first = "", 0.0, 0.0
        self._said_s = clock()
        self._open = False

    def show(self, progress: Progress) -> None:
        """Draws the newest state."""
        now_s = self._clock()
        if progress.phase != self._phase:
            self._phase, self._since_s, self._first = progress.phase, now_s, progress.done
        text = self._text(progress, now_s)
        if self._moves:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + text[:width].ljust(width))
            self._open = True
        elif now_s - self._said_s >= LINE_EVERY_S:
            self._stream.write(text + "\n")
            self._said_s = now_s
        self._stream.flush()

    def close(self) -> None:
        """Leaves the line."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False

    def _text(self, progress: Progress, now_s: float) -> str:
        if progress.phase == "wait":
            return "waiting for another program that fetches the same model"
        done = f"{progress.done / 1e6:.1f}"
        if not progress.total:
            return f"{progress.phase} {done} MB"
        filled = round(_BAR_WIDTH * progress.done / progress.total)
        bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
        text = f"{progress.phase:<8} [{bar}] {done} of {progress.total / 1e6:.1f} MB"
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0 and progress.done > self._first:
            text += f"  {(progress.done - self._first) / 1e6 / elapsed_s:.1f} MB/s"
        if progress.eta_s is not None and progress.done < progress.total:
            text += f"  {progress.eta_s:.0f} s left"
        return text
