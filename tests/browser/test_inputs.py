"""The form of an ONNX graph: a field for each input, filled with an array or a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.test_look import DESK, PHONE, fits, violations
from tests.browser.touchstone_page import TouchstonePage
from tests.service import ROOT, Server

pytestmark = pytest.mark.browser


@pytest.fixture
def graph(touchstone: TouchstonePage, server: Server) -> Iterator[TouchstonePage]:
    files = [server.data_dir / "models" / f"{name}.onnx" for name in ("affine", "log")]
    for file in files:
        shutil.copy(ROOT / "tests" / "cases" / "onnx" / file.name, file)
    touchstone.open("?task=onnx&model=affine")
    expect(touchstone.page.get_by_label("Prompt", exact=True)).to_be_hidden()
    yield touchstone
    for file in files:
        file.unlink()


def test_an_array_is_typed_and_the_result_read(graph: TouchstonePage) -> None:
    page, field = graph.page, graph.page.get_by_label("x", exact=True)
    expect(page.locator("#input-0-hint")).to_have_text("float32 [rows, 3], as JSON or as a file.")
    field.fill("[[1, 2, 3]")
    graph.generate.click()
    assert field.evaluate("field => field.validationMessage").startswith("Invalid JSON")
    field.fill("[[1, 2, 3]]")
    page.get_by_label("Outputs", exact=True).select_option("json")
    graph.generate.click()
    graph.expect_end()
    expect(graph.status).to_contain_text("Done: 1 run in")
    expect(page.locator("#output")).to_have_text('{"y": [[17.0, 23.0]], "z/all": 6.0}')
    assert graph.job()["request"]["inputs"] == {"x": [[1, 2, 3]]}


def test_a_file_is_sent_once_and_another_model_has_fields_of_its_own(graph: TouchstonePage, tmp_path: Path) -> None:
    page = graph.page
    np.save(tmp_path / "x.npy", np.array([[0, 0, 1]], "float32"))
    page.get_by_label("File for x").set_input_files(tmp_path / "x.npy")
    graph.generate.click()
    graph.expect_end()
    first = graph.job()
    assert [artifact["name"] for artifact in first["output"]["artifacts"]] == ["y.npy", "z_all.npy"]
    page.get_by_label("Model", exact=True).select_option("log")
    expect(page.locator("#input-0-hint")).to_have_text("float32 [n], as JSON or as a file.")
    page.get_by_label("x", exact=True).fill("[1]")
    graph.generate.click()
    graph.expect_end()
    assert graph.job()["request"]["inputs"] == {"x": [1]}


def test_the_form_of_inputs_fits_and_is_accessible(graph: TouchstonePage) -> None:
    for size in (DESK, PHONE):
        graph.page.set_viewport_size(size)
        assert fits(graph.page) and violations(graph.page) == []
