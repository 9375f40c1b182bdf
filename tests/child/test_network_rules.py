"""Allowed download addresses: scopes, redirects, proxies and their exceptions."""

from __future__ import annotations

import ipaddress
import ssl
import urllib.request
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.download.errors import Refused
from backend.child.download.network import DownloadClient, HopGuard, Scope, address_scope, proxy_for

FEW = settings(max_examples=80, derandomize=True, deadline=None, database=None)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@FEW
@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_an_ipv6_address_has_the_same_scope(address: ipaddress.IPv4Address) -> None:
    assert address_scope(f"::ffff:{address}") == address_scope(str(address))


@FEW
@given(st.ip_addresses())
def test_brackets_zones_and_a_last_dot_do_not_change_the_scope(address: Any) -> None:
    scope = address_scope(str(address))
    assert address_scope(f"[{address}]") == scope
    assert address_scope(f"{address}.") == scope
    assert address_scope(f"{address}%eth0") == scope


@pytest.mark.parametrize("network", ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7"])
def test_the_first_and_the_last_address_of_a_private_network_are_private(network: str) -> None:
    block = ipaddress.ip_network(network)
    assert {address_scope(str(block[0])), address_scope(str(block[-1]))} == {Scope.PRIVATE}


@pytest.mark.parametrize("address", ["9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "128.0.0.1"])
def test_the_neighbours_of_private_networks_are_public(address: str) -> None:
    assert address_scope(address) == Scope.PUBLIC


@pytest.mark.parametrize("host", ["notlocalhost", "localhost.example", "127.0.0.1.example", "2130706433.example"])
def test_a_name_that_only_resembles_this_machine_is_public(host: str) -> None:
    assert address_scope(host) == Scope.PUBLIC


# Start of the download, address of its first connection, target of a redirect, address of the second connection.
JOURNEYS = [
    ("https://a.example/x", "93.184.216.34", "https://b.example/x", "93.184.216.35", None),
    ("https://a.example/x", "93.184.216.34", "https://b.example/x", "10.0.0.1", "a private network"),
    ("https://a.example/x", "93.184.216.34", "https://b.example/x", "127.0.0.1", "this machine"),
    ("https://a.example/x", "10.0.0.1", "https://b.example/x", "10.0.0.2", None),
    ("https://a.example/x", "10.0.0.1", "https://10.0.0.9/x", "10.0.0.9", None),
    ("https://a.example/x", "10.0.0.1", "https://b.example/x", "127.0.0.1", "this machine"),
    ("https://a.example/x", "10.0.0.1", "https://localhost/x", "127.0.0.1", "this machine"),
    ("https://127.0.0.1/x", "127.0.0.1", "https://127.0.0.1/y", "127.0.0.1", None),
    ("https://127.0.0.1/x", "127.0.0.1", "https://b.example/x", "93.184.216.34", None),
    ("https://a.example/x", "93.184.216.34", "http://a.example/x", "93.184.216.34", "not https"),
    ("https://a.example/x", "93.184.216.34", "file:///etc/passwd", "", "not https"),
    ("http://127.0.0.1/x", "127.0.0.1", "http://127.0.0.1/y", "127.0.0.1", None),
]


@pytest.mark.parametrize(("start", "first", "target", "second", "problem"), JOURNEYS)
def test_a_redirect_never_leads_further_inside(
    start: str, first: str, target: str, second: str, problem: str | None
) -> None:
    def travel() -> int:
        guard = HopGuard(httpx.URL(start))
        guard.check_connection(first)
        guard.check_redirect(httpx.URL(start), httpx.URL(target))
        guard.check_connection(second)
        return guard.connections

    if problem is None:
        assert travel() == 2
    else:
        with pytest.raises(Refused, match=problem):
            travel()


@FEW
@given(st.lists(st.ip_addresses(), min_size=2, max_size=5))
def test_after_the_first_connection_the_scope_can_only_widen(addresses: list[Any]) -> None:
    guard = HopGuard(httpx.URL("https://a.example/x"))
    guard.check_connection(str(addresses[0]))
    scope = address_scope(str(addresses[0]))
    here = httpx.URL("https://a.example/x")
    for address in map(str, addresses[1:]):
        guard.check_redirect(here, here)
        if address_scope(address) > scope:
            with pytest.raises(Refused):
                guard.check_connection(address)
            return
        guard.check_connection(address)
        scope = address_scope(address)


def test_a_connection_that_leads_inside_is_closed_before_anything_is_sent() -> None:
    class Stream:
        """A connection of httpcore to a private address."""

        is_closed = False

        def get_extra_info(self, name: str) -> tuple[str, int]:
            return {"server_addr": ("10.0.0.1", 443)}[name]

        def close(self) -> None:
            self.is_closed = True

    guard, stream = HopGuard(httpx.URL("https://a.example/x")), Stream()
    guard.check_connection("93.184.216.34")
    guard.check_redirect(httpx.URL("https://a.example/x"), httpx.URL("https://b.example/x"))
    guard.trace("connection.connect_tcp.started", {})
    with pytest.raises(Refused):
        guard.trace("connection.connect_tcp.complete", {"return_value": stream})
    assert stream.is_closed


@pytest.mark.parametrize("url", ["http://a.example/x", "ftp://a.example/x", "file:///x", "http://10.0.0.1/x", "x"])
def test_plain_addresses_are_refused_before_a_connection(url: str) -> None:
    with pytest.raises(Refused) as caught:
        DownloadClient(url, None, 1.0)
    assert caught.value.code == "validation_error"


def test_a_malformed_address_is_refused_with_a_remedy() -> None:
    with pytest.raises(Refused, match="malformed") as caught:
        DownloadClient("https://[::1", None, 1.0)
    assert caught.value.remedy


PROXIES: list[tuple[dict[str, str], str, str | None]] = [
    ({}, "https://a.example/x", None),
    ({"https_proxy": "http://proxy:3128"}, "https://a.example/x", "http://proxy:3128"),
    ({"https_proxy": "proxy:3128"}, "https://a.example/x", "http://proxy:3128"),
    ({"http_proxy": "http://proxy:3128"}, "https://a.example/x", None),
    ({"https_proxy": "http://proxy:3128", "no_proxy": "a.example"}, "https://a.example/x", None),
    ({"https_proxy": "http://proxy:3128", "no_proxy": ".example"}, "https://a.example/x", None),
    ({"https_proxy": "http://proxy:3128", "no_proxy": "*"}, "https://a.example/x", None),
    ({"https_proxy": "http://proxy:3128", "no_proxy": "b.example"}, "https://a.example/x", "http://proxy:3128"),
    ({"https_proxy": "http://proxy:3128", "no_proxy": "a.example:8443"}, "https://a.example:8443/x", None),
    ({"https_proxy": "http://proxy:3128", "no_proxy": "a.example:1"}, "https://a.example/x", "http://proxy:3128"),
    ({"https_proxy": "https://proxy"}, "https://a.example/x", "https://proxy"),
    ({"https_proxy": ""}, "https://a.example/x", None),
]


@pytest.mark.parametrize(("variables", "url", "expected"), PROXIES)
def test_the_proxy_and_its_exceptions_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: str | None
) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(urllib.request, "getproxies", urllib.request.getproxies_environment)
    proxy = proxy_for(httpx.URL(url), ssl.create_default_context())
    assert (str(proxy.url) if proxy else None) == expected
    assert proxy is None or (proxy.ssl_context is not None) == (expected or "").startswith("https")
