"""Rules of the code: allowed imports, module-level imports, and where names of backends may occur."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from backend.devices import backends
from backend.engines import engines
from tests.service import ROOT

BACKEND = ROOT / "backend"
FILES = sorted(BACKEND.rglob("*.py"))
ENGINE_LIBRARIES = {"torch", "onnxruntime", "onnxruntime_genai", "xllamacpp", "numpy", "transformers", "openvino"}
ROOMS = {"cli", "server", "manager", "jobs", "scheduling", "models", "runtimes", "child", "engines"}
ROOMS |= {"devices", "tasks", "common"}
# What other interpreters import. `tasks` may use NumPy, and its options pydantic in the server.
LOWER = ("child/", "engines/", "devices/", "tasks/", "common/")
STANDARD_LIBRARY = ("child/", "engines/", "devices/", "common/")
UNTYPED_LIMIT = 80  # how often `dict[str, Any]` may be written: JsonObject, and what libraries leave untyped
PROGRAMS = ("cli/bench/harness/", "tasks/music/tools/")  # started by hand or as a child, never imported by the server


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


def module_name(file: Path) -> str:
    """Return the dotted name of a file below `backend/`."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports: at module level, in functions, and for type checking."""
    modules = {module_name(file): file for file in FILES}
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {member if member in modules else node.module for member in members}
        graph[name] = (imported & set(modules)) - {name}
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports directly or through others."""
    seen: set[str] = set()
    pending = [start]
    while pending:
        for name in graph[pending.pop()] - seen:
            seen.add(name)
            pending.append(name)
    return seen


def test_no_module_imports_itself_through_others() -> None:
    graph = import_graph()
    reach = {name: reachable(graph, name) for name in graph}
    cyclic = [name for name in graph if name in reach[name]]
    cycles = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in cyclic}
    assert cycles == set(), "break these import cycles"


def test_backend_holds_the_twelve_rooms_and_nothing_else() -> None:
    entries = {entry.name for entry in BACKEND.iterdir() if entry.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "__main__.py"}


def test_the_order_of_the_rooms_names_each_of_them() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = settings["contracts"][0]["layers"]
    assert {name.strip().removeprefix("backend.") for layer in layers for name in layer.split("|")} == ROOMS


@pytest.mark.parametrize("file", [f for f in FILES if place(f).startswith(STANDARD_LIBRARY)], ids=place)
def test_what_workers_import_needs_the_standard_library_alone(file: Path) -> None:
    if place(file).startswith("common/config/"):  # the server's
        return
    for name in imports(file, everywhere=False):
        root = name.split(".")[0]
        assert root in sys.stdlib_module_names or root == "backend", f"{place(file)} imports {name}"


@pytest.mark.parametrize("file", [file for file in FILES if place(file).startswith(LOWER)], ids=place)
def test_what_workers_import_parses_as_the_oldest_python_of_a_runtime(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))


@pytest.mark.parametrize("file", [f for f in FILES if not place(f).startswith((*LOWER, *PROGRAMS))], ids=place)
def test_no_engine_is_imported_outside_children(file: Path) -> None:
    assert not {name.split(".")[0] for name in imports(file)} & ENGINE_LIBRARIES


def test_importing_the_whole_server_loads_no_engine() -> None:
    code = "import sys, backend.server.process, backend.cli.client"
    code += "; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not set(loaded.split()) & ENGINE_LIBRARIES


def test_json_without_types_is_left_at_the_borders_alone() -> None:
    counts = {place(file): file.read_text(encoding="utf-8").count("dict[str, Any]") for file in FILES}
    assert sum(counts.values()) <= UNTYPED_LIMIT, {name: count for name, count in counts.items() if count}
    typed_rooms = ("scheduling/", "manager/", "server/")
    untyped = [name for name, count in counts.items() if count and name.startswith(typed_rooms)]
    assert not untyped, f"use a dataclass, a TypedDict, or JsonObject for JSON of unknown shape: {untyped}"


def test_the_service_does_not_import_the_training_and_sound_bank_tools() -> None:
    tools = "backend.tasks.music.tools"
    service = [file for file in FILES if not place(file).startswith("tasks/music/tools/")]
    importers = [place(file) for file in service if any(f"{name}.".startswith(f"{tools}.") for name in imports(file))]
    assert not importers


@pytest.mark.parametrize("name", sorted(backends()))
def test_a_backend_s_name_stands_in_its_own_file_alone(name: str) -> None:
    # "cpu" is the fallback policy's word, and CUDA's the one that means ROCm on AMD machines.
    allowed = {
        "cpu": None,
        "cuda": {"scheduling/device_resolution.py"},
        "rocm": {"scheduling/device_resolution.py"},
    }.get(name, set())
    if allowed is None:
        return
    word = re.compile(rf"""["']{re.escape(name)}["']""")
    # The training program is run by hand and speaks torch's own names for devices.
    served = [file for file in FILES if not place(file).startswith("tasks/music/tools/")]
    places = {place(file) for file in served if word.search(file.read_text(encoding="utf-8"))}
    own = "devices/" + name.replace("-", "_") + ".py"
    assert places - allowed - {file for file in places if file.startswith("devices/")} == set()
    assert own in places


# A library's name is not its engine's: devices and the converter speak of torch, ONNX Runtime and transformers.
LIBRARIES_OF_THEIR_NAME = {"torch", "onnxruntime"}
OTHER_MEANINGS = {
    "transformers": {"child/convert/library_steps.py", "tasks/songs/diffusers_folder.py", "engines/musicgen.py"},
    "diffusers": {"tasks/songs/diffusers_folder.py"},  # the library
    "onnx-genai": {"devices/cpu.py"},  # which engine a former name of the device means
    "adapter": {"common/formats/gguf/purposes.py", "models/stores/ollama.py"},  # a LoRA adapter
    "llama.cpp": {"models/sources.py"},  # the program, whose downloads are listed
}


@pytest.mark.parametrize("name", sorted(set(engines()) - LIBRARIES_OF_THEIR_NAME))
def test_an_engine_s_name_stands_in_its_own_file_alone(name: str) -> None:
    word = re.compile(rf"""(["']){re.escape(name)}\1""")
    served = [file for file in FILES if not place(file).startswith(("tasks/music/tools/", "cli/bench/"))]
    places = {place(file) for file in served if word.search(file.read_text(encoding="utf-8"))}
    own = "engines/" + re.sub(r"[.-]", "_", name) + ".py"
    assert places - OTHER_MEANINGS.get(name, set()) == {own}


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_file_says_what_it_holds_and_its_functions_stay_small(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{place(file)} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 70, f"{place(file)}: {node.name} has {lines} lines: split it"
