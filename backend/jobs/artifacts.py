"""The artifact store: the files of jobs, in `<data>/artifacts/<job id>/`. A worker moves a file there once complete."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from backend.child.artifact_writer import MAKING


class ArtifactStore:
    """The folders of all jobs. The methods read and write the disk: call them in a thread."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, job_id: str) -> Path:
        """Return the folder of a job's files. The worker makes it with the first file."""
        return self.root / job_id

    def begin(self, job_id: str) -> None:
        """Remove what an earlier attempt of the job left."""
        self.remove([job_id])

    def finish(self, job_id: str) -> None:
        """Remove the incomplete files of the job's worker."""
        shutil.rmtree(self.folder(job_id) / MAKING, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder(job_id).rmdir()  # fails unless the folder is empty

    def remove(self, job_ids: Iterable[str]) -> None:
        """Remove all files of these jobs. `sweep` retries what cannot be removed now."""
        for job_id in job_ids:
            shutil.rmtree(self.folder(job_id), ignore_errors=True)

    def sizes(self) -> dict[str, int]:
        """Return the bytes on the disk, by job."""
        return {folder.name: _size_bytes(folder) for folder in self._folders()}

    def sweep(self, job_ids: Collection[str]) -> None:
        """Remove the files of all jobs but these, and incomplete files that killed workers left."""
        for folder in self._folders():
            if folder.name in job_ids:
                self.finish(folder.name)
            else:
                self.remove([folder.name])

    def _folders(self) -> list[Path]:
        try:
            return [folder for folder in self.root.iterdir() if folder.is_dir()]
        except OSError:
            return []  # no job has written a file yet


def _size_bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            total += file.lstat().st_size
    return total
