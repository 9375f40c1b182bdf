"""The engine `adapter`: a user's file runs in the user's interpreter, with packages that the service lacks."""

from __future__ import annotations

import io
import json
import re
import site
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile

from backend.common.config.settings import load_settings
from backend.common.errors import Configuration, ModelBroken
from backend.models.entries import configured_models
from backend.tasks.options.songs import check_defaults, song_options
from backend.tasks.songs.adapter import read_adapter
from tests.refusals import refused
from tests.service import ROOT, Server, start_server, stream_events, wait_for

RATE = 8_000
PACKAGE = '''
"""Stands in for a music package: sines, whose pitch follows from words and seed."""
import time
import numpy
__version__ = "1.2.3"
class Model:
    def sing(self, words, seed, samples, rate, step):
        if words == "deaf":
            time.sleep(600)
        if words == "exit":
            raise SystemExit(3)
        if words == "wrong":
            raise ValueError("no such words")
        if words == "full":
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        count = 200 if words == "long" else 4
        for number in range(count):
            try:
                step(number + 1, count)
            except Exception:
                pass  # as packages do that go on whatever a callback says
            time.sleep(0.02)
        samples //= 2 if words == "short" else 1
        hertz = 200 + 10 * len(words) + seed % 100
        tone = 0.3 * numpy.sin(2 * numpy.pi * hertz * numpy.arange(samples) / rate)
        if words == "letters":
            return [["a"] * samples] * 2
        return numpy.stack([tone, -tone]) * (numpy.nan if words == "none" else 1)
'''
ADAPTER = """
import os
from pathlib import Path

import songbox

ADAPTER = {
    "title": "Songbox",
    "rate": 8000,
    "channels": 2,
    "takes": ["lyrics", "guidance_scale"],
    "defaults": {"seconds": 2, "guidance_scale": 4},
    "longest_s": 60,
    "licence": "CC0-1.0",
    "packages": ["songbox"],
}
Path(__file__).with_name("ran").write_text(str(os.getpid()))


def load(device, threads):
    print("a package that prints", device, threads)
    return songbox.Model()


def generate(model, wish, progress):
    def step(done, total):
        progress("singing", done, total, "steps")
    samples = model.sing(wish["prompt"], wish["seed"], wish["frames"] + 100, 8000, step)
    return samples, 44100 if wish["prompt"] == "fast" else 8000
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("adapter")
    venv.create(home / "env", with_pip=False)
    packages = next((home / "env").glob("lib/python*/site-packages"))
    (packages / "songbox.py").write_text(PACKAGE)
    (packages / "songbox-1.2.3.dist-info").mkdir()
    (packages / "songbox-1.2.3.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: songbox\nVersion: 1.2.3\n")
    (packages / "beside.pth").write_text("\n".join(site.getsitepackages()))  # NumPy, soundfile, ONNX Runtime
    (home / "songbox_adapter.py").write_text(ADAPTER)
    (home / "page").mkdir()
    (home / "page/adapter.py").write_text(_example())
    venv.create(home / "bare", with_pip=False)
    interpreters = {"songbox": home / "env/bin/python", "bare": home / "bare/bin/python"}
    settings = {
        "runtimes": {name: {"python": str(python)} for name, python in interpreters.items()},
        "models": {
            "songs": {"path": "songbox_adapter.py", "engine": "adapter", "runtime": "songbox"},
            "astray": {"path": "songbox_adapter.py", "engine": "adapter", "runtime": "bare"},
            "page": {"path": "page/adapter.py", "engine": "adapter", "runtime": "songbox"},
        },
        "default_models": {"text": None},
        "supervision": {"cancel_s": 1},
    }
    (home / "config.json").write_text(json.dumps(settings))
    started = start_server(home / "data", "--config", str(home / "config.json"))
    wait_for(lambda: "adapter" in _cpu(started)["engines"], 60)
    yield started
    started.stop()


def _example() -> str:
    """Return the adapter of docs/adapters.md."""
    page = (ROOT / "docs/adapters.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- file: my_model/adapter.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found
    return found[1]


def _cpu(server: Server) -> dict[str, Any]:
    devices = server.http.get("/api/devices", params={"wait_s": 30}).json()["devices"]
    return next(device for device in devices if device["id"] == "cpu")


def song(server: Server, prompt: str, model: str = "songs", **options: Any) -> dict[str, Any]:
    return server.generate(model=model, prompt=prompt, options={"seed": 5, **options})


def sound(server: Server, job: dict[str, Any], name: str = "song.wav") -> Any:
    url = next(one["url"] for one in job["output"]["artifacts"] if one["name"] == name)
    return soundfile.read(io.BytesIO(server.http.get(url).content), always_2d=True)[0]


def test_the_server_reads_what_it_says_and_runs_nothing(server: Server) -> None:
    models = {model["id"]: model for model in server.http.get("/api/models").json()["models"]}
    shown = models["songs"]
    assert shown["name"] == "Songbox" and shown["licence"] == "CC0-1.0" and shown["state"] == "ready"
    assert shown["task"] == "music" and shown["engines"] == ["adapter"]
    fields = shown["options_schema"]["properties"]
    assert set(fields) == {"lyrics", "guidance_scale", "seconds", "variations", "seed", "formats"}
    assert fields["guidance_scale"]["default"] == 4 and fields["seconds"]["anyOf"][0]["maximum"] == 60
    answer = server.http.post("/api/generate", json={"model": "songs", "prompt": "x", "options": {"steps": 3}})
    refused(answer, 422, "unsupported_parameter")
    assert not Path(shown["source"]).with_name("ran").exists()


def test_a_song_of_the_other_environment_with_what_is_known_of_it(server: Server) -> None:
    events = list(
        stream_events(server, {"model": "songs", "prompt": "a tune", "options": {"seconds": 1.2345, "seed": 5}})
    )
    job = events[-1].data
    assert events[-1].event == "done", job
    steps = [event.data["done"] for event in events if event.event == "progress" and event.data["phase"] == "singing"]
    assert steps == sorted(steps) and steps[-1] == 4
    assert sound(server, job).shape == (round(1.2345 * RATE), 2)
    receipt = job["receipt"]
    assert receipt["engine"] == "adapter" and receipt["runtime"] == "songbox"
    assert receipt["used"] is None and receipt["fell_back"] is None and receipt["placement"]["on_device"] is None
    assert "has no function tensors" in receipt["placement"]["evidence"]
    assert receipt["versions"]["songbox"] == "1.2.3" and receipt["rate"]["unit"] == "× real time"
    assert receipt["chosen"]["guidance_scale"] == 4 and receipt["chosen"]["adapter"] == "songbox_adapter.py"
    ran = Path(job["receipt"]["model_file"]).name
    assert ran == "songbox_adapter.py" and receipt["worker_pid"] != server.process.pid


def test_seeds_and_variations(server: Server) -> None:
    first, again, other = (sound(server, song(server, "a tune", seed=seed)) for seed in (5, 5, 6))
    assert (first == again).all() and (first != other).any()
    job = song(server, "a tune", variations=2, formats=["flac"])
    assert (sound(server, job, "song-1.flac") == first).all() and (sound(server, job, "song-2.flac") == other).all()


def test_a_cancel_ends_it_also_where_a_package_swallows_exceptions(server: Server) -> None:
    pid = song(server, "a tune")["receipt"]["worker_pid"]
    sent = _begun(server, "long")
    server.http.post(f"/api/jobs/{sent}/cancel")
    assert server.until(sent, "cancelled", "done", "error")["status"] == "cancelled"
    assert song(server, "a tune")["receipt"]["worker_pid"] == pid


def test_one_that_does_not_hear_a_cancel_is_killed_after_its_grace(server: Server) -> None:
    sent = _begun(server, "deaf")
    server.http.post(f"/api/jobs/{sent}/cancel")
    job = server.until(sent, "cancelled", "done", "error")
    assert job["status"] == "cancelled"
    after = song(server, "a tune")
    assert after["status"] == "done" and after["receipt"]["worker_pid"] != job["receipt"]["worker_pid"]


def _begun(server: Server, prompt: str) -> str:
    body = {"model": "songs", "prompt": prompt, "options": {"seed": 1}}
    sent = server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"}).json()
    wait_for(lambda: server.job(sent["id"])["output"].get("text"), 60)  # said just before the adapter is called
    return str(sent["id"])


@pytest.mark.parametrize(
    ("prompt", "code", "word"),
    [
        ("short", "model_broken", "of 2 s"),
        ("fast", "model_broken", "at 44100 Hz, but declares 2 channels at 8000 Hz"),
        ("full", "out_of_memory", "Tried to allocate 20.00 GiB"),
        ("none", "worker_crashed", "NaN"),
        ("letters", "model_broken", "samples that are not numbers"),
        ("wrong", "worker_crashed", "songbox_adapter.py failed to make a song: ValueError: no such words"),
        ("exit", "worker_crashed", "songbox_adapter.py failed to make a song: SystemExit: 3"),
    ],
)
def test_what_it_gives_is_judged(server: Server, prompt: str, code: str, word: str) -> None:
    answer = song(server, prompt)
    assert answer["code"] == code and word in answer["detail"], answer
    assert song(server, "a tune")["status"] == "done"


def test_the_example_of_the_page_is_one(server: Server) -> None:
    job = song(server, "anything", "page", seconds=1)
    assert job["status"] == "done", job
    assert sound(server, job).shape == (44_100, 1) and sound(server, job).std() > 0.01


def test_an_environment_that_reaches_no_device_is_named(server: Server) -> None:
    body = {"model": "astray", "prompt": "a tune", "fallback": "never"}
    problem = refused(server.http.post("/api/generate", json=body), 422, "model_incompatible")
    assert (
        "runs only in your environment bare" in problem["detail"]
        and "`python -m backend runtimes` shows" in problem["remedy"]
    )


def test_none_comes_in_over_http(server: Server) -> None:
    for name in ("songbox_adapter.py", str(server.data_dir.parent / "songbox_adapter.py")):
        answer = server.http.post("/api/models", json={"source": name})
        assert answer.status_code in (404, 422), answer.text


GOOD = """ADAPTER = {"rate": 8000, "channels": 1}
def load(device, threads): ...
def generate(model, wish, progress): ...
"""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def load(:", "is not valid Python"),
        (GOOD.replace("def load", "def lode"), "has no function load"),
        (GOOD.replace("ADAPTER = ", "OTHER = "), "has no declaration ADAPTER"),
        (GOOD.replace("8000", "int('8000')"), "has no declaration ADAPTER"),
        (GOOD.replace("8000", "'fast'"), "ADAPTER['rate'] should be int"),
        (GOOD.replace('"rate": 8000, ', ""), "ADAPTER['rate'] should be int"),
        (GOOD.replace('"channels": 1', '"channels": 99'), "99 channels at 8000 Hz are not supported"),
        (GOOD.replace("}", ', "takes": ["volume"]}'), "songs have no option 'volume'"),
        (GOOD.replace("}", ', "colour": 1}'), "unknown key 'colour'"),
        (GOOD.replace("8000", "10**9"), "has no declaration ADAPTER"),
        (GOOD.replace("8000", "1000000000"), "1 channels at 1000000000 Hz are not supported"),
        (GOOD.replace("}", ", []: 1}"), "has no declaration ADAPTER"),
        (GOOD.replace("}", ', "longest_s": 0}'), "longest_s is 0; it must be positive"),
        (GOOD.replace("}", ', "longest_s": 1e999}'), "has a value that JSON cannot represent"),
        (GOOD.replace("}", ', "title": "\\ud800"}'), "has a value that JSON cannot represent"),
        (
            GOOD.replace("}", ', "takes": ["steps"], "defaults": {"steps": 3j}}'),
            "has a value that JSON cannot represent",
        ),
        (GOOD.replace("}", ', "defaults": {"steps": 3}}'), "has a default for steps, which it does not take"),
        ("x = " + "-" * 100_000 + "1", "adapter.py is n"),
        ("x = '\udcff'", "cannot be read"),
    ],
)
def test_what_is_no_adapter_is_refused_with_the_reason(text: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "adapter.py"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ModelBroken) as caught:
        read_adapter(file)
    assert word in caught.value.detail, caught.value.detail


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ('"defaults": {"seconds": -5}', "seconds: input should be greater than 0"),
        ('"defaults": {"seconds": "long"}', "seconds: input should be a valid number"),
        ('"defaults": {"seconds": 90}, "longest_s": 60', "the default length is 90 s, the maximum 60 s"),
    ],
)
def test_what_it_takes_by_itself_has_to_be_a_songs(facts: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "adapter.py"
    file.write_text(GOOD.replace("}", f", {facts}}}"))
    kind = read_adapter(file).kind
    for ask in (lambda: check_defaults(kind), lambda: song_options(kind, "a tune", {})):
        with pytest.raises(ModelBroken) as caught:
            ask()
        assert word in caught.value.detail, caught.value.detail


def test_a_whole_one_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    found = read_adapter(file)
    assert (found.rate, found.channels, found.memory_bytes, found.licence) == (8000, 1, None, None)
    assert found.kind.title == "mine" and found.kind.defaults == {"seconds": 30} and not found.kind.takes
    file.write_text(GOOD.replace("}", ', "longest_s": 12}'))
    assert read_adapter(file).kind.defaults == {"seconds": 12}


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ({"engine": "adapter"}, "not set"),
        ({"engine": "adapter", "runtime": "absent"}, "absent"),
        ({"engine": "adapter", "runtime": "torch"}, "torch"),
        ({"runtime": "mine"}, "for the engine adapter only"),
    ],
)
def test_an_adapter_names_the_environment_that_runs_it(model: dict[str, str], word: str, tmp_path: Path) -> None:
    runtimes = {name: {"python": "/usr/bin/python3"} for name in ("mine", "torch")}
    facts = {"runtimes": runtimes, "models": {"songs": {"path": "a.py", **model}}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(Configuration, match=word):
        configured_models(load_settings({"config": str(tmp_path / "config.json")}, {}, tmp_path))
