"""Generate text or lyrics; the text streams to stdout, and the receipt follows on stderr."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys

from backend.cli.commands._device_flags import add_engine_and_fallback, device_keys
from backend.cli.commands._settings import settings_from
from backend.common.errors import Validation, from_code
from backend.common.types import JsonObject
from backend.tasks.lyrics.sections import KINDS

TEXT_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the request's keys as flags."""
    parser.add_argument("prompt", nargs="?", help="the prompt; - reads standard input")
    parser.add_argument(
        "--task", choices=("text", "lyrics"), default="text", help="lyrics need no prompt (default: text)"
    )
    parser.add_argument(
        "--device", action="append", help="device id, alias, or auto; if repeated, the first free device is used"
    )
    parser.add_argument("--model", help="model id (default: the task's default model)")
    add_engine_and_fallback(parser)
    parser.add_argument("--max-tokens", type=int, help="maximum number of tokens to generate")
    parser.add_argument("--temperature", type=finite, help="randomness of sampling; 0 always takes the likeliest token")
    parser.add_argument("--top-p", type=finite, help="sample from the likeliest tokens with this total probability")
    parser.add_argument("--top-k", type=int, help="sample from this many of the likeliest tokens")
    parser.add_argument("--seed", type=int, help="seed of the random numbers (default: a new one each time)")
    parser.add_argument("--stop", action="append", help="stop sequence; may be repeated")
    parser.add_argument("--repetition-penalty", type=finite, help="factor against repeated tokens; 1 turns it off")
    song = parser.add_argument_group("for --task lyrics")
    song.add_argument("--theme", help="subject of the song")
    song.add_argument("--style", help="such as folk ballad or blues")
    song.add_argument("--language", help="name of the language (default: English)")
    song.add_argument(
        "--sections", type=_split, metavar="verse,chorus,…", help=f"sections in their order: {', '.join(KINDS)}"
    )
    song.add_argument("--lines-per-section", type=int, help="number of lines in each section")
    parser.add_argument("--json", action="store_true", help="print the finished job as JSON instead of the text")


def run(args: argparse.Namespace) -> int:
    """Stream the text; return 0, also after a reported fallback, or 1 after a failure."""
    if args.prompt is None and args.task == "text":
        args.misused("a prompt is required; or use --task lyrics with a --theme")
    from backend.tasks.options.lyrics import SONG_OPTIONS

    names = (*TEXT_OPTIONS, *SONG_OPTIONS)
    body = {
        **({} if args.prompt is None else {"prompt": _read_stdin() if args.prompt == "-" else args.prompt}),
        "task": args.task,
        **device_keys(args),
        "options": {name: getattr(args, name) for name in names if getattr(args, name) is not None},
        **({"model": args.model} if args.model else {}),
    }
    return asyncio.run(_generate(body, args))


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def finite(text: str) -> float:
    """Parse a number for argparse. Raises ArgumentTypeError for NaN and infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return number


def _read_stdin() -> str:
    """Return the text on standard input, empty if it is closed. Raises Validation for another encoding."""
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        detail = f"Standard input is not text in {sys.stdin.encoding}."
        raise Validation(detail, "Send text in that encoding.") from error


async def _generate(body: JsonObject, args: argparse.Namespace) -> int:
    from backend.cli.client import connect

    async with connect(settings_from(args)) as client:
        last = None
        async for event in client.generate(body):
            last = event
            if not args.json:
                _show(event.event, event.data)
        assert last is not None, "a job's events end with a terminal one"
        job = await client.job(last.data["job_id"])
    if args.json:
        print(json.dumps(job, indent=2, ensure_ascii=False))
    elif job["receipt"]:
        print(f"\n{receipt_line(job['receipt'])}{_test_model_note(job['model'])}", file=sys.stderr)
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    return 0 if last.event == "done" else 1


def _show(event: str, data: JsonObject) -> None:
    if event == "token":
        from backend.common.clean_text import escape

        text = data["text"]
        safe = "\n".join(escape(line) for line in text.split("\n")) if sys.stdout.isatty() else text
        print(safe, end="", flush=True)
    elif event == "fallback":
        print(f"! {data['from']} could not be used, so this runs on {data['to']}: {data['reason']}", file=sys.stderr)


def _test_model_note(model: str) -> str:
    """Return a line for an answer of the test model; empty for other models."""
    from backend.common.commands import command
    from backend.models.entries import shipped_facts

    if not shipped_facts(model).get("test_model"):
        return ""
    return f"\n{model} is a test model, whose answers are often wrong; `{command('models')}` names a better one."


def receipt_line(receipt: JsonObject) -> str:
    """Return the receipt in one line: the device used, the evidence for it, and the speed."""
    used = receipt["used"] or "unknown"
    rate = f", {receipt['rate']['value']:.1f} {receipt['rate']['unit']}" if receipt["rate"] else ""
    asked = "" if receipt["asked"] == used else f" (asked: {receipt['asked']})"
    evidence = f"; {receipt['placement']['evidence']}" if receipt["placement"] else ""
    return f"ran on {used}{asked} with {receipt['engine']}{rate}{evidence}"
