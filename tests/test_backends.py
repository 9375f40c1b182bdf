"""The interface of backend files: typed fields, required libraries, and no import cycles below them."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from backend.common.device_api import Backend, OnnxProvider
from backend.devices import backends, libraries, mechanism
from tests.service import ROOT

FACTS: dict[str, Any] = {"name": "x", "label": "X", "kind": "gpu", "rank": 1, "runtimes": ("base",)}


def module_name(path: Path) -> str:
    """Return the dotted name of a module of this repository."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_by_module(*rooms: str) -> dict[str, set[str]]:
    """Return the imports between the modules of these rooms, including imports in functions and for types."""
    paths = {module_name(path): path for room in rooms for path in (ROOT / "backend" / room).rglob("*.py")}
    imports: dict[str, set[str]] = {}
    for name, path in paths.items():
        nodes = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
        ]
        targets = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        targets |= {str(node.module) for node in nodes if f"{node.module}.{node.names[0].name}" not in paths}
        imports[name] = {target for target in targets if target in paths and target != name}
    return imports


def test_a_misspelled_field_is_an_error_at_import() -> None:
    fields: dict[str, Any] = {"compiles_shape": True}
    with pytest.raises(TypeError, match="compiles_shape"):
        OnnxProvider(names=("x",), **fields)


def test_a_backend_without_a_library_is_an_error() -> None:
    with pytest.raises(ValueError, match="set onnx, torch or ggml"):
        Backend(**FACTS)


def test_every_library_of_a_backend_has_a_mechanism() -> None:
    for name, backend in backends().items():
        for library in backend.libraries:
            assert library in libraries() and hasattr(mechanism(name, library), "enumerate_devices")
    with pytest.raises(KeyError, match="torch does not reach vulkan"):
        mechanism("vulkan", "torch")


def test_no_module_of_common_and_devices_imports_itself_through_others() -> None:
    imports = imports_by_module("common", "devices")
    assert "backend.devices._registry" in imports["backend.devices"]
    assert list(TopologicalSorter(imports).static_order())  # raises CycleError with the modules of a cycle
