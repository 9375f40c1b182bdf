"""Local versions, which name the hardware that a build is for: `cpu` in `2.14.1+cpu`."""

from __future__ import annotations

from collections.abc import Mapping


def find_other_builds(packages: Mapping[str, str], local: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the versions of packages that are missing (empty) or whose local version does not begin as `local` lists.

    An empty beginning stands for no local version.
    """
    return {
        name: packages.get(name, "")
        for name, beginnings in local.items()
        if not _is_wanted(packages.get(name, ""), beginnings)
    }


def _is_wanted(version: str, beginnings: list[str]) -> bool:
    local = version.partition("+")[2]
    return bool(version) and any(local.startswith(each) if each else not local for each in beginnings)
