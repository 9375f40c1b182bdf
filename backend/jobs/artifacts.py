"""The files that jobs make: `<data>/artifacts/<job id>/`. A worker makes them beside and moves them in when whole."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from backend.child.artifact_writer import MAKING


class ArtifactStore:
    """The folders of all jobs. Its methods touch the disk: call them from a thread."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, job_id: str) -> Path:
        """Where a job's files lie; made by the worker that has the first one."""
        return self.root / job_id

    def begin(self, job_id: str) -> None:
        """Clears what an earlier attempt of the job has left."""
        self.remove([job_id])

    def finish(self, job_id: str) -> None:
        """Removes what the job's worker did not finish."""
        shutil.rmtree(self.folder(job_id) / MAKING, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder(job_id).rmdir()  # only if nothing is left in it

    def remove(self, job_ids: Iterable[str]) -> None:
        """Removes all files of these jobs; what cannot be removed now is tried again by `sweep`."""
        for job_id in job_ids:
            shutil.rmtree(self.folder(job_id), ignore_errors=True)

    def sizes(self) -> dict[str, int]:
        """Bytes on the disk, by job."""
        return {folder.name: _bytes(folder) for folder in self._folders()}

    def sweep(self, known: Collection[str]) -> None:
        """Removes the files of jobs that are not known, and what killed workers have left of the others."""
        for folder in self._folders():
            if folder.name in known:
                self.finish(folder.name)
            else:
                self.remove([folder.name])

    def _folders(self) -> list[Path]:
        try:
            return [folder for folder in self.root.iterdir() if folder.is_dir()]
        except OSError:
            return []  # no job has made a file yet


def _bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            total += file.lstat().st_size
    return total
