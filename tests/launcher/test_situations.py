"""Each situation of docs/starts.md is set up and started, and the output compared."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.conftest import lay
from tests.launcher.folder import LIMIT_S, Folder, plain_environment
from tests.launcher.situations import SITUATIONS, Situation, table

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "bash cat chmod cp dirname echo env grep id ln ls mkdir mktemp mv printf readlink rm rmdir sed sh tr true".split()
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The system's small tools alone."""
    folder = tmp_path_factory.mktemp("tools")
    for name in TOOLS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def folder(request: pytest.FixtureRequest, _prepared: Folder) -> Iterator[Folder]:
    """A folder of its own: as cloned, or with an environment."""
    situation: Situation = request.getfixturevalue("situation")
    home = Path(tempfile.mkdtemp())  # short: some situations make it longer
    root = home / "repository"
    made = lay(root) if situation.bare else Folder(Path(shutil.copytree(_prepared.root, root, symlinks=True)))
    yield made
    made.end_all()
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: f"{one.part}: {one.name}")
def test_the_words_come(situation: Situation, folder: Folder, tools: Path, request: pytest.FixtureRequest) -> None:
    home = folder.root.parent
    (home / "bin").mkdir()
    folder.plan(**situation.plan)
    path = f"{home}/bin:{tools if situation.tools else os.environ['PATH']}"
    environment = {**plain_environment(), "T": str(home), "B": f"{home}/bin", "F": str(folder.root), "PATH": path}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment["TAKEN"] = str(taken.getsockname()[1])
        command = situation.run
        if situation.real:
            data = "" if "--data-dir" in command else f"--data-dir {home}/data"
            command = f"cd {shlex.quote(str(ROOT))}; {shlex.quote(sys.executable)} -m backend serve {data} {command}"
        script = "\n".join([situation.arrange, f"export {' '.join(map(shlex.quote, _set(situation)))}", command])
        enter = request.getfixturevalue("namespaces") if situation.mounts else []
        output, code = _ran([*enter, "bash", "-c", script], environment, situation, folder)
    at = 0
    for words in situation.words:
        pattern = ".*".join(re.escape(piece) for piece in words.replace("{folder}", str(folder.root)).split("…"))
        found = re.compile(f"^{pattern}$", re.MULTILINE).search(output, at)
        assert found, f"{words!r} was not said in:\n{output}"
        at = found.end()
    assert code == situation.code, output
    assert "Traceback" not in output


def _set(situation: Situation) -> list[str]:
    return [f"{name}={value}" for name, value in {"SITUATION": "1", **situation.env}.items()]


def _ran(command: list[str], environment: dict[str, str], situation: Situation, folder: Folder) -> tuple[str, int]:
    """What was said, and the exit code; a server is ended once the last words are there."""
    if not situation.serves:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
        return (done.stderr + b"\n" + done.stdout).decode(errors="replace"), done.returncode
    running = folder.start(command=command, env=environment)
    running.expect("Touchstone is ready")
    last = max(situation.words[-1].split("…"), key=len)
    if not any(last in line for line in running.lines):
        running.expect(last)
    code = running.end(signal.SIGTERM)
    # Both streams, and no order between them.
    lines = running.lines
    return "\n".join([*lines, *lines]), code


def test_the_page_holds_the_same_table() -> None:
    page = (ROOT / "docs" / "starts.md").read_text(encoding="utf-8")
    assert page.endswith(table()), "`python -m tests.launcher.situations` prints what belongs there"
    assert len(SITUATIONS) >= 40
