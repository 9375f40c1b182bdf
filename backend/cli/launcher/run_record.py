"""The folder of one run of the tests: what passed, each stage's output, and temporary files of its own.

Two concurrent runs only share the durations of tests, which serve to estimate the time left.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = ".test-runs"
KEPT_RUNS = 5
DURATIONS = "durations.{stage}.json"
_STATE = "run.json"


@dataclass(frozen=True)
class Result:
    """How a stage ended: `passed`, `failed` or `skipped`; the reason unless passed; an excerpt of the first failure."""

    stage: str
    result: str
    seconds: float
    reason: str | None
    excerpt: tuple[str, ...] = ()


class RunRecord:
    """One run: which stages and tests were chosen, and the results so far. Saved after each stage."""

    def __init__(self, folder: Path, stages: Sequence[str], words: str | None) -> None:
        self.folder, self.stages, self.words = folder, list(stages), words
        self.results: list[Result] = []

    @classmethod
    def create(cls, root: Path, stages: Sequence[str], words: str | None) -> RunRecord:
        """Make the folder of a new run in the repository at `root`, and delete those of old runs."""
        runs = root / FOLDER
        runs.mkdir(exist_ok=True)
        for old in sorted(filter(Path.is_dir, runs.iterdir()))[: -KEPT_RUNS + 1]:
            if not _is_running(old):
                shutil.rmtree(_temporary(old), ignore_errors=True)
                shutil.rmtree(old, ignore_errors=True)
        folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder.mkdir()
        record = cls(folder, stages, words)
        record._save()
        return record

    @classmethod
    def latest(cls, root: Path) -> RunRecord | None:
        """Return the newest run, to resume it, without the stages that have to run again. Optional: None if none."""
        runs = sorted((root / FOLDER).glob(f"*/{_STATE}"))
        for file in reversed(runs):
            if _is_running(file.parent):
                continue
            state = json.loads(file.read_text(encoding="utf-8"))
            record = cls(file.parent, state["stages"], state["words"])
            record.results = [_read(result) for result in state["results"] if result["result"] == "passed"]
            record._save()
            return record
        return None

    @property
    def left(self) -> list[str]:
        """The chosen stages that have no result yet."""
        done = {result.stage for result in self.results}
        return [stage for stage in self.stages if stage not in done]

    def add(self, result: Result) -> None:
        """Store the result of a stage. A passed stage's temporary files are deleted."""
        self.results.append(result)
        if result.result == "passed":
            shutil.rmtree(self.temporary(result.stage), ignore_errors=True)
        self._save()

    def output(self, stage: str) -> Path:
        """Return the file for the output of a stage."""
        return self.folder / f"{stage}.log"

    def temporary(self, stage: str) -> Path:
        """Return the folder for pytest's temporary files, which pytest makes.

        It is outside the repository, whose settings and version control would apply to files of the tests.
        """
        return _temporary(self.folder) / stage

    def durations(self, stage: str) -> Path:
        """Return the file with the seconds that each test of a stage took in the last run."""
        return self.folder.parent / DURATIONS.format(stage=stage)

    def _save(self) -> None:
        state = {
            "pid": os.getpid(),
            "stages": self.stages,
            "words": self.words,
            "results": [asdict(result) for result in self.results],
        }
        new = self.folder / (_STATE + ".new")
        new.write_text(json.dumps(state, indent=2), encoding="utf-8")
        new.replace(self.folder / _STATE)


def _temporary(run: Path) -> Path:
    return Path(tempfile.gettempdir()) / f"touchstone-test-{run.name}"


def _read(result: dict[str, Any]) -> Result:
    return Result(**{**result, "excerpt": tuple(result["excerpt"])})


def _is_running(folder: Path) -> bool:
    """Return whether the process of a run still exists, other than this one."""
    try:
        pid = int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["pid"])
        if pid == os.getpid() or os.name == "nt":
            return False
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError):
        return False
    return True
