"""Make a tune: `music a slow air in D minor, 30 seconds`; its files go to a folder, the receipt to stderr."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from backend.cli.commands._device_flags import add_devices, device_keys
from backend.cli.commands._settings import settings_from
from backend.cli.commands.generate import finite, receipt_line
from backend.common.errors import Configuration, Validation, from_code
from backend.common.types import JsonObject
from backend.tasks.options.music import MusicOptions
from backend.tasks.options.songs import SongOptions

if TYPE_CHECKING:
    from backend.cli.client import Client

_EARLIER_FILE = re.compile(r"(tune|song)(-\d+)?\.\w+")
# Options of tunes and of song models; the server rejects those that the chosen model does not have.
_OPTIONS = {**SongOptions.model_fields, **MusicOptions.model_fields}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each option, from the option's own type and description."""
    parser.add_argument("words", nargs="*", metavar="PROMPT", help="description of the tune; flags override it")
    for name, field in _OPTIONS.items():
        extra: Any = field.json_schema_extra or {}
        types = {field.annotation, *get_args(field.annotation)}
        list_type = next((each for each in types if get_origin(each) is list), None)
        parse: Any = int if int in types else finite if float in types else _split if list_type else str
        choices = get_args(get_args(list_type)[0]) if list_type else extra.get("enum", ())
        listed = f": {(',' if list_type else ', ').join(choices)}" if choices else ""
        flag = "--" + name.replace("_", "-")
        help_ = f"{field.description}{listed}".replace("%", "%%")
        parser.add_argument(flag, type=parse, metavar=name.upper(), help=help_)
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="folder for the files (default: .)")
    parser.add_argument("--overwrite", action="store_true", help="replace the files of an earlier tune in that folder")
    parser.add_argument("--model", help="model id (default: the default model for music)")
    add_devices(
        parser,
        "the devices share the variations and work concurrently (default with several devices)",
        "the devices make their variations one after the other",
        "the device that is free first makes all of them",
    )
    parser.add_argument("--json", action="store_true", help="print the finished job as JSON")


def _split(text: str) -> list[str]:
    return text.split(",")


def _as_int(value: Any) -> Any:
    """Return 60 for 60.0, since some options accept integers only; other values as they are."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_lyrics(file: Path) -> str:
    """Return the text of a lyrics file. Raises Configuration."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Configuration(f"The lyrics in {file} cannot be read: {error}.", "Correct the path after @.") from None


def run(args: argparse.Namespace) -> int:
    """Make the tune and save its files; return 0, also after a reported fallback, or 1 after a failure.

    Raises Configuration rather than overwrite an earlier tune.
    """
    options = {name: _as_int(getattr(args, name)) for name in _OPTIONS if getattr(args, name) is not None}
    if (options.get("lyrics") or "").startswith("@"):
        options["lyrics"] = _read_lyrics(Path(options["lyrics"][1:]))
    body = {
        "task": "music",
        **device_keys(args),
        "options": options,
        **{name: getattr(args, name) for name in ("model", "spread") if getattr(args, name) is not None},
        **({"prompt": " ".join(args.words)} if args.words else {}),
    }
    if not args.overwrite:
        _check_folder(args.out)
    return asyncio.run(_make(body, args))


def _check_folder(folder: Path) -> None:
    """Raises Configuration if the folder has files of an earlier tune."""
    earlier = sorted(f.name for f in folder.iterdir() if _EARLIER_FILE.fullmatch(f.name)) if folder.is_dir() else []
    if earlier:
        raise Configuration(
            f"{folder.resolve()} holds an earlier tune ({earlier[0]}).",
            "Name another folder with --out, or replace it with --overwrite.",
        )


async def _make(body: JsonObject, args: argparse.Namespace) -> int:
    from backend.cli.client import connect
    from backend.cli.job_follower import generate_with_progress
    from backend.cli.progress_bar import ProgressBar

    async with connect(settings_from(args)) as client:
        with contextlib.closing(ProgressBar(sys.stderr)) as bar:
            last, job = await generate_with_progress(client, body, bar, on_text=None if args.json else _print_text)
        for artifact in job["output"]["artifacts"]:
            await save(client, job["id"], artifact["name"], args.out)
            if not args.json:
                print(args.out / artifact["name"])
    if args.json:
        print(json.dumps(job, indent=2, ensure_ascii=False))
    elif job["receipt"]:
        print(receipt_line(job["receipt"]), file=sys.stderr)
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    return 0 if last.event == "done" else 1


def _print_text(text: str) -> None:
    from backend.common.clean_text import escape

    print("\n".join(map(escape, text.split("\n"))), flush=True)


async def save(client: Client, job_id: str, name: str, folder: Path) -> None:
    """Download a file of a job to a folder, completely or not at all. Raises Validation if it cannot be written."""
    target, partial = folder / name, folder / f"{name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            async for chunk in client.artifact(job_id, name):
                file.write(chunk)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise Validation(
            f"{target} cannot be written: {error.strerror}.",
            f"Name another folder with --out; the job {job_id} still has its files.",
        ) from error
