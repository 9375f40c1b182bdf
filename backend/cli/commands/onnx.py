"""Inspect, run, benchmark, check or quantize any ONNX graph.

`onnx run MODEL x=photo.png scale='[[2.0]]' --device auto --out results` sends files, or arrays as JSON, to the inputs
of the graph by name. MODEL is a model id, or the path of a .onnx file, which is then added to the models.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from backend.cli.commands._settings import settings_from
from backend.cli.commands.generate import receipt_line
from backend.common.commands import command
from backend.common.errors import UnknownModel, Validation, from_code
from backend.common.types import Fallback, JsonObject

if TYPE_CHECKING:
    from backend.cli.client import Client
    from backend.common.config.settings import Settings
    from backend.common.types import Progress
    from backend.models import Catalogue, Entry

_ACTIONS = {
    "inspect": "describe the file; with --device also which nodes the device supports",
    "run": "send inputs and get outputs",
    "bench": "measure milliseconds per run, and those of a bare session of the library",
    "check": "compare with the processor; exit code 1 and the first node that differs if the outputs differ",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each action."""
    from backend.child.convert.quantization import KINDS

    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, help_ in _ACTIONS.items():
        sub = actions.add_parser(name, help=help_)
        sub.set_defaults(action=name)
        sub.add_argument("model", help="model id, or path of a .onnx file")
        sub.add_argument("--device", default=None if name == "inspect" else "auto", help="device id, alias, or auto")
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        if name != "inspect":
            sub.add_argument("inputs", nargs="*", metavar="NAME=VALUE", help="a file, or an array as JSON")
        if name in ("bench", "check"):
            sub.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="size of a free dimension")
            sub.add_argument("--seed", type=int, help="seed for random inputs")
        if name == "bench":
            sub.add_argument("--runs", type=int, default=50, help="number of measured runs (default: 50)")
        if name == "run":
            _add_run_arguments(sub)

    sub = actions.add_parser("quantize", help="write a smaller graph and report how much its outputs differ")
    sub.set_defaults(action="quantize")
    sub.add_argument("model", help="model id, or path of a .onnx file")
    sub.add_argument("samples", nargs="*", metavar="NAME=FILE.npy", help="samples for an input, along the first axis")
    sub.add_argument("--to", required=True, choices=KINDS, help="number format of the weights")
    sub.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .onnx file to write")
    sub.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fallback", choices=get_args(Fallback), default="cpu", help="where to run if the device fails (default: cpu)"
    )
    parser.add_argument("--outputs", choices=("npy", "json"), default="npy", help="format (default: npy files)")
    parser.add_argument("--only", action="append", metavar="OUTPUT", help="return this output only; may be repeated")
    parser.add_argument("--each", action="store_true", help="run once for each entry along the inputs' first axis")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="folder for the files (default: .)")


def run(args: argparse.Namespace) -> int:
    """Return 0, also after a reported fallback; 1 after a failure or a difference that `check` finds."""
    from backend.models import Catalogue

    settings = settings_from(args)
    entry = _resolve_or_add(settings, args.model)
    if args.action == "inspect" and args.device is None:
        return _print_file_facts(Catalogue(settings), entry, args.json)
    if args.action == "quantize":
        return _quantize(settings, entry, args)
    return asyncio.run(_run_job(settings, entry, args))


def _resolve_or_add(settings: Settings, model: str) -> Entry:
    """Return the model for an id or a path. A file that is not yet a model is added. Raises UnknownModel."""
    from backend.models import Catalogue, registration

    catalogue = Catalogue(settings)
    if model in catalogue.entries():
        return catalogue.resolve(model)
    path = Path(model).expanduser()
    if not path.is_file():
        raise UnknownModel(
            f"Unknown model {model[:200]!r}.",
            f"Name an id that `{command('models')}` lists, or the path of a .onnx file.",
        )
    existing = [entry for entry in catalogue.entries().values() if entry.target == path.resolve()]
    if existing:
        return existing[0]
    entry = registration.add(catalogue, str(path.resolve()), None, "onnx", anywhere=True).entry
    print(f"added as {entry.id} (`{command(f'models remove {entry.id}')}` removes it)", file=sys.stderr)
    return entry


def _print_file_facts(catalogue: Catalogue, entry: Entry, as_json: bool) -> int:
    from backend.common.formats.onnx.graph import read_graph

    graph = read_graph(catalogue.path_of(entry)).as_data()
    print(json.dumps(graph, indent=2, ensure_ascii=False) if as_json else "\n".join(facts(graph)))
    return 0


def _quantize(settings: Settings, entry: Entry, args: argparse.Namespace) -> int:
    from backend.cli.progress_bar import ProgressBar
    from backend.models import Catalogue, conversion

    for _, file in map(_split_pair, args.samples):
        if Path(file).suffix != ".npy" or not Path(file).is_file():
            raise Validation(f"The .npy file {file[:100]!r} does not exist.", "Write NAME=FILE.npy for each input.")
    if cost := conversion.first_cost(settings):
        print(cost, file=sys.stderr, flush=True)
    source = Catalogue(settings).path_of(entry)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:

        async def show(progress: Progress) -> None:
            bar.show(progress)

        work = conversion.quantize(source, args.out.absolute(), args.to, args.samples, settings, show)
        result = asyncio.run(work)
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{args.out}: {result['bytes'] / 1e6:.2f} MB instead of {result['source_bytes'] / 1e6:.2f}")
    for name, output in result["outputs"].items():
        noise = "no difference" if output["snr_db"] is None else f"signal to noise {output['snr_db']:.1f} dB"
        print(f"{name}: maximum difference {output['difference']:.2g} of the largest value, {noise}")
    origin = "random: send your own for a meaningful comparison" if result["made_up"] else "yours"
    print(f"{result['samples']} samples, {origin}")
    return 0


def facts(graph: JsonObject) -> list[str]:
    """Return the result of `inspect` as lines."""
    sets = ", ".join(f"{domain} {version}" for domain, version in graph["operator_sets"].items())
    lines = [f"IR {graph['ir_version']}, operator sets {sets}, made by {graph['producer'] or 'an unnamed program'}"]
    for side in ("inputs", "outputs"):
        for slot in graph[side]:
            sizes = slot["shape"]
            shape = "?" if sizes is None else ", ".join("?" if size is None else str(size) for size in sizes)
            lines.append(f"{side[:-1]:7} {slot['name']}: {slot['type'] or slot['kind']} [{shape}]")
    lines.append("operators " + ", ".join(f"{name} × {count}" for name, count in graph["operators"].items()))
    if graph["custom_domains"]:
        lines.append(f"custom operators of {', '.join(graph['custom_domains'])}")
    lines.append(f"weights {graph['weight_bytes'] / 1e6:.1f} MB; about twice that in memory, plus the library")
    lines += [f"external {name}: {size / 1e6:.1f} MB" for name, size in graph["external"]]
    if "device" in graph:
        lines.append(f"{graph['device']}: {graph['evidence']}")
        lines += [f"elsewhere {name} × {count}" for name, count in graph["elsewhere"].items()]
        lines += [graph["why_elsewhere"]] if graph["why_elsewhere"] else []
    return lines


async def _run_job(settings: Settings, entry: Entry, args: argparse.Namespace) -> int:
    from backend.cli.client import connect
    from backend.cli.commands.music import save
    from backend.cli.job_follower import generate_with_progress
    from backend.cli.progress_bar import ProgressBar

    names = ("outputs", "only", "each", "runs", "seed")
    options = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    sizes = dict(map(_parse_size, getattr(args, "dim", [])))
    async with connect(settings) as client:
        pairs = map(_split_pair, getattr(args, "inputs", []))
        inputs = {name: await _send_or_parse(client, value) for name, value in pairs}
        body = {
            "task": "onnx",
            "model": entry.id,
            "device": args.device,
            "fallback": getattr(args, "fallback", "never"),
            "options": {"action": args.action, **options, **({"dimensions": sizes} if sizes else {})},
            **({"inputs": inputs} if inputs else {}),
        }
        with contextlib.closing(ProgressBar(sys.stderr)) as bar:
            last, job = await generate_with_progress(client, body, bar)
        for artifact in job["output"]["artifacts"]:
            await save(client, job["id"], artifact["name"], args.out)
            print(args.out / artifact["name"], file=sys.stderr if args.json else sys.stdout)
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    return _print_result(job, args) if last.event == "done" else 1


def _print_result(job: JsonObject, args: argparse.Namespace) -> int:
    result = json.loads(job["output"]["text"] or "{}")
    if args.json:
        print(json.dumps(job if args.action == "run" else result, indent=2, ensure_ascii=False))
    elif args.action == "inspect":
        print("\n".join(facts(result)))
    elif args.action == "bench":
        run, bare = result["run_ms"], result["bare_ms"]
        print(f"{run['median']:.3f} ms per run ({run['low']:.3f} to {run['high']:.3f}, {result['runs']} runs)")
        print(f"{bare['median']:.3f} ms with a bare session: {result['overhead']:+.1%}")
    elif args.action == "check":
        for output in result["outputs"]:
            difference = "another type" if output["difference"] is None else f"{output['difference']:.2g}"
            verdict = "same" if output["agrees"] else "DIFFERENT"
            print(f"{verdict}  {output['name']}: {difference} (limit {output['tolerance']})")
        if first := result["first_difference"]:
            print(f"the first that differs: {first['operator']} {first['node']!r}, output {first['name']}")
    if not args.json:
        print(receipt_line(job["receipt"]), file=sys.stderr)
    return 0 if result.get("agrees", True) or args.action != "check" else 1


def _split_pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raises Validation."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Validation(f"{text[:100]!r} is not an input.", "Write NAME=FILE or NAME=ARRAY.")
    return name, value


def _parse_size(text: str) -> tuple[str, int]:
    """Parse NAME=SIZE. Raises Validation."""
    name, value = _split_pair(text)
    if not value.isdigit():
        raise Validation(f"{value[:100]!r} is not a size.", "Write --dim NAME=SIZE with an integer.")
    return name, int(value)


async def _send_or_parse(client: Client, value: str) -> Any:
    """Return the id of the uploaded file if `value` is a path, else the array that it is as JSON. Raises Validation."""
    path = Path(value).expanduser()
    try:
        if path.is_file():
            return await client.send_file(path)
        return json.loads(value)
    except OSError as error:
        raise Validation(f"{path} cannot be read: {error.strerror}.", "Correct the path or its permissions.") from None
    except ValueError:
        raise Validation(
            f"{value[:100]!r} is neither a file nor JSON.", "Correct the path, or send an array."
        ) from None
