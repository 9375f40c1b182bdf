"""Make a tune: `music a slow air in D minor, 30 seconds`; its files go into a folder, the receipt to stderr."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

from backend.cli.commands._device_flags import add_devices, devices_of
from backend.cli.commands.generate import finite, receipt_line
from backend.cli.job_follower import generated
from backend.common.config.settings import load_settings
from backend.common.errors import Configuration, Validation, from_code
from backend.server.log_format import escaped
from backend.tasks.options.music import MusicOptions
from backend.tasks.options.songs import SongOptions

_OURS = re.compile(r"(tune|song)(-\d+)?\.\w+")
# Those of tunes, and what song models take besides; the server says which of them the model has.
_OPTIONS = {**SongOptions.model_fields, **MusicOptions.model_fields}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Each control of a tune as a flag, from the options themselves."""
    parser.add_argument("words", nargs="*", help="what the tune shall be, in words; flags win over them")
    for name, field in _OPTIONS.items():
        extra: Any = field.json_schema_extra or {}
        types = {field.annotation, *get_args(field.annotation)}
        several = next((each for each in types if get_origin(each) is list), None)
        kind: Any = int if int in types else finite if float in types else _several if several else str
        named = get_args(get_args(several)[0]) if several else extra.get("enum", ())
        listed = f": {(',' if several else ', ').join(named)}" if named else ""
        flag = "--" + name.replace("_", "-")
        help_ = f"{field.description}{listed}".replace("%", "%%")
        parser.add_argument(flag, type=kind, metavar=name.upper(), help=help_)
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where the files go (default: here)")
    parser.add_argument("--overwrite", action="store_true", help="replace the files of an earlier tune there")
    parser.add_argument("--model", help="model id (default: the default model for music)")
    add_devices(
        parser,
        "variations are shared out among the devices (default with several)",
        "the devices make their shares one after the other",
        "all of them are made by the device that is free first",
    )
    parser.add_argument("--json", action="store_true", help="print the finished job")


def _whole(value: Any) -> Any:
    """60 for 60.0: some options take whole numbers alone."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _words_of(file: Path) -> str:
    """Raises Configuration."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Configuration(f"The lyrics in {file} cannot be read: {error}.", "Correct the path after @.") from None


def _several(text: str) -> list[str]:
    return text.split(",")


def run(args: argparse.Namespace) -> int:
    """0 also after a stated fallback, 1 after a stated failure; an earlier tune in the folder is not overwritten."""
    options = {name: _whole(getattr(args, name)) for name in _OPTIONS if getattr(args, name) is not None}
    if (options.get("lyrics") or "").startswith("@"):
        options["lyrics"] = _words_of(Path(options["lyrics"][1:]))
    body = {
        "task": "music",
        **devices_of(args),
        "options": options,
        **{name: getattr(args, name) for name in ("model", "spread") if getattr(args, name) is not None},
        **({"prompt": " ".join(args.words)} if args.words else {}),
    }
    if not args.overwrite:
        _check_folder(args.out)
    return asyncio.run(_make(body, args.out, args.config, args.json))


def _check_folder(folder: Path) -> None:
    """Raises Configuration where the files would replace others."""
    earlier = sorted(file.name for file in folder.iterdir() if _OURS.fullmatch(file.name)) if folder.is_dir() else []
    if earlier:
        raise Configuration(
            f"{folder.resolve()} holds an earlier tune ({earlier[0]}).",
            "Name another folder with --out, or replace it with --overwrite.",
        )


async def _make(body: dict[str, Any], folder: Path, config: str | None, as_json: bool) -> int:
    from backend.cli.client import connect
    from backend.cli.progress_bar import ProgressBar

    async with connect(load_settings({"config": config})) as client:
        with contextlib.closing(ProgressBar(sys.stderr)) as bar:
            last, job = await generated(client, body, bar, words=None if as_json else _show)
        for artifact in job["output"]["artifacts"]:
            await save(client, job["id"], artifact["name"], folder)
            if not as_json:
                print(folder / artifact["name"])
    if as_json:
        print(json.dumps(job, indent=2, ensure_ascii=False))
    elif job["receipt"]:
        print(receipt_line(job["receipt"]), file=sys.stderr)
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    return 0 if last.event == "done" else 1


def _show(text: str) -> None:
    print("\n".join(map(escaped, text.split("\n"))), flush=True)


async def save(client: Any, job_id: str, name: str, folder: Path) -> None:
    """Writes a file of the job whole, or not at all. Raises Validation where the folder cannot take it."""
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
