"""Real messages of pip and uv, from public issue threads, are recognised, and no password reaches the report."""

from __future__ import annotations

import re

import pytest

from backend.common.installer_errors import BY_KIND, ERRORS, UV_KILLED, Operation, diagnose, diagnosis_of
from backend.common.installer_errors import without_credentials as cleaned

INSTALL = Operation(again="install it again", source="PyPI", package="torch", certificate_setting="SSL_CERT_FILE")
PYPI = "https://pypi.org/simple/torch/"
UV = f"error: Failed to fetch: `{PYPI}`\n  Caused by: Request failed after 3 retries\n"
SENDING = UV + f"  Caused by: error sending request for url ({PYPI})\n  Caused by: client error (Connect)\n"

MESSAGES = {
    "uv, an unknown issuer": (SENDING + "  Caused by: invalid peer certificate: UnknownIssuer\n", "certificate"),
    "uv, a certificate of another time": (SENDING + "  Caused by: invalid peer certificate: Expired\n", "clock"),
    "uv, no name server": (
        SENDING
        + "  Caused by: dns error\n  Caused by: failed to lookup address information: Name or service not known",
        "dns",
    ),
    "uv, a proxy that refuses": (SENDING + "  Caused by: tunnel error: unsuccessful\n", "proxy"),
    "uv, refused": (SENDING + "  Caused by: tcp connect error: Connection refused (os error 111)\n", "network"),
    "uv, forbidden": (UV + f"  Caused by: HTTP status client error (403 Forbidden) for url ({PYPI})", "credentials"),
    "uv, a server in trouble": (UV + f"  Caused by: HTTP status server error (502 Bad Gateway) for {PYPI}", "status"),
    "uv, no such version": (
        "  × No solution found when resolving dependencies:\n  ╰─▶ Because torch==9.9 was not found in the package "
        "registry and you require torch==9.9, we can conclude that your requirements are unsatisfiable.",
        "no_match",
    ),
    "uv, no wheel for this platform": (
        "error: Distribution `torch==2.9.0 @ registry+https://download.pytorch.org/whl/cu130` can't be installed "
        "because the binary distribution has no wheels with a matching platform tag",
        "no_match",
    ),
    "uv, a full disk": (
        "error: Failed to install: torch-2.9.0-cp312-cp312-linux_x86_64.whl (torch==2.9.0)\n"
        "  Caused by: failed to copy file from /root/.cache/uv to /venv: No space left on device (os error 28)",
        "disk_full",
    ),
    "uv, a file in use on Windows": (
        "error: failed to remove file `C:\\ts\\Lib\\torch\\lib\\c10.dll`: Access is denied. (os error 5)",
        "denied",
    ),
    "uv, no interpreter": ("error: No interpreter found for Python 3.12 in managed installations", "no_python"),
    "uv, a Python that cannot be fetched": (
        "error: Failed to download https://github.com/astral-sh/python-build-standalone/releases/download/x.tar.gz\n"
        "  Caused by: error sending request for url",
        "no_python",
    ),
    "uv, ended from outside": (f"Resolved 12 packages in 1ms\n{UV_KILLED}SIGKILL", "killed"),
    "uv, a changed file": (
        "error: Failed to download `torch==2.9.0`\n  Caused by: Hash mismatch for `torch==2.9.0`\n\nExpected:\n"
        "  sha256:aa\n\nComputed:\n  sha256:bb",
        "damaged",
    ),
    "pip, wrong credentials": (
        "WARNING: 401 Error, Credentials not correct for https://index.example/simple/torch/\n"
        "ERROR: Could not find a version that satisfies the requirement torch (from versions: none)",
        "credentials",
    ),
    "pip, a SOCKS proxy": (
        "ERROR: Could not install packages due to an OSError: Missing dependencies for SOCKS support.",
        "socks",
    ),
    "pip, slow": (
        "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.pythonhosted.org', port=443):"
        " Read timed out.",
        "network",
    ),
    "pip, interrupted": (
        "pip._vendor.urllib3.exceptions.IncompleteRead: IncompleteRead(8192 bytes read, 1024 more expected)",
        "network",
    ),
    "pip, a protected file": (
        "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/usr/lib/python3/six.py'",
        "denied",
    ),
    "pip, a long path": (
        "ERROR: Could not install packages due to an OSError: [WinError 206] The filename or extension is too long",
        "long_path",
    ),
    "pip, hints at long paths": (
        "HINT: This error might have occurred since this system does not have Windows Long Path support enabled.",
        "long_path",
    ),
    "pip, known hashes only": (
        "ERROR: Hashes are required in --require-hashes mode, but they are missing from some requirements here.",
        "hashes_required",
    ),
    "pip, no temporary folder": (
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']",
        "temporary_folder",
    ),
    "pip, a wheel that is none": ("ERROR: Wheel 'torch' located at /tmp/torch.whl is invalid wheel.", "damaged"),
    "Python without pip": ("/usr/bin/python3: No module named pip", "no_pip"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message_is_recognised_and_answered(case: str) -> None:
    output, kind = MESSAGES[case]
    diagnosis = diagnose(output, INSTALL)
    assert diagnosis.kind == kind
    assert diagnosis.line and diagnosis.line in output, "the report quotes the line that shows it"
    assert not re.search(r"[{}]", diagnosis.reason + diagnosis.remedy), "every placeholder is filled"


def test_every_kind_of_the_table_has_its_message() -> None:
    from tests.launcher.test_failures import CASES

    outputs = [output for output, _ in MESSAGES.values()] + ["\n".join(lines) for lines, *_ in CASES.values()]
    seen = {diagnose(output, INSTALL).kind for output in outputs}
    assert {error.kind for error in ERRORS} <= seen


@pytest.mark.parametrize(
    ("output", "status"),
    [
        (MESSAGES["pip, wrong credentials"][0], "401"),
        (MESSAGES["uv, forbidden"][0], "403 Forbidden"),
        (MESSAGES["uv, a server in trouble"][0], "502 Bad Gateway"),
        ("ERROR: HTTP error 503 while getting https://files.example/torch.whl", "503"),
        ("ERROR: 500 Server Error: Internal Server Error for url: https://files.example/torch.whl", "500"),
    ],
)
def test_the_answer_of_the_server_is_named(output: str, status: str) -> None:
    assert f"answered {status}" in diagnose(output, INSTALL).reason


def test_the_last_of_several_answers_counts() -> None:
    output = "WARNING: HTTP error 503 while getting a.whl\nERROR: HTTP error 504 while getting a.whl"
    diagnosis = diagnose(output, INSTALL)
    assert "504" in diagnosis.reason and diagnosis.line.startswith("HTTP error 504")


def test_only_a_fault_of_the_source_offers_another_source() -> None:
    operation = Operation(again="retry", alternative="Or download it by hand.")
    faults = {kind: diagnosis_of(kind, operation).remedy.endswith("by hand.") for kind in BY_KIND if kind != "versions"}
    assert faults["dns"] and faults["proxy"] and faults["status"]
    assert not (faults["disk_full"] or faults["denied"] or faults["clock"] or faults["other"])


def test_a_remedy_of_the_program_replaces_the_one_of_the_table() -> None:
    operation = Operation(again="retry", remedies={"disk_full": "Empty the bin."})
    assert diagnosis_of("disk_full", operation).remedy == "Empty the bin."
    assert diagnosis_of("network", operation).remedy != "Empty the bin."


def test_what_nobody_knows_is_shown_as_the_installer_wrote_it() -> None:
    diagnosis = diagnose("Resolved 3 packages\nerror: the moon is in the way\n  note: wait\n", INSTALL)
    assert (diagnosis.kind, diagnosis.line) == ("other", "error: the moon is in the way")
    assert diagnose("\n \n", INSTALL).line == "no output"


def test_a_line_of_kilobytes_is_shortened() -> None:
    diagnosis = diagnose("ERROR: No matching distribution found for " + "x" * 5000, INSTALL)
    assert len(diagnosis.line) == 300 and diagnosis.line.endswith("...")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ada:pa55@index.example/simple", "https://index.example/simple"),
        ("https://ada:p@ss@index.example/simple", "https://index.example/simple"),
        ("https://__token__:pypi-AgE@a.example and http://b:c@d.example", "https://a.example and http://d.example"),
        ("https://index.example/packages/@scope/file", "https://index.example/packages/@scope/file"),
        ("mail ada@index.example", "mail ada@index.example"),
    ],
)
def test_passwords_leave_addresses(text: str, shown: str) -> None:
    assert cleaned(text) == shown


def test_a_quoted_line_has_no_password() -> None:
    output = "ERROR: HTTP error 404 while getting https://ada:p@ss-word@index.example/simple/torch/"
    assert "ss-word" not in diagnose(output, INSTALL).line
