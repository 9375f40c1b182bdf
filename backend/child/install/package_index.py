"""Translate pip's configuration (index, proxy, certificates) into options of uv, which does not read it.

The user's variables for uv take precedence.
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
    """Options and variables for uv. `own`: whether the user has set an index."""

    options: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    own: bool = False


def configured(settings: Mapping[str, str], environ: Mapping[str, str]) -> Index:
    """Return the options of uv for parsed settings of pip, by key (`index-url`), and the environment variables."""
    if any(environ.get(name) for name in _OWN_INDEX):
        return Index(own=True)
    index = Index()

    def add_option(option: str, key: str) -> None:
        for value in settings.get(key, "").split():
            index.options += [option, value]
            index.own = True

    add_option("--default-index", "index-url")
    add_option("--extra-index-url", "extra-index-url")
    add_option("--find-links", "find-links")
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        index.options.append("--no-index")
        index.own = True
    for host in settings.get("trusted-host", "").split():
        index.options += ["--allow-insecure-host", host]
    index.constraints = settings.get("constraint", "").split()
    index.environment = _variables(settings, environ)
    return index


def _variables(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for key, names in (("cert", ("SSL_CERT_FILE",)), ("proxy", ("HTTPS_PROXY", "HTTP_PROXY"))):
        for name in names:
            if (value := settings.get(key)) and not environ.get(name) and not environ.get(name.lower()):
                variables[name] = value
    if settings.get("extra-index-url"):  # pip prefers none of its indexes; a mirror may have some versions only
        variables["UV_INDEX_STRATEGY"] = environ.get("UV_INDEX_STRATEGY") or "unsafe-best-match"
    if (timeout := settings.get("timeout") or settings.get("default-timeout")) and not environ.get("UV_HTTP_TIMEOUT"):
        variables["UV_HTTP_TIMEOUT"] = timeout
    return variables


def pip_settings() -> dict[str, str]:
    """Return the settings of this interpreter's pip by key, from `pip config list`."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    return parse_settings(listed.stdout)


def parse_settings(listing: str) -> dict[str, str]:
    """Parse lines `SECTION.KEY='VALUE'`. The section `install` overrides `global`; the environment overrides both."""
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
    """Return the environment variables of uv: those of this process, the user's settings, `own`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return {**kept, **index.environment, **own}
