"""The user's package index as uv's settings, and the meaning of uv's error messages."""

from __future__ import annotations

import sys

import pytest

from backend.child.install.errors import explain, is_unreachable, telling_line
from backend.child.install.package_index import configured, parse_settings
from backend.child.install.uv import Uv

LISTING = """\
global.index-url='https://mirror.example/simple'
global.extra-index-url='https://a.example/simple https://b.example/simple'
install.constraint='/etc/constraints.txt'
install.index-url='https://inner.example/simple'
:env:.find-links='/opt/wheels'
:env:.cert='/etc/ca.pem'
global.proxy='http://proxy.example:3128'
global.trusted-host='inner.example'
global.timeout='180'
freeze.timeout='10'
broken line
"""


def test_pip_s_settings_count_the_narrower_section_and_the_environment_first() -> None:
    index = configured(parse_settings(LISTING), {})
    assert index.options == [
        *("--default-index", "https://inner.example/simple"),
        *("--extra-index-url", "https://a.example/simple", "--extra-index-url", "https://b.example/simple"),
        *("--find-links", "/opt/wheels", "--allow-insecure-host", "inner.example"),
    ]
    assert index.own and index.constraints == ["/etc/constraints.txt"]
    proxy = "http://proxy.example:3128"
    assert index.environment == {
        **{"SSL_CERT_FILE": "/etc/ca.pem", "HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "UV_HTTP_TIMEOUT": "180"},
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_what_the_environment_or_uv_itself_says_stays() -> None:
    index = configured(parse_settings(LISTING), {"SSL_CERT_FILE": "/mine.pem", "https_proxy": "http://mine:1"})
    assert set(index.environment) == {"HTTP_PROXY", "UV_HTTP_TIMEOUT", "UV_INDEX_STRATEGY"}
    assert configured(parse_settings(LISTING), {"UV_DEFAULT_INDEX": "https://uv.example"}).options == []


def test_without_settings_nothing_is_asked_but_the_usual_index() -> None:
    index = configured(parse_settings(""), {})
    assert index.options == [] and not index.own
    assert configured({"no-index": "true", "find-links": "/w"}, {}).options == ["--find-links", "/w", "--no-index"]


def test_an_installer_that_is_killed_is_told_by_its_signal_and_not_by_what_it_said_last() -> None:
    program = "import os; print('Downloading', flush=True); os.kill(os.getpid(), 9)"
    code, said = Uv(sys.executable, {}).run(["-c", program])
    refused = explain(said, "fetching the packages", "torch")
    assert code == -9 and "uv was killed by SIGKILL" in refused.detail and "Downloading" not in refused.detail
    assert "memory" in refused.remedy


@pytest.mark.parametrize(
    ("said", "code", "detail", "remedy"),
    [
        ("error: Failed to fetch: https://u:p@i.example/x/\n  cause: HTTP status client error (401 Unauthorized)",
         "runtime_failed", "answered 401 Unauthorized at https://i.example/x/", "credentials"),
        ("error: Failed to fetch: https://i.example/x/\n  cause: invalid peer certificate: UnknownIssuer",
         "runtime_failed", "certificate of the package index at https://i.example/x/", "SSL_CERT_FILE"),
        ("error: Failed to extract archive\n  cause: No space left on device (os error 28)",
         "disk_full", "filled up while fetching", "another disk"),
        ("error: failed to create directory `/x`\n  cause: Permission denied (os error 13)",
         "runtime_failed", "Permission denied", "writable"),
        ("error: Request failed after 3 retries in 7.3s\n  cause: Failed to download `https://g.example/python-build-"
         "standalone/x`", "runtime_failed", "needs Python", "uv python install"),
        ("something new", "runtime_failed", "failed while fetching: something new.", "Fix"),
        ("", "runtime_failed", "no output", "Fix"),
    ],
)  # fmt: skip
def test_uv_s_last_words(said: str, code: str, detail: str, remedy: str) -> None:
    refused = explain(said, "fetching", "tiny")
    assert refused.code == code and detail in refused.detail and remedy in refused.remedy
    assert "u:p@" not in refused.detail


def test_only_a_network_that_fails_counts_as_unreachable() -> None:
    assert is_unreachable("error: Failed to fetch: `https://x`") and not is_unreachable("No solution found")
    assert telling_line("error: No solution found\n  cause: Because a\nhint: b") == "Because a"
