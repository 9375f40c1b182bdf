"""Any ONNX graph: what it is, a run, how fast it is, how it agrees with the processor, a smaller one of it.

`onnx run MODEL x=photo.png scale='[[2.0]]' --device auto --out results` sends files, or arrays as JSON, by the names of
the graph's inputs. MODEL is an id, or the path of a .onnx file, which is then added to the models.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any, get_args

from backend.child.convert.quantization import KINDS
from backend.cli.commands.generate import receipt_line
from backend.cli.commands.music import save
from backend.cli.job_follower import generated
from backend.common.config.settings import Settings, load_settings
from backend.common.errors import UnknownModel, Validation, from_code
from backend.common.types import Fallback, Progress
from backend.models import Catalogue, Entry, registration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A verb for each thing that can be done with a graph."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, help_ in (
        ("inspect", "what the file says, and with --device which nodes the device takes"),
        ("run", "send inputs, get outputs"),
        ("bench", "milliseconds a run, beside a bare session of the library"),
        ("check", "compare with the processor; exit code 1 and the first node that differs if it is not the same"),
    ):
        sub = actions.add_parser(name, help=help_)
        sub.set_defaults(action=name)
        sub.add_argument("model", help="model id, or path of a .onnx file")
        sub.add_argument("--device", default=None if name == "inspect" else "auto", help="device id, alias, or auto")
        sub.add_argument("--json", action="store_true", help="print all that was found as JSON")
        if name != "inspect":
            sub.add_argument("inputs", nargs="*", metavar="NAME=VALUE", help="a file, or an array as JSON")
        if name in ("bench", "check"):
            sub.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="of an open side")
            sub.add_argument("--seed", type=int, help="for inputs that are made up")
        if name == "bench":
            sub.add_argument("--runs", type=int, default=50)
        if name == "run":
            sub.add_argument("--fallback", choices=get_args(Fallback), default="cpu")
            sub.add_argument("--outputs", choices=("npy", "json"), default="npy")
            sub.add_argument("--only", action="append", metavar="OUTPUT", help="may be given again")
            sub.add_argument("--each", action="store_true", help="run once for each entry along the first side")
            sub.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where the files go")

    sub = actions.add_parser("quantize", help="write a smaller graph, and say how far its outputs are apart")
    sub.set_defaults(action="quantize")
    sub.add_argument("model", help="model id, or path of a .onnx file")
    sub.add_argument("samples", nargs="*", metavar="NAME=FILE.npy", help="one more side in front: entries are samples")
    sub.add_argument("--to", required=True, choices=KINDS)
    sub.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .onnx file to write")
    sub.add_argument("--json", action="store_true", help="print all that was found as JSON")


def run(args: argparse.Namespace) -> int:
    """0 also after a stated fallback, 1 after a stated failure or a difference that `check` found."""
    settings = load_settings({"config": args.config})
    entry = _entry(settings, args.model)
    if args.action == "inspect" and args.device is None:
        return _tell_file(Catalogue(settings), entry, args.json)
    if args.action == "quantize":
        return _quantize(settings, entry, args)
    return asyncio.run(_job(settings, entry, args))


def _entry(settings: Settings, model: str) -> Entry:
    """The model of an id or a path; a file that no folder holds is added for good. Raises UnknownModel."""
    catalogue = Catalogue(settings)
    if model in catalogue.entries():
        return catalogue.resolve(model)
    path = Path(model).expanduser()
    if not path.is_file():
        raise UnknownModel(
            f"There is no model {model[:200]!r}.", "Name an id of `models`, or the path of a .onnx file."
        )
    known = [entry for entry in catalogue.entries().values() if entry.target == path.resolve()]
    if known:
        return known[0]
    entry = registration.add(catalogue, str(path.resolve()), None, "onnx", anywhere=True).entry
    print(f"added as {entry.id} (`models remove {entry.id}` forgets it)", file=sys.stderr)
    return entry


def _tell_file(catalogue: Catalogue, entry: Entry, as_json: bool) -> int:
    from backend.common.formats.onnx.graph import read_graph

    found = read_graph(catalogue.path_of(entry)).as_data()
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(facts(found)))
    return 0


def _quantize(settings: Settings, entry: Entry, args: argparse.Namespace) -> int:
    from backend.cli.progress_bar import ProgressBar
    from backend.models import conversion

    for _, file in map(_pair, args.samples):
        if Path(file).suffix != ".npy" or not Path(file).is_file():
            raise Validation(f"{file[:100]!r} is no .npy file that is there.", "Write NAME=FILE.npy for each input.")
    if first := conversion.first_cost(settings):
        print(first, file=sys.stderr, flush=True)
    source = Catalogue(settings).path_of(entry)
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:

        async def show(progress: Progress) -> None:
            bar.show(progress)

        work = conversion.quantize(source, args.out.absolute(), args.to, args.samples, settings, show)
        found = asyncio.run(work)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"{args.out}: {found['bytes'] / 1e6:.2f} MB instead of {found['source_bytes'] / 1e6:.2f}")
    for name, apart in found["outputs"].items():
        noise = "no difference" if apart["snr_db"] is None else f"signal to noise {apart['snr_db']:.1f} dB"
        print(f"{name}: apart by {apart['difference']:.2g} of the largest number at most, {noise}")
    made_up = "made up: send some of your own to judge by" if found["made_up"] else "yours"
    print(f"{found['samples']} samples, {made_up}")
    return 0


def facts(found: dict[str, Any]) -> list[str]:
    """What `inspect` found, in lines."""
    sets = ", ".join(f"{domain} {version}" for domain, version in found["operator_sets"].items())
    lines = [f"IR {found['ir_version']}, operator sets {sets}, made by {found['producer'] or 'a program of no name'}"]
    for side in ("inputs", "outputs"):
        for slot in found[side]:
            sides = (
                "?"
                if slot["shape"] is None
                else ", ".join("?" if each is None else str(each) for each in slot["shape"])
            )
            lines.append(f"{side[:-1]:7} {slot['name']}: {slot['type'] or slot['kind']} [{sides}]")
    lines.append("operators " + ", ".join(f"{name} × {count}" for name, count in found["operators"].items()))
    if found["custom_domains"]:
        lines.append(f"own operators of {', '.join(found['custom_domains'])}")
    lines.append(f"weights {found['weight_bytes'] / 1e6:.1f} MB; in memory about twice that beside the library")
    lines += [f"outside {name}: {size / 1e6:.1f} MB" for name, size in found["external"]]
    if "device" in found:
        lines.append(f"{found['device']}: {found['evidence']}")
        lines += [f"elsewhere {name} × {count}" for name, count in found["elsewhere"].items()]
        lines += [found["why_elsewhere"]] if found["why_elsewhere"] else []
    return lines


async def _job(settings: Settings, entry: Entry, args: argparse.Namespace) -> int:
    from backend.cli.client import connect
    from backend.cli.progress_bar import ProgressBar

    names = ("outputs", "only", "each", "runs", "seed")
    options = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    sizes = dict(map(_size, getattr(args, "dim", [])))
    async with connect(settings) as client:
        inputs = {name: await _input(client, value) for name, value in map(_pair, getattr(args, "inputs", []))}
        body = {
            "task": "onnx",
            "model": entry.id,
            "device": args.device,
            "fallback": getattr(args, "fallback", "never"),
            "options": {"action": args.action, **options, **({"dimensions": sizes} if sizes else {})},
            **({"inputs": inputs} if inputs else {}),
        }
        with contextlib.closing(ProgressBar(sys.stderr)) as bar:
            last, job = await generated(client, body, bar)
        for artifact in job["output"]["artifacts"]:
            await save(client, job["id"], artifact["name"], args.out)
            print(args.out / artifact["name"], file=sys.stderr if args.json else sys.stdout)
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    return _tell(job, args) if last.event == "done" else 1


def _tell(job: dict[str, Any], args: argparse.Namespace) -> int:
    said = json.loads(job["output"]["text"] or "{}")
    if args.json:
        print(json.dumps(job if args.action == "run" else said, indent=2, ensure_ascii=False))
    elif args.action == "inspect":
        print("\n".join(facts(said)))
    elif args.action == "bench":
        run, bare = said["run_ms"], said["bare_ms"]
        print(f"{run['median']:.3f} ms a run ({run['low']:.3f} to {run['high']:.3f}, {said['runs']} runs)")
        print(f"{bare['median']:.3f} ms with a bare session: {said['overhead']:+.1%}")
    elif args.action == "check":
        for each in said["outputs"]:
            difference = "of another kind" if each["difference"] is None else f"{each['difference']:.2g}"
            print(
                f"{'same' if each['agrees'] else 'DIFFERENT'}  {each['name']}: {difference} (limit {each['tolerance']})"
            )
        if first := said["first_difference"]:
            print(f"the first that differs: {first['operator']} {first['node']!r}, output {first['name']}")
    if not args.json:
        print(receipt_line(job["receipt"]), file=sys.stderr)
    return 0 if said.get("agrees", True) or args.action != "check" else 1


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise Validation(f"{text[:100]!r} is no input.", "Write NAME=FILE or NAME=ARRAY.")
    return name, value


def _size(text: str) -> tuple[str, int]:
    name, value = _pair(text)
    if not value.isdigit():
        raise Validation(f"{value[:100]!r} is no size.", "Write --dim NAME=SIZE with a whole number.")
    return name, int(value)


async def _input(client: Any, value: str) -> Any:
    """The id of a file that was sent, or the array that the text is."""
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
