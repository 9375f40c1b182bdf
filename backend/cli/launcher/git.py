"""Updates of a git checkout from its upstream branch, and the way back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from backend.cli.launcher.console import SetupFailed

TIMEOUT_S = 600.0
_VERSION = re.compile(r"""__version__ = ["'](.+?)["']""")


class Checkout:
    """The git repository at `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def newer(self) -> str | None:
        """Fetch and return a description of the newer version. Optional: None if there is none. Raises SetupFailed."""
        if not shutil.which("git"):
            raise SetupFailed(
                "This is a git checkout, but git is not installed.", "Install git and repeat the command."
            )
        upstream, problem = self._run("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
        if problem:
            raise SetupFailed(
                "The branch of this checkout has no upstream branch to look for newer versions.",
                "Set one, for example: git branch --set-upstream-to=origin/main",
            )
        _, problem = self._run("fetch", "--quiet")
        if problem:
            raise SetupFailed(
                f"git could not fetch the newer version: {problem}.",
                "Check the network and the output of `git remote -v`, then repeat the command.",
            )
        ours, theirs = self._output("rev-list", "--left-right", "--count", "HEAD...@{upstream}").split()
        if theirs == "0":
            return None
        if ours != "0":
            raise SetupFailed(
                f"This checkout has {ours} commit(s) that {upstream} lacks, so it cannot be fast-forwarded.",
                "Rebase or merge them yourself, then start Touchstone: it installs what changed.",
            )
        version = _VERSION.search(self._output("show", "@{upstream}:backend/__init__.py"))
        return f"{version[1] if version else 'the newest version'} ({theirs} commit(s) on {upstream})"

    def mark(self) -> dict[str, str]:
        """Return what `back` needs to restore the current version."""
        return {"kind": "git", "commit": self._output("rev-parse", "HEAD").strip()}

    def switch(self) -> None:
        """Switch to the newer version. Raises SetupFailed if the user's changes conflict with it."""
        _, problem = self._run("merge", "--ff-only", "--quiet", "@{upstream}")
        if problem:
            changed = self._output("diff", "--name-only", "HEAD").split()
            raise SetupFailed(
                f"Files that you changed also changed in the newer version ({', '.join(changed) or problem}).",
                "Stash yours with `git stash`, update, and restore them with `git stash pop`.",
            )

    def back(self, mark: dict[str, str]) -> None:
        """Restore the version of `mark`. The user's changes stay. Raises SetupFailed if that is impossible."""
        _, problem = self._run("reset", "--keep", "--quiet", mark["commit"])
        if problem:
            raise SetupFailed(
                f"git did not go back to {mark['commit'][:12]}: {problem}.",
                "Stash your changes with `git stash`, then repeat the command.",
            )

    def _run(self, *words: str) -> tuple[str, str]:
        """Run git and return its output and its error message, which is empty on success."""
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        done = subprocess.run(
            [shutil.which("git") or "git", "-C", str(self._root), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
        lines = done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"]
        message = next((line for line in lines if line.startswith(("fatal", "error"))), lines[-1])
        return done.stdout.strip(), message.rstrip(".") if done.returncode else ""

    def _output(self, *words: str) -> str:
        output, problem = self._run(*words)
        if problem:
            raise SetupFailed(f"git failed: {problem}.", "Check the folder with `git status`.")
        return output
