"""Separate music into stems: `stems SONG.mp3 … FOLDER`; the stems of each track go into FOLDER/TRACK."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from backend.cli.commands._device_flags import add_devices, devices_of
from backend.cli.commands.generate import finite, receipt_line
from backend.cli.commands.music import save
from backend.cli.job_follower import generated
from backend.common.config.settings import load_settings
from backend.common.errors import OutOfMemory, TouchstoneError, Validation, from_code
from backend.common.types import Progress
from backend.tasks.options.stems import Stem, StemsOptions

if TYPE_CHECKING:
    from backend.cli.client import Client
    from backend.cli.progress_bar import ProgressBar

MOST_AT_ONCE = 8  # a device takes one after the other anyway, and a server's queue is not endless
_SAVE_MEMORY = "Separate with --sequential, or in smaller pieces with --chunk-seconds 4, or on another device."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tracks and a folder, then the options."""
    said = {name: field.description for name, field in StemsOptions.model_fields.items()}
    parser.add_argument("tracks", nargs="+", type=Path, metavar="IN", help="WAV, FLAC, OGG or MP3")
    parser.add_argument("folder", type=Path, metavar="OUTDIR", help="where a folder for each track is made")
    parser.add_argument("--model", help="model id (default: the first model for stems)")
    add_devices(
        parser,
        "all at once, each on the device that is free first (default with several devices)",
        "one after the other (default with one device)",
    )
    parser.add_argument(
        "--stems", type=lambda text: text.split(","), help=f"{said['stems']}: {','.join(get_args(Stem))}"
    )
    parser.add_argument("--format", help=str(said["format"]))
    parser.add_argument("--chunk-seconds", type=finite, help=str(said["chunk_seconds"]))
    parser.add_argument("--overwrite", action="store_true", help="replace earlier stems there")
    parser.add_argument("--json", action="store_true", help="print the finished jobs")


def run(args: argparse.Namespace) -> int:
    """0 also after a stated fallback, 1 if a track failed; the other tracks are separated all the same."""
    places = _places(args.tracks, args.folder, args.overwrite)
    options = {name: getattr(args, name) for name in StemsOptions.model_fields if getattr(args, name) is not None}
    body = {
        "task": "stems",
        **devices_of(args),
        "options": options,
        **({"model": args.model} if args.model else {}),
    }
    together = args.spread != "sequential" and (args.spread == "parallel" or "devices" in body)
    at_once = min(len(places), MOST_AT_ONCE) if together else 1
    return asyncio.run(_Batch(body, places, args.json).run(at_once, args.config))


def _places(tracks: list[Path], folder: Path, overwrite: bool) -> dict[Path, Path]:
    """Where each track's stems go. Raises Validation for what is no file, and where others would be replaced."""
    places: dict[Path, Path] = {}
    for track in tracks:
        if not track.is_file():
            raise Validation(f"There is no file {track}.", "Name the tracks first, and the folder for them last.")
        name, number = track.stem, 2
        while folder / name in places.values():
            name, number = f"{track.stem}-{number}", number + 1
        places[track] = folder / name
        earlier = sorted((folder / name).glob("*")) if not overwrite else []
        if earlier:
            raise Validation(
                f"{folder / name} holds files already ({earlier[0].name}).",
                "Name another folder, or replace them with --overwrite.",
            )
    return places


@dataclass
class _Batch:
    """The tracks of one command, with one bar for all; whichever device is free takes the next."""

    body: dict[str, Any]
    places: dict[Path, Path]
    as_json: bool
    shares: dict[Path, float] = field(default_factory=dict)  # of each track, how much is done
    jobs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[TouchstoneError] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    async def run(self, at_once: int, config: str | None) -> int:
        """The exit code."""
        from backend.cli.client import connect
        from backend.cli.progress_bar import ProgressBar

        waiting = deque(self.places)
        async with connect(load_settings({"config": config})) as client:
            with contextlib.closing(ProgressBar(sys.stderr)) as bar:
                async with asyncio.TaskGroup() as group:
                    for _ in range(at_once):
                        group.create_task(self._work(waiting, client, bar))
        if self.as_json:
            print(json.dumps(self.jobs, indent=2, ensure_ascii=False))
        if len(self.places) == 1 and self.failures:
            raise self.failures[0]
        return 1 if self.failures else 0

    async def _work(self, waiting: deque[Path], client: Client, bar: ProgressBar) -> None:
        """Takes one track after another, until none waits."""
        while waiting:
            track = waiting.popleft()
            try:
                await self._separate(track, client, bar)
            except TouchstoneError as error:
                if isinstance(error, OutOfMemory):
                    error.remedy += f" {_SAVE_MEMORY}"
                self.failures.append(error)
                if len(self.places) > 1:
                    bar.close()
                    print(f"{track}: {error.detail}\n  {error.remedy}", file=sys.stderr)
            self.shares[track] = 1

    async def _separate(self, track: Path, client: Client, bar: ProgressBar) -> None:
        try:
            sent = await client.send_file(track)
        except OSError as error:
            raise Validation(f"{track} cannot be read: {error.strerror}.", "Check its permissions.") from error
        body = {**self.body, "inputs": {"audio": sent}}
        last, job = await generated(client, body, bar, lambda progress: self._show(track, progress, bar))
        self.jobs.append(job)
        for artifact in job["output"]["artifacts"]:
            await save(client, job["id"], artifact["name"], self.places[track])
            if not self.as_json:
                bar.close()
                print(self.places[track] / artifact["name"])
        if last.event != "done":
            raise from_code(last.data.get("code", "job_cancelled"), *_said(last.data))
        if not self.as_json:
            print(receipt_line(job["receipt"]), file=sys.stderr)

    def _show(self, track: Path, progress: Progress, bar: ProgressBar) -> None:
        """The track's own progress, or with several how many of them are done, counted in parts."""
        if len(self.places) == 1:
            bar.show(progress)
        elif progress.phase == "separating" and progress.total:
            self.shares[track] = progress.done / progress.total
            done, total = sum(self.shares.values()), len(self.places)
            spent_s = time.monotonic() - self.began
            bar.show(Progress("stems", done, total, "tracks", spent_s / done * (total - done) if done else None))


def _said(data: dict[str, Any]) -> tuple[str, str]:
    return data.get("detail", "The job was cancelled."), data.get("remedy", "Run it again.")
