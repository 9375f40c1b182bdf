"""The compile cache: one folder per card, driver and runtime, deleted when unused."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backend.common import compile_cache
from backend.devices import backends, has_compile_cache, onnx_place
from tests.service import ROOT


def test_another_driver_gets_another_folder(tmp_path: Path) -> None:
    subject = ("onnx-tensorrt:0", "pci:0000:01:00.0", "driver 1", {"onnxruntime": "1"}, "/python")
    first = compile_cache.cache_for(tmp_path, *subject)
    assert Path(first).is_dir() and first == compile_cache.cache_for(tmp_path, *subject)
    assert first != compile_cache.cache_for(tmp_path, *subject[:2], "driver 2", *subject[3:])


def test_what_is_compiled_for_a_backend_is_kept_where_something_can_be() -> None:
    assert all(has_compile_cache(name) for name in ("cuda", "rocm", "onnx-tensorrt"))
    assert not any(has_compile_cache(name) for name in ("cpu", "directml", "mps"))


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert compile_cache.cache_for(tmp_path, "x") == ""


def test_what_is_not_used_goes(tmp_path: Path) -> None:
    old, used = (Path(compile_cache.cache_for(tmp_path, name)) for name in ("old", "used"))
    os.utime(old, (0, 0))
    assert compile_cache.sweep(tmp_path, time.time() - 60) == 1
    assert not old.exists() and used.exists()
    assert compile_cache.sweep(tmp_path / "nothing", time.time()) == 0


def test_providers_that_compile_are_told_where_and_the_user_wins(tmp_path: Path) -> None:
    seen: list[Any] = []
    place = onnx_place("cpu")
    library = SimpleNamespace(
        __version__=place.onnxruntime.__version__,
        SessionOptions=place.onnxruntime.SessionOptions,
        InferenceSession=lambda source, sess_options, providers, enable_fallback: seen.append(dict(providers[0][1])),
    )
    for name in ("onnx-tensorrt", "onnx-openvino", "onnx-coreml"):
        facts = backends()[name].onnx
        assert facts is not None
        here = replace(place, onnxruntime=library, provider_facts=facts, cache=str(tmp_path), provider="P")
        here.session(ROOT / "tests" / "cases" / "onnx" / "affine.onnx")
    assert seen[0]["trt_engine_cache_path"] == seen[1]["cache_dir"] == seen[2]["ModelCacheDirectory"] == str(tmp_path)
    replace(here, options={"ModelCacheDirectory": "mine"}).session(b"")
    assert seen[3]["ModelCacheDirectory"] == "mine"
