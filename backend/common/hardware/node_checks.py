"""Checks of device nodes: whether this user may open each one, with the name of its group."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.common.hardware.access import refused
from backend.common.hardware.checks import Check
from backend.common.hardware.host import Host, names_in

_FOLDERS = (
    ("dev", re.compile(r"kfd|dxg|nvidia\d+|nvidiactl|nvidia-uvm")),
    ("dev/dri", re.compile(r"renderD\d+")),
    ("dev/accel", re.compile(r"accel\d+")),
)


def node_checks(host: Host) -> Iterator[Check]:
    """Check each existing node. A missing node is reported with its card."""
    for folder, form in _FOLDERS:
        for name in names_in(host.path(folder)):
            if form.fullmatch(name):
                path = host.path(folder, name)
                shown, group = host.shown(path), host.group_of(path)
                if refusal := refused(host, path):
                    yield Check("node-refused", "permission", "problem", *refusal)
                else:
                    yield Check("node", "permission", "ok", f"{shown} may be opened (group {group or 'unknown'}).")
