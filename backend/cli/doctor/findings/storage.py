"""The data folder: where it lies, whether it can be written, who has it, whether its history can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.cli.doctor.facts import Facts, StorageFacts
from backend.cli.doctor.finding import Finding, Step

LITTLE_BYTES, NOTHING_BYTES = 2_000_000_000, 100_000_000
# File systems on which locks or SQLite's shared memory may not hold what they promise, or all takes ten times as long.
_REMOTE = re.compile(
    r"^(remote|9p|v9fs|drvfs|nfs\d?|cifs|smb\d?|smbfs|afs|ceph|lustre|glusterfs|vboxsf|"
    r"fuse\.(sshfs|glusterfs|rclone|s3fs|.*nfs))$"
)


def unusable(facts: Facts) -> Iterator[Finding]:
    """A folder that cannot be written, or a history that cannot be read."""
    if storage := facts.storage:
        if storage.writable is False:
            detail = f"The data folder {storage.data_dir} cannot be written."
            step = Step("Give yourself the right to write there, or set TOUCHSTONE_DATA_DIR to a folder of yours.")
            yield Finding("data-folder", "stops", "storage", "storage", detail, (step,))
        if storage.history:
            detail = f"The history of jobs in {storage.data_dir} is damaged: {storage.history}."
            step = Step(
                "Start the server anew: it sets the old one aside, in a folder beside it, and begins a new one."
            )
            yield Finding("history", "broken", "storage", "storage", detail, (step,))


def remote_folder(facts: Facts) -> Iterator[Finding]:
    """A folder on another machine's disk, or, under WSL, on Windows' drive.

    Report: microsoft/WSL#10729 (an environment on /mnt/c needs 20 s for a trivial command).
    """
    storage = facts.storage
    if storage is None or not storage.filesystem or not _REMOTE.match(storage.filesystem):
        return
    if facts.platform.wsl:
        detail = f"The data folder {storage.data_dir} lies on a Windows drive ({storage.filesystem}): reading a model "
        detail += "from there takes many times as long, and locks are not seen by both sides."
        step = Step("Keep the repository and its data inside Linux, for example under ~.", _move(storage))
    else:
        detail = f"The data folder {storage.data_dir} lies on a network file system ({storage.filesystem}): its locks "
        detail += "do not keep a second server out for certain, and models load slowly."
        step = Step("Set TOUCHSTONE_DATA_DIR to a folder on a disk of this machine.")
    yield Finding("remote-folder", "advice", "storage", "storage", detail, (step,))


def disk_space(facts: Facts) -> Iterator[Finding]:
    """Little room, or none."""
    storage = facts.storage
    if storage is None or storage.free_bytes is None or storage.free_bytes >= LITTLE_BYTES:
        return
    none = storage.free_bytes < NOTHING_BYTES
    detail = f"The disk of the data folder {storage.data_dir} has {storage.free_bytes / 1e6:,.0f} MB left"
    detail += ": jobs will end with disk_full." if none else ": most models will not fit."
    step = Step("Free some gigabytes, or set TOUCHSTONE_DATA_DIR to a folder on another disk.")
    yield Finding("disk-space", "stops" if none else "advice", "storage", "storage", detail, (step,))


def held_by_a_silent_server(facts: Facts) -> Iterator[Finding]:
    """Another process has the folder, and nothing answers at the address that it left."""
    storage, server = facts.storage, facts.server
    if storage is None or not storage.held or (server and server.url):
        return
    holder = storage.holder or {}
    who = f"process {holder['pid']}" if holder.get("pid") else "another process"
    where = f", which said it serves {holder['url']} and does not answer" if holder.get("url") else ""
    other = " on the other side of WSL" if holder.get("elsewhere") else ""
    detail = f"The data folder {storage.data_dir} is held by {who}{other}{where}: no second server can start on it."
    step = Step("Stop that process, or set TOUCHSTONE_DATA_DIR to another folder.")
    yield Finding("held", "broken", "storage", "storage", detail, (step,))


def _move(storage: StorageFacts) -> str:
    return f"cp -r '{storage.data_dir}' ~/touchstone-data && export TOUCHSTONE_DATA_DIR=~/touchstone-data"


FINDINGS = (unusable, remote_folder, disk_space, held_by_a_silent_server)
