"""Generate text or lyrics; it streams to the terminal, and the receipt follows on stderr."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from typing import Any, get_args

from backend.cli.commands._device_flags import devices_of
from backend.common.config.settings import load_settings
from backend.common.errors import Validation, from_code
from backend.common.types import Fallback
from backend.server.log_format import escaped
from backend.tasks.lyrics.sections import KINDS
from backend.tasks.options.lyrics import SONG_OPTIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The request's keys as flags."""
    parser.add_argument("prompt", nargs="?", help="what to say to the model; - reads standard input")
    parser.add_argument(
        "--task", choices=("text", "lyrics"), default="text", help="lyrics need no prompt (default: text)"
    )
    parser.add_argument("--device", action="append", help="device id, alias, or auto; of several the first free one")
    parser.add_argument("--model", help="model id (default: the task's default model)")
    parser.add_argument("--engine", help="engine name (default: the model's first that fits the device)")
    parser.add_argument(
        "--fallback", choices=get_args(Fallback), default="cpu", help="where to run if the device cannot"
    )
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=finite)
    parser.add_argument("--top-p", type=finite)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stop", action="append", help="text at which to end; may be given again")
    parser.add_argument("--repetition-penalty", type=finite)
    song = parser.add_argument_group("for --task lyrics")
    song.add_argument("--theme", help="what the song is about")
    song.add_argument("--style", help="such as folk ballad or blues")
    song.add_argument("--language", help="by its name (default: English)")
    song.add_argument(
        "--sections", type=_names, metavar="verse,chorus,…", help=f"of {', '.join(KINDS)}, in their order"
    )
    song.add_argument("--lines-per-section", type=int)
    parser.add_argument("--json", action="store_true", help="print the finished job instead")


def run(args: argparse.Namespace) -> int:
    """Streams; 0 also after a stated fallback, 1 after a stated failure."""
    if args.prompt is None and args.task == "text":
        args.misused("there is no prompt: say what to generate, or --task lyrics with a --theme")
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty", *SONG_OPTIONS)
    body = {
        **({} if args.prompt is None else {"prompt": _standard_input() if args.prompt == "-" else args.prompt}),
        "task": args.task,
        **devices_of(args),
        "options": {name: getattr(args, name) for name in names if getattr(args, name) is not None},
        **({"model": args.model} if args.model else {}),
    }
    return asyncio.run(_generate(body, args.config, args.json))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def finite(text: str) -> float:
    """A number for argparse."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} is no number to reckon with")
    return number


def _standard_input() -> str:
    if sys.stdin is None:  # closed
        return ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        detail = f"Standard input is not text in {sys.stdin.encoding}."
        raise Validation(detail, "Send text in that encoding.") from error


async def _generate(body: dict[str, Any], config: str | None, as_json: bool) -> int:
    from backend.cli.client import connect

    async with connect(load_settings({"config": config})) as client:
        last = None
        async for event in client.generate(body):
            last = event
            if not as_json:
                _show(event.event, event.data)
        assert last is not None, "a job's events end with a terminal one"
        job = await client.job(last.data["job_id"])
    if as_json:
        print(json.dumps(job, indent=2, ensure_ascii=False))
    elif job["receipt"]:
        print(f"\n{receipt_line(job['receipt'])}", file=sys.stderr)
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    return 0 if last.event == "done" else 1


def _show(event: str, data: dict[str, Any]) -> None:
    if event == "token":
        text = data["text"]
        safe = "\n".join(escaped(line) for line in text.split("\n")) if sys.stdout.isatty() else text
        print(safe, end="", flush=True)
    elif event == "fallback":
        print(f"! {data['from']} could not be used, so this runs on {data['to']}: {data['reason']}", file=sys.stderr)


def receipt_line(receipt: dict[str, Any]) -> str:
    """The receipt in a line: where it ran, by which evidence, how fast."""
    used = receipt["used"] or "unknown"
    rate = f", {receipt['rate']['value']:.1f} {receipt['rate']['unit']}" if receipt["rate"] else ""
    asked = "" if receipt["asked"] == used else f" (asked: {receipt['asked']})"
    placed = f"; {receipt['placement']['evidence']}" if receipt["placement"] else ""
    return f"ran on {used}{asked} with {receipt['engine']}{rate}{placed}"
