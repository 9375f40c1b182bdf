"""What must not leave this machine in a report: secrets, the user's and the machine's name, the home folder.

Foreign text passes through here before it is shown where others may read it: paths, variables, what libraries print.
Standard library only.
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
SHORTEST_NAME = 3  # a shorter one stands inside too many words to be removed; in paths it goes all the same
_SECRET_NAME = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|(?:access|private|account)[_-]?key|credentials?)"
)
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'&;,]+)"""
# Names that are words as well: removing them would make the report unreadable and tell nobody anything.
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
    # The forms in which well-known services hand out their keys.
    (re.compile(r"\b(?:hf_|gh[opsur]_|github_pat_|glpat-|npm_|pypi-|nvapi-|r8_|xox[abeoprs]-)[\w-]{8,}"), SECRET),
    (re.compile(r"\b(?:sk|pk|rk)[-_](?:[a-z]+[-_])*[A-Za-z0-9_]{16,}"), SECRET),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}|\bya29\.[\w-]{8,}"), SECRET),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), SECRET),
    (re.compile(r"\b[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b"), "<address>"),
    # Homes of others, and of this user as seen from the other side of WSL.
    (re.compile(r"""((?:^|[\s"'=:(\[,;])(?:/mnt/[a-z])?/(?:home|Users)/)[^/\s:"']+"""), rf"\1{USER}"),
    (re.compile(r"""(?i)(\\{1,2}users\\{1,2})(?:[^\\/:"'<>|\n]+?(?=\\)|[^\\/\s:"'<>|]+)"""), rf"\1{USER}"),
    (re.compile(r"(?i)((?:/mnt/)?\b[a-z]:?/users/)[^/\s:\"']+"), rf"\1{USER}"),
)


class Redactor:
    """Removes what it was given, and whatever looks like a secret."""

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
        self._names = [(_word(name), USER) for name in _telling(users)]
        self._names += [(_word(name), HOST) for name in _telling(hosts)]
        short = {name for name in users if name and name.lower() not in _ORDINARY and len(name) < SHORTEST_NAME}
        self._names += [(re.compile(rf"(?<=[/\\]){re.escape(name)}(?=[/\\])"), USER) for name in short]

    def text(self, text: str) -> str:
        """The text without what must not be told."""
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        for home in self._homes:
            text = home.sub(HOME, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        for name, instead in self._names:
            text = name.sub(instead, text)
        return text

    def data(self, value: Any) -> Any:
        """Plain data with every text in it passed through `text`. Keys are names of fields, packages and variables."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.data(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(inner) for inner in value]
        return value


def redactor(environ: Mapping[str, str], secrets: Iterable[str] = ()) -> Redactor:
    """A Redactor for this user on this machine. `secrets` come on top of the variables that look like such."""
    homes = {str(Path(home)) for name in ("HOME", "USERPROFILE") if (home := environ.get(name, "")) not in ("", "/")}
    homes |= {os.path.realpath(home) for home in homes}
    users = {environ[name] for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER") if environ.get(name)}
    users |= {re.split(r"[/\\]", home)[-1] for home in homes}
    try:
        users.add(getpass.getuser())
    except (OSError, KeyError, ImportError):  # an id without a name, as in containers
        pass
    hosts = {socket.gethostname(), environ.get("COMPUTERNAME", ""), environ.get("HOSTNAME", "")}
    hidden = {value for key, value in environ.items() if is_secret(key) and not Path(value).is_absolute()}
    return Redactor(homes, users, hosts, hidden | set(secrets))


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, as far as its name tells."""
    return re.search(rf"(?i){_SECRET_NAME}|(?:^|_)(?:key|pat)$", name) is not None


def has_password(value: str) -> bool:
    """Whether it is an address with a name, a password or a token in it."""
    return re.match(r"(?i)[a-z][a-z0-9+.-]*://[^\s/@]+@", value) is not None


def _telling(names: Iterable[str]) -> list[str]:
    """The names worth removing everywhere, longest first; of a host also its part before the first dot."""
    parts = {part for name in names for part in (name, name.split(".")[0])}
    kept = {name for name in parts if len(name) >= SHORTEST_NAME and name.lower() not in _ORDINARY}
    return sorted(kept, key=len, reverse=True)


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])")


def _path_forms(path: str) -> set[str]:
    """The path as it is, with the other slashes, and as JSON or repr would show it."""
    bare = path.rstrip("/\\")
    forms = {bare, bare.replace("\\", "/"), bare.replace("\\", "\\\\"), json.dumps(bare)[1:-1]}
    return {form for form in forms if len(form) > 1}
