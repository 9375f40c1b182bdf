"""Remove secrets, the user's and the machine's name and the home folder from reports.

Text from elsewhere is redacted before others may read it: paths, variables, output of libraries.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SECRET, USER, HOST, HOME = "<secret>", "<user>", "<host>", "~"
SHORTEST_NAME = 3  # shorter names are part of too many words; they are removed only in paths
_SECRET_NAME = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|(?:access|private|account)[_-]?key|credentials?)"
)
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'&;,]+)"""
# Names that are ordinary words identify no one, and removing them would make the report unreadable.
_ORDINARY = frozenset(
    "root user users admin administrator owner guest default nobody ubuntu debian fedora arch linux windows macos wsl "
    "python home data models model test tests work dev local localhost host server service runner cpu gpu npu base "
    "torch onnxruntime touchstone device devices runtime llama nvidia amd intel docker container app".split()
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), SECRET),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/<>]+@"), rf"\1{SECRET}@"),
    (re.compile(r"(?i)([?&#](?:sig|signature|key|code|auth|x-amz-[a-z-]+)=)[^&\s\"']+"), rf"\1{SECRET}"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)?\s*)[^\s\"',]+"), rf"\1{SECRET}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{6,}"), rf"\1{SECRET}"),
    (re.compile(rf"(?i)([\w.-]*{_SECRET_NAME}(?:_(?:id|value|file))?[\"']?\s*[=:]\s*){_VALUE}"), rf"\1{SECRET}"),
    # Formats of the keys of well-known services.
    (re.compile(r"\b(?:hf_|gh[opsur]_|github_pat_|glpat-|npm_|pypi-|nvapi-|r8_|xox[abeoprs]-)[\w-]{8,}"), SECRET),
    (re.compile(r"\b(?:sk|pk|rk)[-_](?:[a-z]+[-_])*[A-Za-z0-9_]{16,}"), SECRET),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}|\bya29\.[\w-]{8,}"), SECRET),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), SECRET),
    (re.compile(r"\b[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b"), "<address>"),
    # Home folders of other users, and this user's as seen from the other side of WSL.
    (re.compile(r"""((?:^|[\s"'=:(\[,;])(?:/mnt/[a-z])?/(?:home|Users)/)[^/\s:"']+"""), rf"\1{USER}"),
    (re.compile(r"""(?i)(\\{1,2}users\\{1,2})(?:[^\\/:"'<>|\n]+?(?=\\)|[^\\/\s:"'<>|]+)"""), rf"\1{USER}"),
    (re.compile(r"(?i)((?:/mnt/)?\b[a-z]:?/users/)[^/\s:\"']+"), rf"\1{USER}"),
)


class Redactor:
    """Replaces the given names and secrets in texts, and everything that looks like a secret."""

    def __init__(
        self,
        homes: Iterable[str] = (),
        users: Iterable[str] = (),
        hosts: Iterable[str] = (),
        secrets: Iterable[str] = (),
    ) -> None:
        self._secrets = sorted({text for text in secrets if len(text) >= SHORTEST_NAME}, key=len, reverse=True)
        forms = {form for home in homes for form in _path_forms(home)}
        self._homes = [
            re.compile(rf"(?<![\w.-]){re.escape(form)}(?![\w.-])") for form in sorted(forms, key=len, reverse=True)
        ]
        self._names = [(_word(name), USER) for name in _identifying_names(users)]
        self._names += [(_word(name), HOST) for name in _identifying_names(hosts)]
        short = {name for name in users if name and name.lower() not in _ORDINARY and len(name) < SHORTEST_NAME}
        self._names += [(re.compile(rf"(?<=[/\\]){re.escape(name)}(?=[/\\])"), USER) for name in short]

    def text(self, text: str) -> str:
        """Return the redacted text."""
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        for home in self._homes:
            text = home.sub(HOME, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        for name, replacement in self._names:
            text = name.sub(replacement, text)
        return text

    def data(self, value: Any) -> Any:
        """Return plain data with every string redacted. Keys stay: they name fields, packages and variables."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.data(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(inner) for inner in value]
        return value


def redactor(environ: Mapping[str, str], secrets: Iterable[str] = ()) -> Redactor:
    """Return a Redactor for this user and machine. `secrets`: additional to variables that look like secrets."""
    homes = {str(Path(home)) for name in ("HOME", "USERPROFILE") if (home := environ.get(name, "")) not in ("", "/")}
    homes |= {os.path.realpath(home) for home in homes}
    users = {environ[name] for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER") if environ.get(name)}
    users |= {re.split(r"[/\\]", home)[-1] for home in homes}
    try:
        users.add(getpass.getuser())
    except (OSError, KeyError, ImportError):  # a user id without a name, as in containers
        pass
    hosts = {socket.gethostname(), environ.get("COMPUTERNAME", ""), environ.get("HOSTNAME", "")}
    secret_values = {value for key, value in environ.items() if is_secret(key) and not Path(value).is_absolute()}
    return Redactor(homes, users, hosts, secret_values | set(secrets))


def is_secret(name: str) -> bool:
    """Return whether a variable's name suggests that it contains a secret."""
    return re.search(rf"(?i){_SECRET_NAME}|(?:^|_)(?:key|pat)$", name) is not None


def has_password(value: str) -> bool:
    """Return whether the value is a URL with a user name, password or token."""
    return re.match(r"(?i)[a-z][a-z0-9+.-]*://[^\s/@]+@", value) is not None


def _identifying_names(names: Iterable[str]) -> list[str]:
    """Return the names to remove everywhere, longest first; for a host also the part before the first dot."""
    parts = {part for name in names for part in (name, name.split(".")[0])}
    identifying = {name for name in parts if len(name) >= SHORTEST_NAME and name.lower() not in _ORDINARY}
    return sorted(identifying, key=len, reverse=True)


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])")


def _path_forms(path: str) -> set[str]:
    """Return the path as it is, with forward slashes, and escaped as in JSON or repr."""
    bare = path.rstrip("/\\")
    forms = {bare, bare.replace("\\", "/"), bare.replace("\\", "\\\\"), json.dumps(bare)[1:-1]}
    return {form for form in forms if len(form) > 1}
