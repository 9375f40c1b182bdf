"""Who may import whom, what may be imported at module level, and where a backend's name may stand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backend.devices import backends
from tests.service import ROOT

BACKEND = ROOT / "backend"
FILES = sorted(BACKEND.rglob("*.py"))
ENGINE_LIBRARIES = {"torch", "onnxruntime", "onnxruntime_genai", "xllamacpp", "numpy", "transformers", "openvino"}
FOREIGN = (
    "types.py",
    "errors.py",
    "faults.py",
    "handfuls.py",
    "cgroups.py",
    "checkpoint.py",
    "gguf/",
    "inventory/",
    "machine.py",
    "making.py",
    "moments.py",
    "onnxfile.py",
    "onnxwriter.py",
    "onnxgraph.py",
    "protobuf.py",
    "regular.py",
    "seeds.py",
    "templates/",
    "devices/",
    "engines/",
    "lyrics/",
    "child/",
    "convert/",
)
COMPUTING = ("music/", "songs/", "soundfiles/", "stems/")  # with NumPy, in children
# From the lowest layer to the highest; a file may import its own layer and those before it.
LAYERS = (
    ("types errors moments faults handfuls redact libraries seeds"),
    ("cgroups diskroom making onnxwriter protobuf regular soundfiles"),
    ("checkpoint filenames gguf machine music onnxfile onnxgraph problems settings templates"),
    ("songs stems"),
    ("inventory"),
    ("launcher"),
    ("devices engines lyrics"),
    ("child convert"),
    ("strict options children oomkills power provider_options ranking resolving catalogue datafolder token_file"),
    ("errands"),
    ("runtimes"),
    ("artifacts caches inbox keptfile"),
    ("requests damage reserve tables jobids store lanes logs schema feed sleepwatch"),
    ("deaths quarantine hardware downloads conversions replay jobs bench"),
    ("probes"),
    ("workers"),
    ("pool receipts fitting turns"),
    ("book taking ways"),
    ("running"),
    ("spreading"),
    ("upkeep"),
    ("admission background maintenance metrics reports"),
    ("housekeeping measuring"),
    ("core"),
    ("manager"),
    ("api client bar following"),
    ("app connections"),
    ("serving"),
    ("doctor"),
    ("verbs"),
    ("cli __main__"),
)


def layer(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if module in names.split())


def place(file: Path) -> str:
    return file.relative_to(BACKEND).as_posix()


def imports(file: Path, everywhere: bool = True) -> set[str]:
    """Absolute names imported by a file: anywhere, or at module level outside TYPE_CHECKING alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "backend"}
    return found


def test_the_layers_name_every_module() -> None:
    modules = {place(file).split("/")[0].removesuffix(".py") for file in FILES} - {"__init__"}
    assert modules == {name for names in LAYERS for name in names.split()}


@pytest.mark.parametrize("file", FILES, ids=place)
def test_imports_go_one_way(file: Path) -> None:
    own = place(file).split("/")[0].removesuffix(".py")
    if own == "__init__":
        return
    for name in imports(file, everywhere=False):
        parts = name.split(".")
        if parts[0] == "backend" and len(parts) > 1 and parts[1] != "__version__":
            assert layer(parts[1]) <= layer(own), f"{place(file)} may not import {name}"


@pytest.mark.parametrize("file", [file for file in FILES if place(file).startswith(FOREIGN)], ids=place)
def test_what_runs_in_foreign_environments_imports_the_standard_library_alone(file: Path) -> None:
    for name in imports(file, everywhere=False):
        root = name.split(".")[0]
        assert root in sys.stdlib_module_names or root == "backend", f"{place(file)} imports {name}"
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))


@pytest.mark.parametrize("file", [file for file in FILES if place(file).startswith(COMPUTING)], ids=place)
def test_music_can_be_read_by_the_oldest_python_of_a_runtime(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))


@pytest.mark.parametrize("file", [f for f in FILES if not place(f).startswith((*FOREIGN, *COMPUTING))], ids=place)
def test_no_engine_is_imported_outside_children(file: Path) -> None:
    if place(file).startswith("bench/direct"):  # programs of their own, started like a child
        return
    assert not {name.split(".")[0] for name in imports(file)} & ENGINE_LIBRARIES


def test_importing_the_whole_server_loads_no_engine() -> None:
    code = "import sys, backend.serving, backend.client; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not set(loaded.split()) & ENGINE_LIBRARIES


@pytest.mark.parametrize("name", sorted(backends()))
def test_a_backend_s_name_stands_in_its_own_file_alone(name: str) -> None:
    # "cpu" is the fallback policy's word, and CUDA's the one that means ROCm on AMD machines.
    allowed = {"cpu": None, "cuda": {"resolving.py"}, "rocm": {"resolving.py"}}.get(name, set())
    if allowed is None:
        return
    word = re.compile(rf"""["']{re.escape(name)}["']""")
    # The training program is run by hand and speaks torch's own names for devices.
    served = [file for file in FILES if not place(file).startswith("music/train/")]
    places = {place(file) for file in served if word.search(file.read_text(encoding="utf-8"))}
    own = "devices/" + name.replace("-", "_") + ".py"
    assert places - allowed - {file for file in places if file.startswith("devices/")} == set()
    assert own in places


@pytest.mark.parametrize("file", FILES, ids=place)
def test_files_stay_small(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 300, f"{place(file)} has {len(lines)} lines: split it"
    assert ast.get_docstring(ast.parse("\n".join(lines))), f"{place(file)} has no docstring"
