"""`python -m tests.slow.musicgen PYTHON [DEVICE]`: MusicGen from the request to the file, on tiny models.

PYTHON is an interpreter with torch and transformers; DEVICE (default: cpu) one that it reaches. Models with random
weights are made with it, then the service runs with it. What they make is noise; told are lengths, seeds, progress,
cancels, refusals, evidence, and how far it is from transformers' own `generate`.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests.service import ROOT, Server, start_server, stream_events, wait_for

SECONDS, PROMPT = 1.2345, "slow fiddle, sad"
KINDS = ("mono", "stereo", "melody")
PHASES = ["encode", "generate", "decode"]
ASYNC = {"Prefer": "respond-async"}
SUFFIXES = ("wav", "flac", "mp3", "ogg")
# What transformers makes by itself of the same words, the likeliest codes alone.
GREEDY = """
import sys, torch, transformers, tokenizers, soundfile
folder, place, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = transformers.AutoConfig.from_pretrained(folder)
model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
ids = torch.tensor([tokenizers.Tokenizer.from_file(folder + "/tokenizer.json").encode(sys.argv[4]).ids])
hop, rate = 80, model.config.audio_encoder.sampling_rate
tokens = -(-frames // hop) + 3
sound = model.generate(
    input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, guidance_scale=3.0
)
soundfile.write(place, sound[0, :, :frames].numpy().T, rate, "FLOAT")
"""
# A song that does not fit, and the same worker's next one that does.
NO_ROOM = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from backend.engines import LoadRequest, _memory, load_engine
from backend.common.errors import OutOfMemory
from backend.tasks.songs.job import SongRequest
session = load_engine("musicgen").load(LoadRequest("cpu", sys.argv[2], 0, 1))
options = {"temperature": 1.0, "top_k": 250, "top_p": 1.0, "guidance_scale": 3.0}
composer, tell = session.composer, lambda *told: None
short, long = (SongRequest("fiddle", options, seconds * composer.rate) for seconds in (1, 30))
composer.compose(short, [1], tell)
data = _memory._data_bytes() + 15_000_000
resource.setrlimit(resource.RLIMIT_DATA, (data, data))
try:
    composer.compose(long, [1, 2, 3, 4], tell)
except OutOfMemory as error:
    print("refused:", error.detail, error.remedy)
print("then:", composer.compose(short, [1], tell).shape)
"""
_FAILED: list[str] = []


def main(python: str, device: str) -> int:
    """A line a check; 1 if any fails."""
    with tempfile.TemporaryDirectory() as home:
        subprocess.run([python, "-m", "tests.slow.tiny_musicgen", home], check=True, cwd=ROOT, capture_output=True)
        folders = {kind: Path(home) / f"tiny-musicgen-{kind}" for kind in KINDS}
        broken = dict(_broken(folders["mono"]))
        models = {name: {"path": str(place)} for name, place in {**folders, **broken}.items()}
        config = Path(home) / "config.json"
        settings = {"runtimes": {"torch": {"python": python}}, "models": models, "default_models": {"text": None}}
        config.write_text(json.dumps(settings))
        server = start_server(Path(home) / "data", "--config", str(config))
        try:
            found = server.http.get("/api/devices", params={"wait_s": 180}).json()["devices"]
            offered: list[str] = next((one["engines"] for one in found if one["id"] == device), [])
            _tell(f"{device} has the engine", "musicgen" in offered, found)
            for kind in KINDS:
                _song(server, kind, device)
                _greedy(server, python, folders[kind], kind, device)
            _melody(server, device)
            _refusals(server, device, broken)
        finally:
            server.stop()
        if device == "cpu":
            _no_room(python, folders["mono"])
    return 1 if _FAILED else 0


def _tell(what: str, good: bool, found: Any = "") -> None:
    if not good:
        _FAILED.append(what)
    print(f"{'ok  ' if good else 'FAIL'} {what} {found if not good else ''}".rstrip(), flush=True)


def _broken(source: Path) -> Iterator[tuple[str, Path]]:
    """Copies with a file cut short, with a tensor that is missing, with a setting that does not fit, without words."""
    for name in ("cut", "missing", "misfit", "wordless"):
        shutil.copytree(source, place := source.with_name(name))
        file, config = place / "model.safetensors", place / "config.json"
        data = file.read_bytes()
        if name == "cut":
            file.write_bytes(data[:-5000])
        elif name == "missing":
            length = int.from_bytes(data[:8], "little")
            text = data[8 : 8 + length].replace(b'"decoder.lm_heads.0.weight"', b'"decoder.xx_heads.0.weight"')
            file.write_bytes(data[:8] + text + data[8 + length :])
        elif name == "misfit":
            settings = json.loads(config.read_text())
            settings["decoder"]["ffn_dim"] = 72
            config.write_text(json.dumps(settings))
        else:
            (place / "tokenizer.json").unlink()
        yield name, place


def _body(kind: str, device: str, inputs: Any = None, **options: Any) -> dict[str, Any]:
    options = {"seconds": SECONDS, "seed": 5, **options}
    body = {"model": kind, "device": device, "fallback": "never", "prompt": PROMPT, "options": options}
    return {**body, **({"inputs": inputs} if inputs else {})}


def _sound(server: Server, job: dict[str, Any], name: str = "song.wav") -> tuple[Any, int]:
    """Its samples [frame, channel] and rate."""
    url = next(one["url"] for one in job["output"]["artifacts"] if one["name"] == name)
    with tempfile.NamedTemporaryFile(suffix=name) as file:
        file.write(server.http.get(url).content)
        file.flush()
        found: tuple[Any, int] = soundfile.read(file.name, always_2d=True)
        return found


def _song(server: Server, kind: str, device: str) -> None:
    events = list(stream_events(server, _body(kind, device, formats=list(SUFFIXES))))
    done = events[-1].data
    _tell(f"{kind}: a song", events[-1].event == "done", done)
    if events[-1].event != "done":
        return
    told = [event.data for event in events if event.event == "progress" and event.data["phase"] in PHASES]
    for phase in PHASES:
        counts = [one["done"] for one in told if one["phase"] == phase]
        ends = bool(counts) and counts[-1] == next(one["total"] for one in told if one["phase"] == phase)
        _tell(f"{kind}: {phase} goes on and ends", ends and counts == sorted(counts), counts)
    order = [phase for phase, _ in itertools.groupby(one["phase"] for one in told)]
    _tell(f"{kind}: phases in their order", order == PHASES, order)
    samples, rate = _sound(server, done)
    shape = (round(SECONDS * rate), 2 if kind == "stereo" else 1)
    for suffix in SUFFIXES:
        found = _sound(server, done, f"song.{suffix}")[0].shape
        _tell(f"{kind}: {suffix} has {shape[0]} samples of {shape[1]} channels", found == shape, found)
    receipt = done["receipt"]
    _tell(f"{kind}: all of it on {device}", receipt["used"] == device and receipt["placement"]["on_device"] == 1.0)
    print(f"       {receipt['placement']['evidence']}")
    print(f"       {receipt['times']['run_s']:.2f} s, {receipt['rate']}, {receipt['chosen']}")
    again = _sound(server, server.generate(**_body(kind, device)))[0]
    _tell(f"{kind}: the same seed again", np.array_equal(again, samples))
    other = _sound(server, server.generate(**_body(kind, device, seed=6)))[0]
    _tell(f"{kind}: another seed", not np.array_equal(other, samples))
    three = server.generate(**_body(kind, device, seed=4, variations=3))
    made = [_sound(server, three, f"song-{number}.wav")[0] for number in (1, 2, 3)]
    near = [float(np.abs(one - two).max()) for one, two in ((made[1], samples), (made[2], other))]
    at_once = three["receipt"]["chosen"]["at_once"]
    _tell(f"{kind}: {at_once} at once are those of their seeds, to {max(near):.1g}", max(near) < 1e-3, near)
    _cancelled(server, kind, device, receipt["worker_pid"])


def _cancelled(server: Server, kind: str, device: str, pid: int) -> None:
    body = _body(kind, device, seconds=30)
    sent = server.http.post("/api/generate", json=body, headers=ASYNC).json()

    def begun() -> bool:
        progress = server.job(sent["id"])["progress"] or {}
        return bool(progress.get("phase") == "generate" and progress["done"] > 1)

    wait_for(begun, 120)
    began = time.monotonic()
    server.http.post(f"/api/jobs/{sent['id']}/cancel")
    job = server.until(sent["id"], "cancelled", "error", "done")
    took = time.monotonic() - began
    _tell(f"{kind}: cancelled after {took:.2f} s", job["status"] == "cancelled", job)
    after = server.generate(**_body(kind, device))
    _tell(f"{kind}: the worker lives on", after["receipt"]["worker_pid"] == pid, after["receipt"]["worker_pid"])


def _greedy(server: Server, python: str, folder: Path, kind: str, device: str) -> None:
    """On another device or in other numbers one code may be another, and then all that follow."""
    samples, rate = _sound(server, server.generate(**_body(kind, device, temperature=0)))
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = [python, "-c", GREEDY, str(folder), file.name, str(round(SECONDS * rate)), PROMPT]
        said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode:
            _tell(f"{kind}: transformers by itself", False, said.stderr[-300:])
            return
        theirs = soundfile.read(file.name, always_2d=True)[0]
    off = float(np.abs(samples - theirs).max())
    if device == "cpu":
        _tell(f"{kind}: greedily what `generate` makes, to {off:.1g}", off < 1e-4, off)
    else:
        print(f"       {kind}: greedily off by {off:.2g} from the processor's `generate`, rms {np.std(theirs):.2g}")


def _melody(server: Server, device: str) -> None:
    made = {}
    for hertz in (220, 330):
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            soundfile.write(file.name, 0.5 * np.sin(2 * np.pi * hertz * np.arange(44_100 * 2) / 44_100), 44_100)
            sent = server.http.put("/api/files/tune.wav", content=Path(file.name).read_bytes()).json()
        made[hertz] = _sound(server, server.generate(**_body("melody", device, {"melody": sent["id"]})))[0]
        again = _sound(server, server.generate(**_body("melody", device, {"melody": sent["id"]})))[0]
        _tell(f"a melody at {hertz} Hz gives the same again", np.array_equal(made[hertz], again))
    alone = _sound(server, server.generate(**_body("melody", device)))[0]
    different = not np.array_equal(made[220], made[330]) and not np.array_equal(made[220], alone)
    _tell("another melody is another song", different)
    text = server.http.put("/api/files/tune.txt", content=b"no sound").json()
    _refused(server, "what is no sound", _body("melody", device, {"melody": text["id"]}), "validation_error")
    _refused(server, "a melody for mono", _body("mono", device, {"melody": text["id"]}), "validation_error")


def _refusals(server: Server, device: str, broken: dict[str, Path]) -> None:
    _refused(server, "more than 30 s", _body("mono", device, seconds=31), "validation_error")
    _refused(server, "lyrics", _body("mono", device, lyrics="la"), "unsupported_parameter")
    for name in broken:
        _refused(server, name, _body(name, device), "model_broken")


def _refused(server: Server, what: str, body: dict[str, Any], code: str) -> None:
    answer = server.generate(**body)
    print(f"       {what}: {answer.get('detail')} {answer.get('remedy')}")
    _tell(f"{what}: {code}", answer.get("code") == code, answer)


def _no_room(python: str, folder: Path) -> None:
    command = [python, "-c", NO_ROOM, str(ROOT), str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    print("      ", said.stdout.strip().replace("\n", "\n       "), said.stderr[-300:] if said.returncode else "")
    _tell("no room: out_of_memory with numbers", "refused: 4 songs of 30 s do not fit" in said.stdout)
    _tell("and a song after it", "then: (1, 1," in said.stdout)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], *(sys.argv[2:] or ["cpu"])))
