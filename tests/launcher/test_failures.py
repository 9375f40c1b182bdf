"""pip's own words, as recorded from real failures, become one telling line and something to do."""

from __future__ import annotations

import pytest

from backend.cli.launcher.pip_errors import diagnose

RETRY = "WARNING: Retrying (Retry(total=1, connect=None, read=None)) after connection broken by "
NOTHING = "ERROR: Could not find a version that satisfies the requirement fastapi (from versions: none)"
NO_MATCH = "ERROR: No matching distribution found for fastapi"

CASES = {
    "name resolution": (
        [
            RETRY + "'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f3e>: Failed to "
            "establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/fastapi/",
            NOTHING,
            NO_MATCH,
        ],
        "needs the network",
        "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
    ),
    "certificate": (
        [
            RETRY
            + "'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "self-signed certificate in certificate chain (_ssl.c:1006)'))': /simple/fastapi/",
            NOTHING,
            NO_MATCH,
        ],
        "certificate",
        "self-signed certificate in certificate chain",
    ),
    "proxy": (
        [
            RETRY + "'ProxyError('Cannot connect to proxy.', NewConnectionError('<x>: Failed to establish a new "
            "connection: [Errno 111] Connection refused'))': /simple/fastapi/",
            NO_MATCH,
        ],
        "proxy",
        "Cannot connect to proxy",
    ),
    "clock": (
        [
            RETRY
            + "'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "certificate is not yet valid (_ssl.c:1006)'))': /simple/fastapi/",
            NOTHING,
        ],
        "this machine's clock",
        "certificate is not yet valid",
    ),
    "an index that asks who we are": (
        ["ERROR: 401 Client Error: Unauthorized for url: https://index.example/simple/fastapi/", NO_MATCH],
        "does not let this machine in",
        "401 Client Error",
    ),
    "an index that is ill": (
        ["ERROR: HTTP error 503 while getting https://index.example/fastapi.whl"],
        "did not give a package out",
        "HTTP error 503",
    ),
    "a damaged package": (
        ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated ..."],
        "arrived damaged",
        "DO NOT MATCH",
    ),
    "a plain index": (
        [
            "WARNING: The repository located at index.example is not a trusted or secure host and is being ignored.",
            NOTHING,
        ],
        "without TLS",
        "not a trusted or secure host",
    ),
    "disk": (
        ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", ""],
        "disk is full",
        "[Errno 28] No space left on device",
    ),
    "no wheel": (
        [
            "ERROR: Could not find a version that satisfies the requirement onnxruntime>=1.32 (from versions: 1.19.2)",
            "ERROR: No matching distribution found for onnxruntime>=1.32",
        ],
        "not to be had for this Python",
        "No matching distribution found for onnxruntime>=1.32",
    ),
    "silent index": ([NOTHING, NO_MATCH], "offered nothing at all", "from versions: none"),
    "unknown": (
        ["WARNING: something", "ERROR: a new kind of failure", "  detail"],
        "pip could not",
        "a new kind of failure",
    ),
    "silence": ([], "pip could not", "it said nothing"),
}


@pytest.mark.parametrize("case", CASES)
def test_words_of_pip_are_understood(case: str) -> None:
    lines, detail, telling = CASES[case]
    cause, said = diagnose(lines)
    assert detail in cause.detail
    assert telling in said and "WARNING" not in said and "ERROR" not in said
    assert cause.remedy.endswith((".", "first."))


def test_certificate_remedy_keeps_the_check_on() -> None:
    cause, _ = diagnose(CASES["certificate"][0])
    assert "PIP_CERT" in cause.remedy and "SSL_CERT_FILE" in cause.remedy
    assert "trusted-host" not in cause.remedy


def test_only_failures_before_the_first_change_leave_the_environment_in_use() -> None:
    assert diagnose(CASES["name resolution"][0])[0].early
    assert not diagnose(CASES["disk"][0])[0].early
    assert not diagnose(CASES["unknown"][0])[0].early
