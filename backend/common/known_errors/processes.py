"""How processes end: signals and exit codes, in the words of `ChildProcess.exit_summary`."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

SIGNALS = (
    KnownError(
        "illegal-instruction",
        r"killed by SIGILL|Illegal instruction(?! was encountered)|0xc000001d|trap invalid opcode",
        "This build of {library} uses processor instructions that this machine lacks ({lacking}). Install a build for "
        "older processors ({build}), or use a machine whose processor has them, then refresh.",
        source="https://github.com/abetlen/llama-cpp-python/issues/839",
    ),
    KnownError(
        "seccomp",
        r"killed by SIGSYS|Bad system call|pthread_create failed: Operation not permitted"
        r"|can't spawn (?:a new )?worker thread: Operation not permitted",
        {
            "container": "The container's seccomp profile forbids a system call that this program needs. Update Docker "
            "and libseccomp on the host; to confirm the cause, start the container once with `--security-opt "
            "seccomp=unconfined`.",
            "any": "A seccomp filter forbids a system call that this program needs. Remove it from the service or the "
            "sandbox that starts Touchstone (systemd: `SystemCallFilter=`), then refresh.",
        },
        source="https://github.com/bytebase/bytebase/issues/3096",
    ),
    KnownError(
        "killed",
        r"killed by SIGKILL|exited with code 137\b|\boom-kill\b|\bOut of memory: Killed process",
        {
            "container": "The process was killed, mostly because the container's memory limit was reached. Raise the "
            "limit (`docker run --memory`), or close other programs in it, then refresh.",
            "wsl": "The process was killed, mostly because WSL's memory is used up. Raise `memory=` under `[wsl2]` in "
            "%UserProfile%\\.wslconfig, run `wsl --shutdown` in Windows, and start again.",
            "any": "The process was killed, mostly because memory ran short: `sudo dmesg | grep -i oom` shows it. "
            "Close other programs or add memory, then refresh.",
        },
    ),
    KnownError(
        "shared-memory",
        r"killed by SIGBUS|\bBus error\b|insufficient shared memory|out of shared memory"
        r"|No space left on device:? '?/dev/shm",
        {
            "container": "Shared memory (/dev/shm) is full: start the container with `--shm-size=2g` or `--ipc=host`, "
            "then refresh.",
            "any": "Shared memory or the disk is full: `df -h /dev/shm /tmp` shows it. Free some space, or enlarge it "
            "with `sudo mount -o remount,size=2G /dev/shm`, then refresh.",
        },
        source="https://github.com/facebookresearch/mmf/issues/441",
    ),
)
ENDS = (
    KnownError(
        "slow-import",
        r"while (?:importing|loading) .*it hung: timeout after (?P<limit>\S+ s)",
        "Importing {library} took longer than {limit}. Raise `supervision.probe_s` in config.yaml; a network drive, a "
        "Windows drive under WSL (/mnt/c) or a virus scanner makes imports slow: keep the environment ({environment}) "
        "on a local disk and exclude it from scans. Then refresh.",
        absent=False,
    ),
    KnownError(
        "hang",
        r"it hung: timeout after (?P<limit>\S+ s)",
        {
            "wsl": "Nothing answered within {limit}. {update_both} and run `wsl --shutdown` in Windows; on a busy "
            "machine raise `supervision.probe_s` in config.yaml. Then refresh.",
            "any": "Nothing answered within {limit}. {update_both} and restart the machine; on a busy machine raise "
            "`supervision.probe_s` in config.yaml. Then refresh.",
        },
        absent=False,
    ),
    KnownError(
        "no-python",
        r"while starting: it (?:exited with|ended)",
        "{python} started, but did not run Touchstone's program: check with `{python} --version` that it is Python "
        "3.10 or newer, and that no sitecustomize.py and no .pth file ends it. {interpreter}",
        "runtime package",
    ),
    KnownError(
        "crash-at-import",
        r"while (?:importing|loading) .*: it (?:was killed by|exited with|ended)",
        "{foreign}The message does not show what is at fault. {update_both}, then refresh. If it repeats, use another "
        "device and report it: `{report}`.",
        absent=False,
    ),
    KnownError(
        "crash",
        r"it was killed by |it exited with code |it ended without an answer",
        "The message does not show what is at fault. {update_both}, then refresh. If it repeats, use another device "
        "(the CPU) and report it: `{report}`.",
        absent=False,
    ),
)
