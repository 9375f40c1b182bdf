"""The data folder: file system, permissions, free space, holder, and the job history."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.cli.doctor.facts import Facts, StorageFacts
from backend.cli.doctor.finding import Finding, Step

LOW_BYTES, FULL_BYTES = 2_000_000_000, 100_000_000
# File systems where locks or SQLite's shared memory may be unreliable, or everything is ten times slower.
_REMOTE = re.compile(
    r"^(remote|9p|v9fs|drvfs|nfs\d?|cifs|smb\d?|smbfs|afs|ceph|lustre|glusterfs|vboxsf|"
    r"fuse\.(sshfs|glusterfs|rclone|s3fs|.*nfs))$"
)


def unusable(facts: Facts) -> Iterator[Finding]:
    """A data folder that cannot be written, or a job history that cannot be read."""
    if storage := facts.storage:
        if storage.writable is False:
            detail = f"The data folder {storage.data_dir} cannot be written."
            step = Step("Change its permissions, or set TOUCHSTONE_DATA_DIR to another folder.")
            yield Finding("data-folder", "stops", "storage", "storage", detail, (step,))
        if storage.history:
            detail = f"The job history in {storage.data_dir} is damaged: {storage.history}."
            step = Step("Restart the server: it moves the damaged history to a separate folder and starts a new one.")
            yield Finding("history", "broken", "storage", "storage", detail, (step,))


def remote_folder(facts: Facts) -> Iterator[Finding]:
    """A data folder on a network file system, or under WSL on a Windows drive.

    Report: microsoft/WSL#10729 (an environment on /mnt/c needs 20 s for a trivial command).
    """
    storage = facts.storage
    if storage is None or not storage.filesystem or not _REMOTE.match(storage.filesystem):
        return
    if facts.platform.wsl:
        detail = f"The data folder {storage.data_dir} is on a Windows drive ({storage.filesystem}): reading a model "
        detail += "from there is many times slower, and locks do not work across both systems."
        step = Step("Keep the repository and its data inside Linux, for example under ~.", _move(storage))
    else:
        detail = f"The data folder {storage.data_dir} is on a network file system ({storage.filesystem}): its locks "
        detail += "may not prevent a second server, and models load slowly."
        step = Step("Set TOUCHSTONE_DATA_DIR to a folder on a disk of this machine.")
    yield Finding("remote-folder", "advice", "storage", "storage", detail, (step,))


def disk_space(facts: Facts) -> Iterator[Finding]:
    """A disk with little free space, or none."""
    storage = facts.storage
    if storage is None or storage.free_bytes is None or storage.free_bytes >= LOW_BYTES:
        return
    is_full = storage.free_bytes < FULL_BYTES
    detail = f"The disk of the data folder {storage.data_dir} has {storage.free_bytes / 1e6:,.0f} MB left"
    detail += ": jobs will end with disk_full." if is_full else ": most models will not fit."
    step = Step("Free some gigabytes, or set TOUCHSTONE_DATA_DIR to a folder on another disk.")
    yield Finding("disk-space", "stops" if is_full else "advice", "storage", "storage", detail, (step,))


def held_by_a_silent_server(facts: Facts) -> Iterator[Finding]:
    """Another process holds the data folder, but no server answers at its address."""
    storage, server = facts.storage, facts.server
    if storage is None or not storage.held or (server and server.url):
        return
    holder = storage.holder or {}
    who = f"process {holder['pid']}" if holder.get("pid") else "another process"
    where = f", whose address {holder['url']} does not answer" if holder.get("url") else ""
    other = " on the other side of WSL" if holder.get("elsewhere") else ""
    detail = f"The data folder {storage.data_dir} is held by {who}{other}{where}: no second server can start on it."
    step = Step("Stop that process, or set TOUCHSTONE_DATA_DIR to another folder.")
    yield Finding("held", "broken", "storage", "storage", detail, (step,))


def _move(storage: StorageFacts) -> str:
    return f"cp -r '{storage.data_dir}' ~/touchstone-data && export TOUCHSTONE_DATA_DIR=~/touchstone-data"


FINDINGS = (unusable, remote_folder, disk_space, held_by_a_silent_server)
