"""Makes one document of facts and findings, without secrets. The text page and `--json` show this document."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from backend import __version__
from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding
from backend.common.config.settings import Settings
from backend.common.redaction import SECRET, Redactor, redactor
from backend.common.system.resources import memory_bytes, memory_free_bytes, usable_threads
from backend.common.timestamps import utc_now
from backend.common.types import JsonObject
from backend.server.auth_token import kept_token

FINE, BROKEN, ONLY_CPU = 0, 1, 3
LONGEST = 120  # characters of a variable
_SECRETS = ("server.token",)
_SHOWN_ELSEWHERE = ("storage.data_dir",)
# Variables that change which card or library a runtime finds, or how it computes.
_VARIABLES = re.compile(
    r"_VISIBLE_DEVICES$|^(AMD|CONDA|CUDA|DML|GGML|GPU|HIP|HSA|LD|MESA|MKL|NVIDIA|OMP|ONEAPI|ORT|PYTORCH|ROC[MR]?|SYCL|TORCH|"
    r"VK|WSL|ZE)_|^(ROCR_\w+|PYTHON\w+|VIRTUAL_ENV|VK_\w+|HF_HUB_OFFLINE)$"
)


def report(
    facts: Facts,
    findings: list[Finding],
    more: Mapping[str, Any],
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
) -> JsonObject:
    """Return the document, without secrets, user names and the home folder."""
    code, sentence = verdict(facts, findings)
    redact = secret_redactor(settings, environ)
    document: JsonObject = {
        "touchstone": __version__,
        "at": utc_now(),
        "system": asdict(facts.platform),
        "checks": [asdict(check) for check in facts.checks],
        "python": {
            "version": platform.python_version(),
            "bits": 64 if sys.maxsize > 2**32 else 32,
            "path": sys.executable,
            "venv": sys.prefix != sys.base_prefix,
        },
        "threads": usable_threads(),
        "memory_bytes": memory_bytes(),
        "memory_free_bytes": memory_free_bytes(),
        "server": asdict(facts.server) if facts.server else None,
        "storage": asdict(facts.storage) if facts.storage else None,
        "settings": changed_settings(settings),
        "variables": _variables(environ, redact),
        "findings": [asdict(finding) for finding in findings],
        "devices": [asdict(device) for device in facts.devices],
        "default": more.get("default"),
        "default_reason": more.get("default_reason"),
        "hardware": [asdict(item) for item in facts.hardware],
        "missing": more.get("missing", []),
        "runtimes": [asdict(runtime) for runtime in facts.runtimes],
        "models": [
            {name: getattr(model, name) for name in ("id", "state", "bytes", "default", "reason", "remedy")}
            for model in facts.models
            if model.state != "downloadable" or model.default  # dozens could be downloaded
        ],
        "notices": [
            {"file": file, "detail": detail, "remedy": remedy} for file, detail, remedy in more.get("notices", [])
        ],
        "verdict": {"exit_code": code, "sentence": sentence},
    }
    shown: JsonObject = redact.data(document)
    return shown


def secret_redactor(settings: Settings, environ: Mapping[str, str] = os.environ) -> Redactor:
    """Return the redactor for this user's names and this server's secrets."""
    return redactor(environ, filter(None, (settings.server.token, kept_token(settings.data_dir))))


def verdict(facts: Facts, findings: list[Finding]) -> tuple[int, str]:
    """Return exit code and last line: 1 if no device works, 3 if only the CPU can, else 1 if something is broken."""
    ready = [device for device in facts.devices if device.state == "ready"]
    real = [device.id for device in ready if device.kind not in ("cpu", "emulated")]
    stops = [finding for finding in findings if finding.level == "stops"]
    broken = [finding for finding in findings if finding.level == "broken"]
    failing = [device.id for device in facts.devices if device.state in ("broken", "quarantined")]
    if not ready:
        return BROKEN, "Broken: no device works."
    if stops:
        some = "some of the findings above keep" if len(stops) > 1 else "one of the findings above keeps"
        return BROKEN, f"Broken: {some} it from working."
    more = f"; broken: {', '.join(failing)}" if failing else ""
    count = f"; {len(broken)} of the findings above {'need' if len(broken) > 1 else 'needs'} a fix" if broken else ""
    if not real:
        return ONLY_CPU, f"Only the CPU works{more}{count}."
    works = f"{', '.join(real)} {'work' if len(real) > 1 else 'works'}"
    return (BROKEN, f"{works}{more}{count}.") if failing or broken else (FINE, f"Fine: {works}.")


def changed_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that differ from their defaults, by dotted key; a secret is replaced."""
    default, current = _flat(asdict(Settings())), _flat(asdict(settings))
    changed = {
        key: value for key, value in current.items() if default.get(key) != value and key not in _SHOWN_ELSEWHERE
    }
    return {key: SECRET if key in _SECRETS else _plain(value) for key, value in changed.items()}


def _variables(environ: Mapping[str, str], redact: Redactor) -> dict[str, str]:
    """Return relevant variables, redacted, then cut: some images set lists of hundreds of drivers."""
    redacted = {name: redact.text(value) for name, value in sorted(environ.items()) if _VARIABLES.search(name.upper())}
    return {name: value if len(value) <= LONGEST else value[:LONGEST] + "…" for name, value in redacted.items()}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
