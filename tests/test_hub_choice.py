"""Which files of a repository are chosen, for layouts of public repositories, and the notes on the rest."""

from __future__ import annotations

import pytest

from backend.child.download.errors import Refused
from backend.child.download.hub_file_selection import Choice, choose

REPO = "maker/model"
TOKENIZER = ["tokenizer.json", "tokenizer_config.json"]


def chosen(names: list[str], asked: str | None = None, variant: str | None = None) -> Choice:
    return choose(dict.fromkeys(names, 1), asked, variant, REPO)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["m.Q2_K.gguf", "m.Q4_K_M.gguf", "m.Q8_0.gguf", "m.f16.gguf"], "m.Q4_K_M.gguf"),
        (["M-IQ2_XS.gguf", "M-Q5_K_M.gguf", "M-Q8_0.gguf"], "M-Q5_K_M.gguf"),
        (["m-q8_0.gguf", "m-fp16.gguf"], "m-q8_0.gguf"),
        (["m-BF16.gguf", "m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (["ggml-model-i2_s.gguf"], "ggml-model-i2_s.gguf"),
        (["mmproj-m-f16.gguf", "m-Q6_K.gguf", "m.imatrix.gguf"], "m-Q6_K.gguf"),
        (["BF16/m-BF16.gguf", "Q4_K_M/m-00001-of-00001.gguf"], "Q4_K_M/m-00001-of-00001.gguf"),
        (["m.gguf", "model.safetensors", "config.json", "onnx/model.onnx"], "m.gguf"),
        (["v2-q4_0.gguf", "deep/v2-q4_0.gguf"], "v2-q4_0.gguf"),
    ],
)
def test_the_usual_gguf(names: list[str], expected: str) -> None:
    found = chosen(names)
    assert (found.kind, found.path, found.files) == ("gguf", expected, (expected,))


def test_the_others_are_named_in_the_way_that_asks_for_them() -> None:
    said = chosen(["m.Q4_K_M.gguf", "m.Q8_0.gguf", "m.Q8_0.gguf.json"]).said
    assert said == f"Of the 2 GGUF models in {REPO}, m.Q4_K_M.gguf (0 MB) was selected. Others: hf:{REPO}:Q8_0."
    assert chosen(["m.Q4_K_M.gguf"]).said == ""


def test_parts_come_together_and_in_their_order() -> None:
    parts = [f"Q8_0/m-Q8_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    found = chosen([parts[2], "m-F16.gguf", parts[0], parts[1]], variant="Q8_0")
    assert (found.path, found.files) == (parts[0], tuple(parts))
    assert chosen([*parts], asked=parts[1]).files == tuple(parts)
    assert chosen([*parts], asked="Q8_0").files == tuple(parts), "a folder with one model"


def test_a_folder_for_genai_comes_whole_and_the_processor_s_first() -> None:
    names = [
        f"{folder}/{name}"
        for folder in ("gpu/gpu-int4", "cpu_and_mobile/cpu-int4")
        for name in ("genai_config.json", "model.onnx", "model.onnx.data", *TOKENIZER)
    ]
    found = chosen([*names, "README.md", "config.json", "cpu_and_mobile/cpu-int4/deep/other.onnx"])
    assert (found.kind, found.path) == ("onnx-genai", "cpu_and_mobile/cpu-int4")
    assert len(found.files) == 5 and all(name.startswith("cpu_and_mobile/cpu-int4/") for name in found.files)
    assert f"hf:{REPO}/gpu/gpu-int4" in found.said
    assert chosen(names, asked="gpu/gpu-int4").path == "gpu/gpu-int4"
    assert chosen(["genai_config.json", "model.onnx"]).path == ""


def test_safetensors_come_with_what_they_need_and_no_more() -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    names += ["config.json", "merges.txt", "tokenizer.model", "chat_template.jinja", *TOKENIZER]
    more = ["consolidated.safetensors", "pytorch_model.bin", "README.md", ".gitattributes", "original/params.json"]
    found = chosen([*names, *more])
    assert (found.kind, found.path, set(found.files)) == ("safetensors", "", set(names))


def test_plain_onnx() -> None:
    assert chosen(["onnx/model.onnx", "onnx/model_q4.onnx", "config.json"]).path == "onnx/model.onnx"
    assert chosen(["only.onnx"]).files == ("only.onnx",)
    assert chosen(["a/one.onnx", "b/two.onnx"], asked="b/two.onnx").path == "b/two.onnx"


@pytest.mark.parametrize(
    ("names", "asked", "variant", "expected"),
    [
        (["m.Q4_K_M.gguf", "m.Q8_0.gguf"], None, "Q3_K_L", "no GGUF file in Q3_K_L; it has Q4_K_M, Q8_0"),
        (["model.safetensors", "config.json"], None, "Q8_0", "has no GGUF files"),
        (["README.md"], "README.md", None, "is not a model file"),
        (["m.gguf"], "folder", None, "no file or folder folder"),
        (["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], None, None, "m-00002-of-00003.gguf is missing"),
        (["model.safetensors"], None, None, "no safetensors with a config.json"),
        (["pytorch_model.bin", "config.json"], None, None, "pickle files (pytorch_model.bin)"),
        (["a.onnx", "b.onnx"], None, None, "several ONNX files: a.onnx, b.onnx"),
        ([], None, None, "has no GGUF"),
    ],
)
def test_refusals(names: list[str], asked: str | None, variant: str | None, expected: str) -> None:
    with pytest.raises(Refused, match=expected.replace("(", r"\(").replace(")", r"\)")) as caught:
        chosen(names, asked, variant)
    assert caught.value.remedy
