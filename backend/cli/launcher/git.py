"""A checkout and the branch that it follows: what is newer there, going to it, and coming back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from backend.cli.launcher.console import SetupFailed

LIMIT_S = 600.0
_VERSION = re.compile(r"""__version__ = ["'](.+?)["']""")


class Checkout:
    """The repository at `root`, under git."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def newer(self) -> str | None:
        """Asks the branch that is followed; the newer version in words, None if there is none. Raises SetupFailed."""
        if not shutil.which("git"):
            raise SetupFailed("This is a checkout, and git is not installed.", "Install git and start this again.")
        upstream, trouble = self._said("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
        if trouble:
            raise SetupFailed(
                "The branch of this checkout follows no other, so it is not known where a newer version would be.",
                "Name one, as in: git branch --set-upstream-to=origin/main",
            )
        _, trouble = self._said("fetch", "--quiet")
        if trouble:
            raise SetupFailed(
                f"git could not fetch what is newer: {trouble}.",
                "Check the network and what `git remote -v` shows, and start this again.",
            )
        ours, theirs = self._must("rev-list", "--left-right", "--count", "HEAD...@{upstream}").split()
        if theirs == "0":
            return None
        if ours != "0":
            raise SetupFailed(
                f"This checkout has {ours} commit(s) that {upstream} lacks, so it cannot simply follow.",
                "Join them yourself (git rebase, git merge), then start Touchstone: it prepares what has changed.",
            )
        found = _VERSION.search(self._must("show", "@{upstream}:backend/__init__.py"))
        return f"{found[1] if found else 'the newest version'} ({theirs} commit(s) on {upstream})"

    def mark(self) -> dict[str, str]:
        """What `back` needs to come back to where this is."""
        return {"kind": "git", "commit": self._must("rev-parse", "HEAD").strip()}

    def switch(self) -> None:
        """Goes to the newer version. Raises SetupFailed where changes of the user's are in the way."""
        _, trouble = self._said("merge", "--ff-only", "--quiet", "@{upstream}")
        if trouble:
            changed = self._must("diff", "--name-only", "HEAD").split()
            raise SetupFailed(
                f"Files that you changed have changed in the newer version as well ({', '.join(changed) or trouble}).",
                "Put yours aside with `git stash`, update, and take them back with `git stash pop`.",
            )

    def back(self, mark: dict[str, str]) -> None:
        """Comes back; changes of the user's stay, or it raises SetupFailed."""
        _, trouble = self._said("reset", "--keep", "--quiet", mark["commit"])
        if trouble:
            raise SetupFailed(
                f"git did not go back to {mark['commit'][:12]}: {trouble}.",
                "Put changes of yours aside with `git stash`, and start this again.",
            )

    def _said(self, *words: str) -> tuple[str, str]:
        """Output, and the last line of the complaint; empty if all went well."""
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        done = subprocess.run(
            [shutil.which("git") or "git", "-C", str(self._root), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
        lines = done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"]
        telling = next((line for line in lines if line.startswith(("fatal", "error"))), lines[-1])
        return done.stdout.strip(), telling.rstrip(".") if done.returncode else ""

    def _must(self, *words: str) -> str:
        said, trouble = self._said(*words)
        if trouble:
            raise SetupFailed(f"git did not answer: {trouble}.", "Look at the folder with `git status`.")
        return said
