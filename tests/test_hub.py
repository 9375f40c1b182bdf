"""Models from Hugging Face: the real `huggingface_hub` in a real child, with a server of the Hub's API."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.child import handle
from backend.common.config.settings import load_settings
from backend.common.errors import DiskFull, ModelBroken, ModelNotDownloaded, TouchstoneError, Validation
from backend.common.installation import ROOT
from backend.common.types import Model, Progress
from backend.models import Catalogue, download
from backend.models.registration import Addition, add, forget_if_nothing_came, remove, settle
from backend.models.sources import Source
from tests import tiny_genai
from tests.hub_server import COMMIT, HubServer, Repository
from tests.service import wait_for
from tests.test_gguf import FACTS, TEXT, gguf, part
from tests.test_safetensors import safetensors
from tests.test_songs import pipeline

CONTENT = gguf(tensors=3000)
OTHER = gguf([*FACTS, ("general.author", TEXT, "other")], tensors=3000)
HALF = len(CONTENT) // 2
LIMIT_S = 60
Get = Callable[[str], Model]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING")) or name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    files = {"README.md": b"# tiny", "tiny.Q4_K_M.gguf": CONTENT, "tiny.Q8_0.gguf": OTHER}
    with HubServer({"maker/model": Repository(files)}) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield served


@pytest.fixture
def catalogue(tmp_path: Path, hub: HubServer) -> Catalogue:
    return Catalogue(load_settings({}, {}, tmp_path), environ=os.environ)


async def ignore(progress: Progress) -> None:
    """Nobody looks."""


def fetched(addition: Addition, note: Any = ignore) -> dict[str, Any]:
    return asyncio.run(asyncio.wait_for(download.fetch(addition.entry, note), LIMIT_S))


@pytest.fixture
def get(catalogue: Catalogue) -> Get:
    """Adds a model, fetches it and gives it as the API shows it."""

    def whole(source: str) -> Model:
        addition = add(catalogue, source)
        settle(catalogue, addition.entry, fetched(addition))
        return catalogue.model(catalogue.resolve(addition.entry.id))

    return whole


def refusal(catalogue: Catalogue, source: str, kind: type[TouchstoneError]) -> str:
    addition = add(catalogue, source)
    with pytest.raises(TouchstoneError) as caught:
        fetched(addition)
    forget_if_nothing_came(catalogue, addition)
    assert type(caught.value) is kind, caught.value.detail
    assert addition.entry.id not in catalogue.entries(), "a mistyped source leaves no trace"
    return f"{caught.value.detail} {caught.value.remedy}"


def snapshot(tmp_path: Path) -> Path:
    return tmp_path / "hf/hub/models--maker--model/snapshots" / COMMIT


def test_a_repository_without_a_file_gives_its_usual_gguf_and_says_so(
    hub: HubServer, catalogue: Catalogue, tmp_path: Path
) -> None:
    addition = add(catalogue, "hf:maker/model")
    assert catalogue.model(addition.entry).state == "downloadable"
    seen: list[Progress] = []

    async def note(progress: Progress) -> None:
        seen.append(progress)

    came = fetched(addition, note)
    assert "tiny.Q4_K_M.gguf (" in came["said"] and "hf:maker/model:Q8_0" in came["said"]
    assert (seen[-1].done, seen[-1].total) == (len(CONTENT), len(CONTENT))
    settle(catalogue, addition.entry, came)
    model = catalogue.model(catalogue.resolve("model"))
    assert (model.state, model.bytes, model.source) == ("ready", len(CONTENT), "hf:maker/model")
    assert (model.engines[0], model.details["format"]) == ("llama.cpp", "gguf")
    assert catalogue.path_of(catalogue.resolve("model")) == snapshot(tmp_path) / "tiny.Q4_K_M.gguf"


def test_the_cache_is_as_the_library_makes_it(hub: HubServer, get: Get, tmp_path: Path) -> None:
    get("hf:maker/model:Q8_0")
    repository = tmp_path / "hf/hub/models--maker--model"
    assert (repository / "refs/main").read_text() == COMMIT
    ask = "import sys, huggingface_hub as h; print(h.hf_hub_download('maker/model', 'tiny.Q8_0.gguf'))"
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    found = subprocess.run([sys.executable, "-c", ask], env=environ, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).read_bytes() == OTHER, "another program finds it without the network"


def test_what_another_program_fetched_is_used_and_stays(
    hub: HubServer, get: Get, catalogue: Catalogue, tmp_path: Path
) -> None:
    ask = "import huggingface_hub as h; h.hf_hub_download('maker/model', 'tiny.Q4_K_M.gguf')"
    subprocess.run([sys.executable, "-c", ask], check=True)
    hub.asked.clear()
    assert get("hf:maker/model/tiny.Q4_K_M.gguf").state == "ready"
    assert hub.downloads() == []
    remove(catalogue, "tiny.q4_k_m")
    assert (snapshot(tmp_path) / "tiny.Q4_K_M.gguf").exists()


def test_removing_takes_out_what_was_brought_and_nothing_else(
    hub: HubServer, get: Get, catalogue: Catalogue, tmp_path: Path
) -> None:
    for source in ("hf:maker/model", "hf:maker/model:Q8_0", "hf:maker/model/tiny.Q4_K_M.gguf"):
        get(source)
    remove(catalogue, "model")
    assert (snapshot(tmp_path) / "tiny.Q4_K_M.gguf").exists(), "tiny.q4_k_m is the same file"
    remove(catalogue, "model-q8_0")
    blobs = tmp_path / "hf/hub/models--maker--model/blobs"
    assert sorted(path.name for path in snapshot(tmp_path).iterdir()) == ["tiny.Q4_K_M.gguf"]
    assert len([path for path in blobs.iterdir() if path.is_file()]) == 1
    assert set(catalogue.entries()) & {"model", "model-q8_0"} == set()


@pytest.mark.skipif(os.name != "posix", reason="kills with signal 9")
def test_a_killed_download_goes_on_where_it_was(hub: HubServer, get: Get, catalogue: Catalogue) -> None:
    hub.gate.clear()
    hub.gate_after = HALF
    addition = add(catalogue, "hf:maker/model")
    parts = catalogue.environ["HF_HOME"] + "/hub/models--maker--model/blobs/.fetch"
    pids: list[int] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        process = handle.spawn(python, arguments)
        pids.append(process.pid)
        return process

    async def half() -> None:
        task = asyncio.create_task(download.fetch(addition.entry, ignore, spawn))
        await asyncio.to_thread(wait_for, lambda: any(f.stat().st_size == HALF for f in Path(parts).rglob("*[0-9a-f]")))
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(TouchstoneError):
            await task

    asyncio.run(asyncio.wait_for(half(), LIMIT_S))
    forget_if_nothing_came(catalogue, addition)
    assert "model" in catalogue.entries(), "something came that can be gone on with"
    hub.gate.set()
    assert get("hf:maker/model").state == "ready"
    ranges = [asked.headers.get("Range") for asked in hub.asked if asked.origin == "cdn"]
    assert ranges == [None, f"bytes={HALF}-"]


def test_a_broken_line_is_gone_on_with(hub: HubServer, get: Get) -> None:
    hub.cuts = [HALF]
    assert get("hf:maker/model").state == "ready"
    assert hub.bytes_sent == len(CONTENT)


@pytest.mark.parametrize("asked", ["big", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"])
def test_all_parts_of_a_model_come(hub: HubServer, get: Get, asked: str) -> None:
    two = gguf([*FACTS, ("split.count", 2, 2)], tensors=3000)
    hub.repositories["maker/big"] = Repository({"big-00001-of-00002.gguf": two, "big-00002-of-00002.gguf": part(1, 2)})
    model = get("hf:maker/big" if asked == "big" else f"hf:maker/big/{asked}")
    assert (model.state, model.bytes, model.details["parts"]) == ("ready", len(two) + len(part(1, 2)), 2)


def test_a_folder_for_genai_comes_with_the_weights_that_its_graph_names(
    hub: HubServer, get: Get, catalogue: Catalogue, tmp_path: Path
) -> None:
    made = tiny_genai.make(tmp_path / "made")
    (made / "model.onnx").write_bytes(tiny_genai.graph(external="weights.bin"))
    (made / "weights.bin").write_bytes(bytes(64))
    files = {f"cpu/int4/{file.name}": file.read_bytes() for file in made.iterdir()}
    hub.repositories["maker/graph"] = Repository({**files, "cpu/int4/other.bin": b"\x80\x02"}, licence="mit")
    model = get("hf:maker/graph")
    assert (model.state, model.engines, model.licence) == ("ready", ["onnx-genai"], "mit")
    folder = catalogue.resolve("graph").target
    assert sorted(file.name for file in folder.iterdir()) == sorted(file.name for file in made.iterdir())
    remove(catalogue, "graph")
    assert not folder.exists() and not (tmp_path / "hf/hub/models--maker--graph").exists()


def test_safetensors_come_with_what_belongs_to_them(hub: HubServer, get: Get) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors({"a": ("BF16", 64)})}
    hub.repositories["maker/plain"] = Repository({**files, "tokenizer.json": b"{}", "pytorch_model.bin": b"\x80\x02"})
    model = get("hf:maker/plain")
    assert (model.details["format"], model.details["quantisation"]) == ("safetensors", "BF16")
    assert "pytorch_model.bin" not in " ".join(asked.path for asked in hub.asked if asked.method == "GET")


def test_a_part_that_the_repository_lacks_is_told_before_anything_comes(hub: HubServer, catalogue: Catalogue) -> None:
    hub.repositories["maker/big"] = Repository({"big-00001-of-00003.gguf": CONTENT, "big-00003-of-00003.gguf": OTHER})
    assert "big-00002-of-00003.gguf is missing" in refusal(catalogue, "hf:maker/big", ModelBroken)
    assert hub.downloads() == []


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: HubServer, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["maker/model"].token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    commands: list[bytes] = []
    spawn = handle.spawn

    def watched(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        process = spawn(python, arguments)
        for name in ("cmdline", "environ"):
            if (file := Path(f"/proc/{process.pid}/{name}")).exists():
                commands.append(file.read_bytes())
        return process

    monkeypatch.setattr(download.fetch, "__defaults__", (watched,))
    assert get("hf:maker/model").state == "ready"
    sent = {(asked.origin, asked.headers.get("Authorization")) for asked in hub.asked}
    assert sent == {("hub", "Bearer hf_secret"), ("cdn", None)}
    assert not any(b"hf_secret" in text for text in commands)


def test_the_token_that_the_library_keeps_is_used(hub: HubServer, get: Get, tmp_path: Path) -> None:
    hub.repositories["maker/model"].token = "hf_kept"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/token").write_text("hf_kept")
    assert get("hf:maker/model").state == "ready"


def test_offline_only_the_cache_is_asked(
    hub: HubServer, get: Get, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    get("hf:maker/model")
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get("hf:maker/model/tiny.Q4_K_M.gguf").state == "ready"
    said = refusal(catalogue, "hf:maker/model:Q8_0", ModelNotDownloaded)
    assert "HF_HUB_OFFLINE is set" in said and "Unset HF_HUB_OFFLINE" in said
    assert hub.asked == []


def test_offline_a_folder_of_which_a_part_is_cached_lacks_a_file(
    hub: HubServer, get: Get, catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    weights = {name: safetensors({name: ("BF16", 64)}) for name in names}
    index = json.dumps({"weight_map": dict(zip("ab", names, strict=True))}).encode()
    config = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()
    files = {"config.json": config, "model.safetensors.index.json": index, "tokenizer.json": b"{}", **weights}
    hub.repositories["maker/model"] = Repository(files)
    ask = f"import huggingface_hub as h; [h.hf_hub_download('maker/model', one) for one in {[*files][:-1]}]"
    subprocess.run([sys.executable, "-c", ask], check=True)
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        assert f"{names[1]} is missing" in refusal(catalogue, "hf:maker/model", ModelNotDownloaded)
    model = get("hf:maker/model")
    assert model.details["format"] == "safetensors"
    (snapshot(tmp_path) / names[1]).unlink()
    again = catalogue.model(catalogue.resolve(model.id))
    assert (again.state, again.reason) == ("downloadable", f"{again.name} is incomplete: {names[1]} is missing.")


def test_without_a_hub_the_cache_serves_and_says_so(hub: HubServer, get: Get, catalogue: Catalogue) -> None:
    get("hf:maker/model:Q8_0")
    hub.statuses = [503] * 4
    came = fetched(add(catalogue, "hf:maker/model/tiny.Q8_0.gguf"))
    assert "could not be reached" in came["said"]
    hub.statuses = [503] * 4
    assert "HTTP status 503" in refusal(catalogue, "hf:maker/model/other.gguf", ModelNotDownloaded)


def test_trouble_that_passes_is_waited_for(hub: HubServer, get: Get) -> None:
    hub.statuses = [429, 503]
    assert get("hf:maker/model").state == "ready"


def test_what_comes_other_than_announced_is_thrown_away(hub: HubServer, catalogue: Catalogue, tmp_path: Path) -> None:
    hub.swapped[hashlib.sha256(CONTENT).hexdigest()] = OTHER[: len(CONTENT)]
    assert "SHA-256" in refusal(catalogue, "hf:maker/model", ModelBroken)
    blobs = tmp_path / "hf/hub/models--maker--model/blobs"
    assert not [path for path in blobs.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_disk_that_is_too_small_is_told_before_anything_comes(
    hub: HubServer, catalogue: Catalogue, tmp_path: Path
) -> None:
    hub.repositories["maker/model"].files["tiny.Q4_K_M.gguf"] = b"x"
    hub.sizes["tiny.Q4_K_M.gguf"] = 10**16
    said = refusal(catalogue, "hf:maker/model", DiskFull)
    assert "10000000000 MB are needed" in said and "HF_HOME" in said
    assert hub.downloads() == []


@pytest.mark.parametrize(
    ("change", "token", "expected"),
    [
        ({"gated": True}, "", "Accept the licence at https://huggingface.co/maker/model, set HF_TOKEN"),
        ({"gated": True}, "hf_x", "Accept the licence at https://huggingface.co/maker/model, retry the download"),
        ({"token": "hf_y"}, "", "If it is private, set HF_TOKEN"),
        ({"token": "hf_y"}, "hf_x", "does not accept HF_TOKEN"),
        ({"commit": "f" * 40}, "", "has no revision 0123"),
    ],
)
def test_what_the_hub_refuses(
    hub: HubServer,
    catalogue: Catalogue,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    token: str,
    expected: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.repositories["maker/model"] = replace(hub.repositories["maker/model"], **change)
    source = f"hf:maker/model@{COMMIT}" if "commit" in change else "hf:maker/model"
    said = refusal(catalogue, source, ModelNotDownloaded)
    assert expected in said and "hf_x" not in said
    assert hub.downloads() == []


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("hf:maker/none", ModelNotDownloaded, "has no maker/none"),
        ("hf:maker/model/none.gguf", ModelNotDownloaded, "maker/model has no file none.gguf"),
        ("hf:maker/pickles", ModelBroken, "pickle files (pytorch_model.bin)"),
        ("hf:maker/a--b", Validation, "maker/a--b cannot be a repository"),
    ],
)
def test_what_a_repository_cannot_give(
    hub: HubServer, catalogue: Catalogue, source: str, kind: type[TouchstoneError], expected: str
) -> None:
    hub.repositories["maker/pickles"] = Repository({"config.json": b"{}", "pytorch_model.bin": b"\x80\x02"})
    assert expected in refusal(catalogue, source, kind)
    assert hub.downloads() == []


def test_a_server_that_is_no_hub_is_told(hub: HubServer, catalogue: Catalogue) -> None:
    hub.no_commit = True
    assert "Check HF_ENDPOINT" in refusal(catalogue, "hf:maker/model/tiny.Q8_0.gguf", ModelNotDownloaded)


def test_nobody_there_is_told(hub: HubServer, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said = refusal(catalogue, "hf:maker/model", ModelNotDownloaded)
    assert "cannot be reached" in said and "Check the network" in said


def test_names_that_lead_out_of_the_cache_are_not_followed(hub: HubServer, catalogue: Catalogue) -> None:
    hub.repositories["maker/model"].files = dict.fromkeys(["../../up.gguf", "a\\b.gguf", "/etc/x.gguf"], CONTENT)
    assert "no GGUF" in refusal(catalogue, "hf:maker/model", Validation)


def test_a_repository_of_an_own_server_needs_no_more_than_the_variables(hub: HubServer, tmp_path: Path) -> None:
    environ = {**os.environ, "TOUCHSTONE_DATA_DIR": str(tmp_path / "data")}
    words = [sys.executable, "-m", "backend", "models", "add", "hf:maker/model"]
    said = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "tiny.Q4_K_M.gguf (" in said.stdout and "model is ready." in said.stdout
    shutil.rmtree(tmp_path / "hf")
    listed = subprocess.run([*words[:-2], "--json"], cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    states = {model["id"]: model["state"] for model in json.loads(listed.stdout)["models"]}
    assert states["model"] == "downloadable", "another program emptied the cache"


def test_a_pipeline_comes_with_each_part_once_and_comes_back_without_network(
    hub: HubServer, catalogue: Catalogue, get: Get, tmp_path: Path
) -> None:
    made = pipeline(tmp_path / "made")
    files = {file.relative_to(made).as_posix(): file.read_bytes() for file in made.rglob("*") if file.is_file()}
    more = {
        "vae/diffusion_pytorch_model.fp16.safetensors": b"x",
        "vae/diffusion_pytorch_model.bin": b"x",
        "a.wav": b"x",
    }
    hub.repositories["maker/song"] = Repository({**files, **more}, licence="mit")
    model = get("hf:maker/song")
    assert (model.state, model.engines, model.licence) == ("ready", ["diffusers"], "mit")
    place = catalogue.resolve("song").target
    assert {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()} == set(files)
    hub.statuses = [503] * 50
    assert fetched(add(catalogue, "hf:maker/song"))["path"] == str(place)


def test_a_pipeline_that_makes_no_music_is_refused_before_its_weights_come(
    hub: HubServer, catalogue: Catalogue
) -> None:
    index = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
    files = {"model_index.json": json.dumps(index).encode(), "unet/config.json": b"{}", "unet/m.safetensors": CONTENT}
    hub.repositories["maker/images"] = Repository(files)
    assert "not supported for music" in refusal(catalogue, "hf:maker/images", ModelBroken)
    assert hub.bytes_sent < len(CONTENT)


def shipped_as(catalogue: Catalogue, **more: Any) -> str:
    """Let the catalogue ship the small model of the hub under the id of a text model; return the id."""
    id_ = "ministral-3-3b-instruct-2512"
    source = Source("hf", repo="maker/model", revision=COMMIT, member="tiny.Q4_K_M.gguf")
    facts = {"size_bytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest(), **more}
    entry = replace(catalogue.entries()[id_], source=source, **facts)
    catalogue._known[id_] = catalogue._shipped[id_] = entry
    return id_


def test_a_text_model_of_the_catalogue_is_fetched_at_its_revision_and_can_be_removed(
    hub: HubServer, catalogue: Catalogue, get: Get, tmp_path: Path
) -> None:
    id_ = shipped_as(catalogue)
    model = get(id_)
    assert (model.id, model.state, model.bytes, model.licence) == (id_, "ready", len(CONTENT), "Apache-2.0")
    assert model.details["publisher"] == "Mistral AI" and model.details["format"] == "gguf"
    assert catalogue.path_of(catalogue.resolve(id_)) == snapshot(tmp_path) / "tiny.Q4_K_M.gguf"
    assert {one.path for one in hub.asked if one.origin == "hub"} == {f"/maker/model/resolve/{COMMIT}/tiny.Q4_K_M.gguf"}
    again = Catalogue(load_settings({}, {}, tmp_path), environ=os.environ)
    shipped_as(again)
    assert again.model(again.resolve(id_)).state == "ready"
    remove(again, id_)
    assert again.model(again.resolve(id_)).state == "downloadable" and not snapshot(tmp_path).exists()


def test_a_file_that_is_not_the_one_of_the_catalogue_is_not_downloaded(
    hub: HubServer, catalogue: Catalogue, tmp_path: Path
) -> None:
    id_ = shipped_as(catalogue, sha256="0" * 64)
    with pytest.raises(ModelBroken) as caught:
        fetched(add(catalogue, id_))
    assert (
        hashlib.sha256(CONTENT).hexdigest() in caught.value.detail and "Nothing was downloaded" in caught.value.detail
    )
    assert "hf:maker/model/tiny.Q4_K_M.gguf" in caught.value.remedy and hub.bytes_sent == 0
    assert catalogue.model(catalogue.resolve(id_)).state == "downloadable"


def test_without_a_hash_in_the_catalogue_that_of_the_hub_is_checked(
    hub: HubServer, catalogue: Catalogue, get: Get
) -> None:
    id_ = shipped_as(catalogue, sha256=None, size_bytes=None)
    hub.swapped = {hashlib.sha256(CONTENT).hexdigest(): CONTENT[:-1] + b"?"}
    with pytest.raises(ModelBroken, match="SHA-256"):
        get(id_)
    hub.swapped = {}
    assert get(id_).state == "ready"
