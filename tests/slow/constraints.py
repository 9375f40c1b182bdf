"""`python -m tests.slow.constraints`: write constraints.txt, the versions that the launchers install into `.venv`.

Resolves requirements.txt for each platform and Python, with the general index alone. Where a package has different
versions on one platform and Python, by the version of glibc or macOS, it is left to pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

from backend.common.installation import ROOT

HEAD = """\
# The versions of requirements.txt that the launchers install, so that a new release of a package cannot break a start.
# Made by `python -m tests.slow.constraints`. Without this file pip takes the newest that requirements.txt allows.
"""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# The markers of each platform, and the targets of uv that it stands for.
PLATFORMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("linux", "x86_64"): ("x86_64-manylinux_2_28", "x86_64-manylinux_2_39"),
    ("linux", "aarch64"): ("aarch64-manylinux_2_28", "aarch64-manylinux_2_39"),
    ("win32", "AMD64"): ("x86_64-pc-windows-msvc",),
    ("win32", "ARM64"): ("aarch64-pc-windows-msvc",),
    ("darwin", "arm64"): ("aarch64-apple-darwin 13.0", "aarch64-apple-darwin 14.0", "aarch64-apple-darwin 15.0"),
    ("darwin", "x86_64"): ("x86_64-apple-darwin 13.0", "x86_64-apple-darwin 15.0"),
}
Place = tuple[str, str, str]  # system, machine, Python


def main() -> int:
    """Write the file; return 0."""
    versions: dict[str, dict[Place, set[str]]] = defaultdict(lambda: defaultdict(set))
    places: set[Place] = set()
    for (system, machine), targets in PLATFORMS.items():
        for python in PYTHONS:
            for target in targets:
                found = resolved(*target.partition(" ")[::2], python)
                if found is None:
                    print(f"nothing for {target}, Python {python}", file=sys.stderr)
                    continue
                places.add((system, machine, python))
                for name, version in found.items():
                    versions[name][system, machine, python].add(version)
    lines = [line for name in sorted(versions) for line in constraints(name, versions[name], places)]
    (ROOT / "constraints.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


def resolved(target: str, macos: str, python: str) -> dict[str, str] | None:
    """Return the versions by package, None if there are none for that target and Python."""
    uv = shutil.which("uv", path=sysconfig.get_path("scripts")) or "uv"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    environment |= {"UV_SYSTEM_CERTS": "1", **({"MACOSX_DEPLOYMENT_TARGET": macos} if macos else {})}
    with tempfile.TemporaryDirectory() as folder:
        command = [uv, "pip", "compile", str(ROOT / "requirements.txt"), "--python-platform", target]
        command += ["--python-version", python, "--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet"]
        command += ["--no-config", "--output-file", str(Path(folder, "out.txt"))]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return None
        lines = Path(folder, "out.txt").read_text(encoding="utf-8").splitlines()
    return {line.split("==")[0]: line.split("==")[1].split(";")[0].strip() for line in lines if "==" in line}


def constraints(name: str, versions: dict[Place, set[str]], places: set[Place]) -> list[str]:
    """Return the lines of a package. A place with several versions has none."""
    single = {place: next(iter(found)) for place, found in versions.items() if len(found) == 1}
    if len(single) == len(versions) and len(set(single.values())) == 1:
        return [f"{name}=={next(iter(single.values()))}"]
    by_python = {python: {version for place, version in single.items() if place[2] == python} for python in PYTHONS}
    if len(single) == len(versions) and all(len(found) == 1 for found in by_python.values()):
        return [f"{name}=={next(iter(found))} ; python_version == '{python}'" for python, found in by_python.items()]
    lines = []
    for system, machine in PLATFORMS:
        here = {python: version for (s, m, python), version in single.items() if (s, m) == (system, machine)}
        marker = f"sys_platform == '{system}' and platform_machine == '{machine}'"
        everywhere = {python for s, m, python in places if (s, m) == (system, machine)} == set(here)
        if everywhere and len(set(here.values())) == 1:
            lines.append(f"{name}=={next(iter(here.values()))} ; {marker}")
        else:
            lines += [f"{name}=={version} ; {marker} and python_version == '{py}'" for py, version in here.items()]
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
