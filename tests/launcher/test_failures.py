"""pip's recorded error output becomes one relevant line and a remedy."""

from __future__ import annotations

import pytest

from backend.cli.launcher.packages import FIRST_START
from backend.common.installer_errors import ERRORS, Diagnosis, Operation, diagnose, diagnosis_of

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
        "cannot be resolved",
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
        "requires credentials",
        "401 Client Error",
    ),
    "an index that is ill": (
        ["ERROR: HTTP error 503 while getting https://index.example/fastapi.whl"],
        "answered 503",
        "HTTP error 503",
    ),
    "a damaged package": (
        ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated ..."],
        "damaged or changed in transit",
        "DO NOT MATCH",
    ),
    "a plain index": (
        [
            "WARNING: The repository located at index.example is not a trusted or secure host and is being ignored.",
            NOTHING,
        ],
        "has no TLS",
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
        "has no package for this Python and machine, only the versions 1.19.2",
        "requirement onnxruntime>=1.32",
    ),
    "silent index": ([NOTHING, NO_MATCH], "offers none for this Python", "from versions: none"),
    "unknown": (
        ["WARNING: something", "ERROR: a new kind of failure", "  detail"],
        "the installer failed",
        "a new kind of failure",
    ),
    "silence": ([], "the installer failed", "no output"),
}


def first_start(case: str) -> Diagnosis:
    return diagnose("\n".join(CASES[case][0]), FIRST_START)


@pytest.mark.parametrize("case", CASES)
def test_words_of_pip_are_understood(case: str) -> None:
    _, reason, line = CASES[case]
    diagnosis = first_start(case)
    assert reason in diagnosis.reason
    assert line in diagnosis.line and "WARNING" not in diagnosis.line and "ERROR" not in diagnosis.line
    assert diagnosis.remedy.endswith((".", "first."))


def test_certificate_remedy_keeps_the_check_on() -> None:
    remedy = first_start("certificate").remedy
    assert "PIP_CERT" in remedy and "SSL_CERT_FILE" in remedy
    assert "trusted-host" not in remedy


def test_only_failures_before_the_first_change_leave_the_environment_in_use() -> None:
    assert first_start("name resolution").is_early
    assert not first_start("disk").is_early
    assert not first_start("unknown").is_early


def test_every_kind_has_texts_for_each_program() -> None:
    for error in ERRORS:
        for operation in (FIRST_START, Operation("retry", "models.example", alternative="Or by hand.")):
            if error.kind == "versions":  # the output fills its reason
                continue
            diagnosis = diagnosis_of(error.kind, operation)
            assert "{" not in diagnosis.reason + diagnosis.remedy
            assert diagnosis.remedy.endswith(".") and not diagnosis.reason.endswith(".")


def test_passwords_in_addresses_are_not_shown() -> None:
    diagnosis = diagnose("ERROR: timed out at https://user:secret@host/simple", FIRST_START)
    assert diagnosis.line == "timed out at https://host/simple"
