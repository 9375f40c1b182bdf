"""The user's package index, proxy and certificates, as pip is configured, in uv's words. What uv is told itself stays.

uv reads its own variables and files; pip's it does not.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

_OWN_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX")


@dataclass
class Index:
    """Options and variables for uv. `own` tells whether the user has named an index at all."""

    options: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    own: bool = False


def configured(said: Mapping[str, str], environ: Mapping[str, str]) -> Index:
    """From pip's settings by key (`index-url`), and the variables that this process has."""
    if any(environ.get(name) for name in _OWN_INDEX):
        return Index(own=True)
    index = Index()

    def take(option: str, key: str) -> None:
        for value in said.get(key, "").split():
            index.options += [option, value]
            index.own = True

    take("--default-index", "index-url")
    take("--extra-index-url", "extra-index-url")
    take("--find-links", "find-links")
    if said.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        index.options.append("--no-index")
        index.own = True
    for host in said.get("trusted-host", "").split():
        index.options += ["--allow-insecure-host", host]
    index.constraints = said.get("constraint", "").split()
    for key, names in (("cert", ("SSL_CERT_FILE",)), ("proxy", ("HTTPS_PROXY", "HTTP_PROXY"))):
        for name in names:
            if (value := said.get(key)) and not environ.get(name) and not environ.get(name.lower()):
                index.environment[name] = value
    if (timeout := said.get("timeout") or said.get("default-timeout")) and not environ.get("UV_HTTP_TIMEOUT"):
        index.environment["UV_HTTP_TIMEOUT"] = timeout
    return index


def pip_settings() -> dict[str, str]:
    """What `pip config list` tells of this interpreter's pip, the narrower section and the environment winning."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    return parsed(listed.stdout)


def parsed(listing: str) -> dict[str, str]:
    """The lines `SECTION.KEY='VALUE'` of that command."""
    by_section: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.strip().partition(".")
        if section in by_section and key:
            try:
                by_section[section][key.replace("_", "-")] = str(ast.literal_eval(value.strip()))
            except (SyntaxError, ValueError):
                continue
    return {**by_section["global"], **by_section["install"], **by_section[":env:"]}


def environment(index: Index, own: Mapping[str, str]) -> dict[str, str]:
    """The variables that uv runs under: those here, the user's settings, ours."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return {**kept, **index.environment, **own}
