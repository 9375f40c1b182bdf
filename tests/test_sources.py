"""Sources of models: which texts are valid, how they are parsed, and the errors for the rest."""

from __future__ import annotations

import os
import ssl
from dataclasses import replace

import httpx
import pytest

from backend.child.download.errors import Refused
from backend.child.download.http_errors import RemoteFile, explain_network
from backend.child.download.network import DownloadClient, HopGuard, address_scope, proxy_for
from backend.common.errors import TouchstoneError
from backend.models.sources import as_data, from_data, parse
from tests.file_server import FileServer


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
    assert from_data(as_data(source)) == source


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
        ("ftp://models.example/x.gguf", "ftp:// is not a supported source"),
        ("s3://bucket/x.gguf", "s3:// is not a supported source"),
        ("https://models.example/", "not a .gguf file"),
        ("https://models.example/x.safetensors", "not a .gguf file"),
        ("https://models.example/pytorch_model.bin", "pickle"),
        ("hf:maker/model/model.PT", "pickle"),
        ("https://models.example/x-00002-of-00003.gguf", "several parts"),
        ("https://models.example/x-00001-of-99999.gguf", "several parts"),
        ("hf:maker/model/x-00004-of-00003.gguf", "is not a valid part"),
        ("https://models.example/x.gguf.part1of2", "one part of a manually split file"),
        ("hf:maker", "not a model on Hugging Face"),
        ("hf:maker/model/../../x.gguf", "not a model on Hugging Face"),
        ("hf:maker/model/a//x.gguf", "not a model on Hugging Face"),
        ("hf:ma ker/model/x.gguf", "not a model on Hugging Face"),
        ("hf:maker/model/x.gguf@a b", "not a model on Hugging Face"),
        ("hf:maker/model:Q4 K", "not a model on Hugging Face"),
        ("hf:maker/model/x.gguf:Q4_0", "not a model on Hugging Face"),
        ("hf:maker/model/model.safetensors", "has only weights"),
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
    assert replace(source, path="/x", commit="abc", downloaded_files=["x"], licence="mit").asked == source


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
    assert address_scope(host) == depth


def guard(url: str) -> HopGuard:
    return HopGuard(httpx.URL(url))


def redirect(opened: HopGuard, target: str) -> None:
    opened.check_redirect(httpx.URL("https://models.example/x.gguf"), httpx.URL(target))


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
    opened = guard("https://models.example/x.gguf")
    opened.check_connection("93.184.216.34")
    with pytest.raises(Refused, match="not followed"):
        redirect(opened, target)


def test_a_name_that_turns_out_to_lie_inside_is_found_out_when_it_is_reached() -> None:
    opened = guard("https://models.example/x.gguf")
    opened.check_connection("93.184.216.34")
    redirect(opened, "https://files.example/x.gguf")
    with pytest.raises(Refused, match="a private network"):
        opened.check_connection("10.0.0.1")
    with pytest.raises(Refused, match="this machine"):
        opened.check_connection("127.0.0.1")


def test_a_private_source_may_lead_to_its_neighbours_and_outwards_but_not_back() -> None:
    opened = guard("https://models.corp.example/x.gguf")
    opened.check_connection("10.0.0.1")
    redirect(opened, "https://10.0.0.2/x.gguf")
    opened.check_connection("10.0.0.2")
    redirect(opened, "https://cdn.example/x.gguf")
    opened.check_connection("93.184.216.34")
    with pytest.raises(Refused):
        redirect(opened, "https://10.0.0.2/x.gguf")


def test_the_range_goes_along_and_the_token_only_home() -> None:
    with FileServer(b"x" * 50) as home, FileServer(b"x" * 50) as other:
        home.redirects = {"/models/tiny.gguf": f"{home.origin}/second", "/second": other.url}
        with DownloadClient(home.url, "hf_secret", 5.0).open({"Range": "bytes=5-"}) as response:
            assert response.status_code == 206
        asked = [*home.asked, *other.asked]
        assert [one.range for one in asked] == ["bytes=5-"] * 3
        assert [one.headers.get("Authorization") for one in asked] == ["Bearer hf_secret", "Bearer hf_secret", None]


def test_no_request_is_sent_over_a_connection_that_leads_inwards() -> None:
    with FileServer(b"x" * 50) as web:
        client = DownloadClient(web.url, None, 5.0)
        with pytest.raises(Refused, match="this machine"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(HopGuard, "check_connection", refuse_loopback)
            with client.open({}):
                pass
        assert web.asked == []


def refuse_loopback(opened: HopGuard, address: str) -> None:
    raise Refused("model_not_downloaded", "this machine", "")


def test_plain_http_is_for_this_machine_alone() -> None:
    with pytest.raises(Refused):
        guard("http://models.example/x.gguf")
    guard("http://127.0.0.1:1/x.gguf")


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        ("https://models.example/x", {"https_proxy": "proxy.example:3128"}, "http://proxy.example:3128"),
        ("https://models.example/x", {"https_proxy": "http://u:p@proxy.example:1"}, "http://proxy.example:1"),
        ("https://models.example/x", {"https_proxy": "http://p.example:1", "no_proxy": ".example"}, None),
        ("https://models.example:8443/x", {"https_proxy": "http://p.example:1", "no_proxy": "models.example"}, None),
        ("https://models.example/x", {"https_proxy": "http://p.example:1", "no_proxy": "*"}, None),
        ("https://models.example/x", {"all_proxy": "socks5://p.example:1"}, None),
        ("https://models.example/x", {}, None),
    ],
)
def test_the_proxy_for_an_address(
    url: str, variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(httpx.URL(url), ssl.create_default_context())
    assert (proxy.url if proxy else None) == expected


@pytest.mark.parametrize("proxy", ["socks5h://proxy.example:1080", "http://HOST:PORT"])
def test_a_proxy_that_cannot_be_used_is_refused_with_a_remedy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(Refused, match="not an HTTP proxy") as caught:
        proxy_for(httpx.URL("https://models.example/x"), ssl.create_default_context())
    assert "HTTPS_PROXY" in caught.value.remedy


def test_a_proxy_that_refuses_is_named_with_its_reason() -> None:
    error = httpx.ProxyError("407 Proxy Authentication Required")
    refused = explain_network(error, RemoteFile("models.example", "x.gguf"))
    assert "the proxy did not connect to models.example (407 Proxy" in refused.detail
    assert "HTTPS_PROXY" in refused.remedy and "resumes" in refused.remedy
