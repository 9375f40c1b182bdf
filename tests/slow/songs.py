"""`python -m tests.slow.songs PYTHON [DEVICE [KIND …]]`: every pipeline of songs from the request to the file.

PYTHON is an interpreter with torch, diffusers and what the runtime `torch` has besides, DEVICE is cpu. Tiny models with
random weights are made with it, then the service runs with it. What they make is noise; told are lengths, seeds,
progress, cancels, refusals and receipts.
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

import soundfile

from tests.service import ROOT, Server, start_server, stream_events

SECONDS, STEPS = 1.2345, 4
PHASES = ["encode", "denoise", "decode"]
ASYNC = {"Prefer": "respond-async"}


def main(python: str, device: str, wanted: list[str]) -> int:
    """A line a check; 1 if any fails."""
    _BODY["device"] = device
    with tempfile.TemporaryDirectory() as home:
        folders = _made(python, Path(home) / "tiny", wanted)
        broken = dict(_broken(folders)) if "ace-step" in folders else {}
        models = {kind: {"path": str(place)} for kind, place in {**folders, **broken}.items()}
        config = Path(home) / "config.json"
        settings = {"runtimes": {_RUNTIME: {"python": python}}, "models": models, "default_models": {"text": None}}
        config.write_text(json.dumps(settings))
        server = start_server(Path(home) / "data", "--config", str(config))
        try:
            listed = server.http.get("/api/devices", params={"wait_s": 120}).json()["devices"]
            here = next((one for one in listed if one["id"] == device), {"engines": listed})
            _tell("the engine is there", "diffusers" in here["engines"], here)
            for kind in folders:
                _song(server, kind)
            for kind in broken:
                _refused(server, kind)
            if not wanted:
                _not_taken(server)
        finally:
            server.stop()
    return 1 if _FAILED else 0


_FAILED: list[str] = []
_RUNTIME = "torch"
_BODY: dict[str, Any] = {"fallback": "never", "prompt": "a slow waltz"}


def _tell(what: str, good: bool, found: Any = "") -> None:
    if not good:
        _FAILED.append(what)
    print(f"{'ok  ' if good else 'FAIL'} {what} {found if not good else ''}".rstrip(), flush=True)


def _made(python: str, folder: Path, wanted: list[str]) -> dict[str, Path]:
    command = [python, str(ROOT / "tests/slow/tiny_songs.py"), str(folder), *wanted]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: Path(place) for name, _, place in (line.partition(" ") for line in said.splitlines())}


def _broken(folders: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Copies with a file cut short, with a tensor that is missing, and with a setting that does not fit the weights."""
    source = folders["ace-step"]
    for name in ("cut", "missing", "misfit", "foreign"):
        shutil.copytree(source, place := source.with_name(name))
        file = place / "transformer" / "diffusion_pytorch_model.safetensors"
        if name == "cut":
            file.write_bytes(file.read_bytes()[:-5000])
        elif name == "missing":
            file.write_bytes(_without_one(file.read_bytes()))
        elif name == "misfit":
            settings = json.loads((place / "transformer/config.json").read_text())
            (place / "transformer/config.json").write_text(json.dumps({**settings, "hidden_size": 40}))
        else:
            index = json.loads((place / "model_index.json").read_text())
            (place / "model_index.json").write_text(json.dumps({**index, "_class_name": "StableDiffusionPipeline"}))
        yield name, place


def _without_one(data: bytes) -> bytes:
    """The file with its first tensor under another name."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = next(key for key in header if key != "__metadata__")
    header = {("other.weight" if key == name else key): value for key, value in header.items()}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _body(kind: str, **options: Any) -> dict[str, Any]:
    options = {"seconds": SECONDS, "steps": STEPS, "seed": 5, **options}
    return {"model": kind, **_BODY, "options": options}


def _sound(server: Server, job: dict[str, Any], name: str = "song.wav") -> tuple[Any, int]:
    """Its samples [frame, channel], and how many a second."""
    url = next(one["url"] for one in job["output"]["artifacts"] if one["name"] == name)
    with tempfile.NamedTemporaryFile(suffix=name) as file:
        file.write(server.http.get(url).content)
        file.flush()
        return soundfile.read(file.name, dtype="int16", always_2d=True)  # type: ignore[no-any-return]


def _alike(one: Any, other: Any) -> float:
    """How far two sounds are the same: 1 if they are, 0 if they have nothing in common."""
    first, second = one.astype(float), other.astype(float)
    return float((first * second).sum() / ((first**2).sum() * (second**2).sum()) ** 0.5)


def _song(server: Server, kind: str) -> None:
    events = list(stream_events(server, _body(kind, formats=["wav", "flac"])))
    done = events[-1].data
    _tell(f"{kind}: a song", events[-1].event == "done", done)
    if events[-1].event != "done":
        return
    told = [event.data for event in events if event.event == "progress" and event.data["phase"] in PHASES]
    for phase in PHASES:
        counts = [one["done"] for one in told if one["phase"] == phase]
        _tell(f"{kind}: {phase} goes on and ends", bool(counts) and counts == sorted(counts), counts)
    order = [phase for phase, _ in itertools.groupby(one["phase"] for one in told)]
    _tell(f"{kind}: phases in their order", order == PHASES, order)
    sound, rate = _sound(server, done)
    _tell(f"{kind}: {sound.shape} at {rate}", len(sound) == round(SECONDS * rate), sound.shape)
    _tell(f"{kind}: FLAC holds the same", (_sound(server, done, "song.flac")[0] == sound).all())
    receipt = done["receipt"]
    _tell(f"{kind}: on the device", receipt["placement"]["on_device"] == 1.0, receipt["placement"])
    print(f"       {receipt['placement']['evidence']}")
    print(f"       {receipt['phases']} {receipt['counts']} {receipt['rate']}")
    again = server.generate(**_body(kind))
    _tell(f"{kind}: the same seed again", (_sound(server, again)[0] == sound).all())
    other = server.generate(**_body(kind, seed=6))
    elsewhere = _sound(server, other)[0]
    _tell(f"{kind}: another seed, {_alike(elsewhere, sound):.3f} alike", (elsewhere != sound).any())
    three = server.generate(**_body(kind, seed=4, variations=3))
    names = [one["name"] for one in three["output"]["artifacts"]]
    _tell(f"{kind}: three variations", names == ["song-1.wav", "song-2.wav", "song-3.wav"], three["error"] or names)
    alike = _alike(_sound(server, three, "song-2.wav")[0], sound)
    at_once = three["receipt"]["chosen"]["at_once"]
    _tell(f"{kind}: of {at_once} at once the second is the seed's own, to {1 - alike:.1e}", alike > 0.99, alike)
    _cancelled(server, kind, receipt["worker_pid"])


def _cancelled(server: Server, kind: str, pid: int) -> None:
    sent = server.http.post("/api/generate", json=_body(kind, steps=900), headers=ASYNC).json()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        job = server.job(sent["id"])
        if (job["progress"] or {}).get("phase") == "denoise" and job["progress"]["done"] > 1:
            break
    began = time.monotonic()
    server.http.post(f"/api/jobs/{sent['id']}/cancel")
    job = server.until(sent["id"], "cancelled", "error", "done")
    took = time.monotonic() - began
    _tell(f"{kind}: cancelled after {took:.2f} s, {job['status']}", job["status"] == "cancelled", job)
    after = server.generate(**_body(kind))
    _tell(f"{kind}: the worker lives on", after["receipt"]["worker_pid"] == pid, after["receipt"]["worker_pid"])


def _refused(server: Server, kind: str) -> None:
    # One of another class is no model for songs, so it takes no options of theirs.
    body = _body(kind) if kind != "foreign" else {**_body(kind), "options": {}}
    answer = server.generate(**body)
    print(f"       {kind}: {answer.get('detail')} {answer.get('remedy')}")
    _tell(f"{kind}: model_broken in words", answer.get("code") == "model_broken", answer)


def _not_taken(server: Server) -> None:
    for kind, options in (
        ("stable-audio", {"lyrics": "la"}),
        ("ace-step", {"guidance_scale": 3}),
        ("ace-step", {"negative_prompt": "drums"}),
        ("longcat", {"seconds": 31}),
    ):
        answer = server.generate(**_body(kind, **options))
        print(f"       {answer.get('detail')} {answer.get('remedy')}")
        _tell(f"{kind}: {next(iter(options))} is refused", answer.get("status") == 422, answer)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu", sys.argv[3:]))
