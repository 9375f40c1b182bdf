"""The folder and its disk."""
# ruff: noqa: E501 (the words stand as they are seen)

from __future__ import annotations

from tests.launcher.situations.kinds import FOLDER, WORKS, Situation

SITUATIONS = (
    Situation(
        FOLDER,
        "a name with blanks, accents, emoji, quotes and $()",
        WORKS,
        'N="$T/\\$(touch pwned) \'quote\' \\"two\\" é 日本 😀"; mv "$F" "$N"; ln -s "$N" "$F"',
        'cd $T; "$N/launch_wsl.sh" echo <<<launched; [ ! -e pwned ]',
    ),
    Situation(
        FOLDER,
        "a name with a colon",
        ("touchstone: The folder's path … contains ':', which Python environments do not support.",),
        'mv "$F" "$T/a:b"; ln -s "$T/a:b" "$F"',
        code=1,
        bare=True,
    ),
    Situation(
        FOLDER,
        "read-only, at the first start",
        ("touchstone: {folder} is not writable….", "touchstone: Copy the repository to a folder that you own, …"),
        'mount --bind "$F" "$F"; mount -o remount,ro,bind "$F"',
        code=1,
        bare=True,
        mounts=True,
    ),
    Situation(
        FOLDER,
        "read-only, with an environment",
        ("started",),
        'mount --bind "$F" "$F"; mount -o remount,ro,bind "$F"',
        '"$F/.venv/bin/python" -I -c "import ballast"; echo started',
        mounts=True,
    ),
    Situation(
        FOLDER,
        "on a disk mounted with noexec",
        ("touchstone: … is on a disk mounted with noexec, so libraries cannot be loaded from it.",),
        'mkdir $T/disk; mount -t tmpfs -o noexec tmpfs $T/disk; cp -r "$F/." $T/disk/',
        "bash $T/disk/launch_wsl.sh echo",
        code=1,
        bare=True,
        mounts=True,
    ),
    Situation(
        FOLDER,
        "TMPDIR mounted with noexec",
        ("touchstone: Installing the packages of requirements.txt; this takes a minute or two ...", *WORKS),
        'mkdir $T/tmp; mount -t tmpfs -o noexec tmpfs $T/tmp; echo "# changed" >>"$F/requirements.txt"',
        'TMPDIR=$T/tmp "$F/launch_wsl.sh" echo <<<launched',
        mounts=True,
    ),
    Situation(
        FOLDER,
        "a disk that is full",
        ("touchstone: The disk is full: … MB free at …, 1000 MB needed.", "touchstone: Free some space, …"),
        'mkdir $T/disk; mount -t tmpfs -o size=20m tmpfs $T/disk; cp -r "$F/." $T/disk/',
        "$T/disk/launch_wsl.sh echo",
        code=1,
        bare=True,
        mounts=True,
    ),
)  # fmt: skip
