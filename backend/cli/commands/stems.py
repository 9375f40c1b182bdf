"""Separate music into stems: `stems SONG.mp3 … FOLDER`; the stems of each track go to FOLDER/TRACK."""

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
from typing import TYPE_CHECKING, get_args

from backend.cli.commands._device_flags import add_devices, device_keys
from backend.cli.commands._settings import settings_from
from backend.cli.commands.generate import finite, receipt_line
from backend.cli.commands.music import save
from backend.common.errors import OutOfMemory, TouchstoneError, Validation, from_code
from backend.common.types import JsonObject, Progress
from backend.tasks.options.stems import Stem, StemsOptions

if TYPE_CHECKING:
    from backend.cli.client import Client
    from backend.cli.progress_bar import ProgressBar

MAX_CONCURRENT = 8  # a device runs one job at a time anyway, and the server's queue is limited
_SAVE_MEMORY = "Use --sequential, or smaller chunks with --chunk-seconds 4, or another device."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tracks, the output folder and the options."""
    descriptions = {name: field.description for name, field in StemsOptions.model_fields.items()}
    parser.add_argument("tracks", nargs="+", type=Path, metavar="IN", help="tracks: WAV, FLAC, OGG or MP3")
    parser.add_argument("folder", type=Path, metavar="OUTDIR", help="folder in which each track gets a folder")
    parser.add_argument("--model", help="model id (default: the first model for stems)")
    add_devices(
        parser,
        "concurrently, each track on the device that is free first (default with several devices)",
        "one after the other (default with one device)",
    )
    parser.add_argument(
        "--stems", type=lambda text: text.split(","), help=f"{descriptions['stems']}: {','.join(get_args(Stem))}"
    )
    parser.add_argument("--format", help=str(descriptions["format"]))
    parser.add_argument("--chunk-seconds", type=finite, help=str(descriptions["chunk_seconds"]))
    parser.add_argument("--overwrite", action="store_true", help="replace earlier stems")
    parser.add_argument("--json", action="store_true", help="print the finished jobs as JSON")


def run(args: argparse.Namespace) -> int:
    """Separate all tracks; return 0, also after a reported fallback, or 1 if a track failed."""
    folders = _output_folders(args.tracks, args.folder, args.overwrite)
    options = {name: getattr(args, name) for name in StemsOptions.model_fields if getattr(args, name) is not None}
    body = {
        "task": "stems",
        **device_keys(args),
        "options": options,
        **({"model": args.model} if args.model else {}),
    }
    concurrent = args.spread != "sequential" and (args.spread == "parallel" or "devices" in body)
    workers = min(len(folders), MAX_CONCURRENT) if concurrent else 1
    return asyncio.run(_Batch(body, folders, args.json).run(workers, args))


def _output_folders(tracks: list[Path], folder: Path, overwrite: bool) -> dict[Path, Path]:
    """Return the output folder of each track. Raises Validation for a missing file and to protect earlier files."""
    folders: dict[Path, Path] = {}
    for track in tracks:
        if not track.is_file():
            raise Validation(f"The file {track} does not exist.", "Name the tracks first and their folder last.")
        name, number = track.stem, 2
        while folder / name in folders.values():
            name, number = f"{track.stem}-{number}", number + 1
        folders[track] = folder / name
        earlier = sorted((folder / name).glob("*")) if not overwrite else []
        if earlier:
            raise Validation(
                f"{folder / name} holds files already ({earlier[0].name}).",
                "Name another folder, or replace them with --overwrite.",
            )
    return folders


@dataclass
class _Batch:
    """The tracks of one command, with one progress bar; the device that is free first takes the next track."""

    body: JsonObject
    folders: dict[Path, Path]
    as_json: bool
    shares: dict[Path, float] = field(default_factory=dict)  # progress of each track, 0 to 1
    jobs: list[JsonObject] = field(default_factory=list)
    failures: list[TouchstoneError] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)

    async def run(self, workers: int, args: argparse.Namespace) -> int:
        """Separate all tracks with this many concurrent requests and return the exit code."""
        from backend.cli.client import connect
        from backend.cli.progress_bar import ProgressBar

        waiting = deque(self.folders)
        async with connect(settings_from(args)) as client:
            with contextlib.closing(ProgressBar(sys.stderr)) as bar:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(self._work(waiting, client, bar))
        if self.as_json:
            print(json.dumps(self.jobs, indent=2, ensure_ascii=False))
        if len(self.folders) == 1 and self.failures:
            raise self.failures[0]
        return 1 if self.failures else 0

    async def _work(self, waiting: deque[Path], client: Client, bar: ProgressBar) -> None:
        """Separate one waiting track after another."""
        while waiting:
            track = waiting.popleft()
            try:
                await self._separate(track, client, bar)
            except TouchstoneError as error:
                if isinstance(error, OutOfMemory):
                    error.remedy += f" {_SAVE_MEMORY}"
                self.failures.append(error)
                if len(self.folders) > 1:
                    bar.close()
                    print(f"{track}: {error.detail}\n  {error.remedy}", file=sys.stderr)
            self.shares[track] = 1

    async def _separate(self, track: Path, client: Client, bar: ProgressBar) -> None:
        from backend.cli.job_follower import generate_with_progress

        try:
            file_id = await client.send_file(track)
        except OSError as error:
            raise Validation(f"{track} cannot be read: {error.strerror}.", "Check its permissions.") from error
        body = {**self.body, "inputs": {"audio": file_id}}
        last, job = await generate_with_progress(client, body, bar, lambda progress: self._show(track, progress, bar))
        self.jobs.append(job)
        for artifact in job["output"]["artifacts"]:
            await save(client, job["id"], artifact["name"], self.folders[track])
            if not self.as_json:
                bar.close()
                print(self.folders[track] / artifact["name"])
        if last.event != "done":
            raise from_code(last.data.get("code", "job_cancelled"), *_error_texts(last.data))
        if not self.as_json:
            print(receipt_line(job["receipt"]), file=sys.stderr)

    def _show(self, track: Path, progress: Progress, bar: ProgressBar) -> None:
        """Show the track's own progress; with several tracks how many are done, as a fraction."""
        if len(self.folders) == 1:
            bar.show(progress)
        elif progress.phase == "separating" and progress.total:
            self.shares[track] = progress.done / progress.total
            done, total = sum(self.shares.values()), len(self.folders)
            elapsed_s = time.monotonic() - self.started_s
            bar.show(Progress("stems", done, total, "tracks", elapsed_s / done * (total - done) if done else None))


def _error_texts(data: JsonObject) -> tuple[str, str]:
    return data.get("detail", "The job was cancelled."), data.get("remedy", "Run it again.")
