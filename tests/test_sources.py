"""What may be named as a model's source, how it is read, and what is said of the rest."""

from __future__ import annotations

import urllib.request
from dataclasses import replace

import pytest

from backend.child.download.errors import Refused
from backend.child.download.network import Net, inwardness
from backend.common.errors import TouchstoneError
from backend.models import Source
from backend.models.sources import as_data, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://Models.Example/a%20b.gguf", "https://models.example/a%20b.gguf"),
        (
            " https://models.example:8443/größe 音.gguf#top ",
            "https://models.example:8443/gr%C3%B6%C3%9Fe%20%E9%9F%B3.gguf",
        ),
        ("https://bücher.example/x.gguf", "https://xn--bcher-kva.example/x.gguf"),
        ("http://127.0.0.1:8080/x.gguf", "http://127.0.0.1:8080/x.gguf"),
        ("http://[::1]:8080/x.gguf", "http://[::1]:8080/x.gguf"),
        ("https://models.example/x.gguf?key=secret", "https://models.example/x.gguf"),
        ("hf:maker/model/x.gguf", "hf:maker/model/x.gguf"),
        ("hf://maker/model/deep/x.gguf@main", "hf:maker/model/deep/x.gguf"),
        ("HF:maker/model/x.gguf@refs/pr/3", "hf:maker/model/x.gguf@refs/pr/3"),
        ("https://huggingface.co/maker/model/blob/main/deep/x%20y.gguf?download=true", "hf:maker/model/deep/x y.gguf"),
        ("https://hf.co/maker/model/resolve/v1.0/x.gguf", "hf:maker/model/x.gguf@v1.0"),
        ("https://huggingface.co/maker/model/raw/main/x.gguf", "hf:maker/model/x.gguf"),
        ("hf:maker/model", "hf:maker/model"),
        ("hf:maker/model@v1.0", "hf:maker/model@v1.0"),
        ("hf:maker/model:q4_k_m@main", "hf:maker/model:Q4_K_M"),
        ("hf:maker/model/cpu/int4", "hf:maker/model/cpu/int4"),
        ("hf:maker/model/x-00002-of-00003.gguf", "hf:maker/model/x-00002-of-00003.gguf"),
        ("https://huggingface.co/maker/model", "hf:maker/model"),
        ("https://huggingface.co/maker/model/tree/main/cpu/int4", "hf:maker/model/cpu/int4"),
        ("https://huggingface.co/maker/model/tree/v1.0", "hf:maker/model@v1.0"),
        ("https://models.example/x-00001-of-00003.gguf", "https://models.example/x-00001-of-00003.gguf"),
    ],
)
def test_sources(text: str, expected: str) -> None:
    source = parse(text)
    assert source and str(source) == expected
    assert Source(**as_data(source)) == source


@pytest.mark.parametrize("text", ["smollm2", "sub/x.gguf", "/abs/x.gguf", "C:\\models\\x.gguf", "\\\\host\\x.gguf"])
def test_ids_and_paths_are_no_addresses(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://models.example/x.gguf", "plain http"),
        ("http://10.0.0.1/x.gguf", "plain http"),
        ("https://user:secret@models.example/x.gguf", "name or password"),
        ("https:///x.gguf", "names no host"),
        ("https://models.example:port/x.gguf", "not a valid web address"),
        ("https://[::1/x.gguf", "not a valid web address"),
        ("ftp://models.example/x.gguf", "ftp:// is not a source"),
        ("s3://bucket/x.gguf", "s3:// is not a source"),
        ("https://models.example/", "not a .gguf file"),
        ("https://models.example/x.safetensors", "not a .gguf file"),
        ("https://models.example/pytorch_model.bin", "pickle"),
        ("hf:maker/model/model.PT", "pickle"),
        ("https://models.example/x-00002-of-00003.gguf", "several parts"),
        ("https://models.example/x-00001-of-99999.gguf", "several parts"),
        ("hf:maker/model/x-00004-of-00003.gguf", "cannot be a part"),
        ("https://models.example/x.gguf.part1of2", "cut by hand"),
        ("hf:maker", "not a model on Hugging Face"),
        ("hf:maker/model/../../x.gguf", "not a model on Hugging Face"),
        ("hf:maker/model/a//x.gguf", "not a model on Hugging Face"),
        ("hf:ma ker/model/x.gguf", "not a model on Hugging Face"),
        ("hf:maker/model/x.gguf@a b", "not a model on Hugging Face"),
        ("hf:maker/model:Q4 K", "not a model on Hugging Face"),
        ("hf:maker/model/x.gguf:Q4_0", "not a model on Hugging Face"),
        ("hf:maker/model/model.safetensors", "weights alone"),
        ("https://huggingface.co/maker", "not a model on Hugging Face"),
        ("https://huggingface.co/maker/model/discussions", "a page of Hugging Face"),
        ("https://huggingface.co/maker/model/discussions/3", "a page of Hugging Face"),
        ("https://models.example/x\n.gguf", "control characters"),
        ("https://models.example/x.gguf\0", "control characters"),
    ],
)
def test_refusals(text: str, expected: str) -> None:
    with pytest.raises(TouchstoneError) as caught:
        parse(text)
    assert expected in caught.value.detail
    assert caught.value.code in ("validation_error", "model_broken")
    assert "secret" not in caught.value.detail + caught.value.remedy
    assert caught.value.remedy


def test_the_addresses_of_all_parts() -> None:
    source = parse("https://models.example/a/x-00001-of-00002.gguf?key=1")
    assert source and source.addresses() == [
        "https://models.example/a/x-00001-of-00002.gguf?key=1",
        "https://models.example/a/x-00002-of-00002.gguf?key=1",
    ]


def test_what_came_of_a_source_is_no_other_source() -> None:
    source = parse("hf:maker/model:Q8_0")
    assert source and source.file_name == "model-Q8_0"
    assert replace(source, path="/x", commit="abc", brought=["x"], licence="mit").asked == source


@pytest.mark.parametrize(
    ("host", "depth"),
    [
        ("93.184.216.34", 0),
        ("models.example", 0),
        ("2606:2800:220:1::1", 0),
        ("10.1.2.3", 1),
        ("192.168.0.1", 1),
        ("169.254.169.254", 1),
        ("100.64.0.1", 1),
        ("fd00::1", 1),
        ("fe80::1%eth0", 1),
        ("::ffff:10.0.0.1", 1),
        ("127.0.0.1", 2),
        ("127.9.9.9", 2),
        ("[::1]", 2),
        ("::ffff:127.0.0.1", 2),
        ("0.0.0.0", 2),
        ("localhost", 2),
        ("Evil.LOCALHOST.", 2),
    ],
)
def test_how_far_inside_an_address_lies(host: str, depth: int) -> None:
    assert inwardness(host) == depth


def net(url: str, token: str | None = None) -> tuple[Net, urllib.request.Request]:
    return Net(url, token, 1.0), urllib.request.Request(url, headers={"Range": "bytes=5-"})


@pytest.mark.parametrize(
    "target",
    [
        "http://models.example/x.gguf",
        "https://127.0.0.1/x.gguf",
        "https://localhost/x.gguf",
        "https://10.0.0.1/x.gguf",
        "https://169.254.169.254/latest",
        "https://[::1]/x.gguf",
    ],
)
def test_a_public_source_does_not_lead_inwards(target: str) -> None:
    opened, request = net("https://models.example/x.gguf")
    opened.reached("93.184.216.34")
    with pytest.raises(Refused, match="not followed"):
        opened.turned(request, target)


def test_a_name_that_turns_out_to_lie_inside_is_found_out_when_it_is_reached() -> None:
    opened, request = net("https://models.example/x.gguf")
    opened.reached("93.184.216.34")
    assert opened.turned(request, "https://files.example/x.gguf").full_url == "https://files.example/x.gguf"
    with pytest.raises(Refused, match="a private network"):
        opened.reached("10.0.0.1")
    with pytest.raises(Refused, match="this very machine"):
        opened.reached("127.0.0.1")


def test_a_private_source_may_lead_to_its_neighbours_and_outwards_but_not_back() -> None:
    opened, request = net("https://models.corp.example/x.gguf")
    opened.reached("10.0.0.1")
    opened.turned(request, "https://10.0.0.2/x.gguf")
    opened.reached("10.0.0.2")
    opened.turned(request, "https://cdn.example/x.gguf")
    opened.reached("93.184.216.34")
    with pytest.raises(Refused):
        opened.turned(request, "https://10.0.0.2/x.gguf")


def test_the_range_goes_along_and_the_token_only_home() -> None:
    opened, request = net("https://models.example/x.gguf", "hf_secret")
    opened.reached("93.184.216.34")
    home = opened.turned(request, "https://models.example/y.gguf")
    away = opened.turned(request, "https://files.example/x.gguf")
    assert (home.get_header("Range"), away.get_header("Range")) == ("bytes=5-", "bytes=5-")
    assert home.get_header("Authorization") == "Bearer hf_secret"
    assert away.get_header("Authorization") is None


def test_plain_http_is_for_this_machine_alone() -> None:
    with pytest.raises(Refused):
        net("http://models.example/x.gguf")
    net("http://127.0.0.1:1/x.gguf")
