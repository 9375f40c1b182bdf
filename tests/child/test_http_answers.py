"""Messages for a web server's response without the file, and for a failed connection."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.download.errors import Refused, disk_full, explain_os
from backend.child.download.http_errors import (
    TRANSIENT_STATUSES,
    RemoteFile,
    TransientError,
    causes,
    explain_network,
    explain_status,
    is_untrusted,
)

FILE = RemoteFile("models.example", "x.gguf")


def caused(outer: Exception, *inner: BaseException) -> Exception:
    """Return the exception with a chain of causes."""
    current: BaseException = outer
    for cause in inner:
        current.__cause__ = cause
        current = cause
    return outer


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.integers(300, 599), st.none() | st.text(max_size=8) | st.integers(-5, 10**6).map(str))
def test_every_status_has_an_error_with_host_status_and_remedy(status: int, retry_after: str | None) -> None:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    error = explain_status(status, headers, FILE)
    refused = error.refused if isinstance(error, TransientError) else error
    assert "models.example" in refused.detail
    assert str(status) in refused.detail
    assert refused.remedy
    if isinstance(error, TransientError):
        assert error.wait_s is None or error.wait_s >= 0


@pytest.mark.parametrize("status", TRANSIENT_STATUSES)
def test_statuses_that_are_retried_for_the_hub_are_retried_for_other_servers(status: int) -> None:
    assert isinstance(explain_status(status, {}, FILE), TransientError)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 407, 410, 451])
def test_a_definite_answer_is_not_retried(status: int) -> None:
    assert isinstance(explain_status(status, {}, FILE), Refused)


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [("3", 3.0), ("0", 0.0), ("-4", 0.0), ("1.5", 1.5), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)],
)
def test_a_wait_in_seconds_is_obeyed_and_a_date_is_not(header: str, wait_s: float | None) -> None:
    error = explain_status(503, {"Retry-After": header}, FILE)
    assert isinstance(error, TransientError)
    assert error.wait_s == wait_s


PROXY_ERROR = type("ProxyError", (Exception,), {})
READ_TIMEOUT = type("ReadTimeout", (type("TimeoutException", (Exception,), {}),), {})


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (caused(ConnectionError("x"), ssl.SSLCertVerificationError("self-signed")), "certificate"),
        (caused(ConnectionError("x"), OSError(), socket.gaierror(-2, "unknown")), "models.example"),
        (PROXY_ERROR("407 Proxy Authentication Required"), "407 Proxy"),
        (READ_TIMEOUT("slow"), "timeout: no data received"),
        (caused(ConnectionError("x"), TimeoutError()), "timeout: no data received"),
        (ConnectionError("connection reset by peer"), "connection reset by peer"),
        (ConnectionError(), "ConnectionError"),
    ],
)
def test_a_failed_connection_is_shown_with_its_cause(raised: Exception, words: str) -> None:
    refused = explain_network(raised, FILE)
    assert refused.code == "model_not_downloaded"
    assert words in refused.detail
    assert refused.remedy


def test_only_a_rejected_certificate_counts_as_untrusted() -> None:
    assert is_untrusted(caused(ConnectionError(), ssl.SSLCertVerificationError()))
    assert not is_untrusted(caused(ConnectionError(), ssl.SSLError()))


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert causes(first) == [first, second]


def test_the_context_counts_where_there_is_no_cause() -> None:
    try:
        try:
            raise socket.gaierror(-2, "unknown")
        except OSError:
            raise ConnectionError("wrapped")  # noqa: B904 (the context is what is tested)
    except ConnectionError as error:
        assert [type(cause) for cause in causes(error)] == [ConnectionError, socket.gaierror]


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EROFS, "configuration")]
)
def test_an_error_of_the_disk_names_the_folder(number: int, code: str) -> None:
    refused = explain_os(OSError(number, os.strerror(number)), Path("/models"))
    assert (refused.code, "/models" in refused.detail) == (code, True)


def test_a_full_disk_of_windows_is_recognised_by_its_own_number() -> None:
    error = OSError("no space")
    error.winerror = 112  # type: ignore[attr-defined]
    assert explain_os(error, Path("/models")).code == "disk_full"


def test_numbers_of_a_full_disk_are_shown_if_they_are_known() -> None:
    assert (
        "2 MB are needed, 1 MB are free, and 2 GB must stay free"
        in disk_full(Path("/models"), 2_000_000, 1_000_000).detail
    )
    assert "needed" not in disk_full(Path("/models")).detail
    assert "set HF_HOME" in disk_full(Path("/models"), other="set HF_HOME").remedy
